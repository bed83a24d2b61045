"""Prompt beginnings: seen is a hit, and the oldest goes."""

from __future__ import annotations

from pointsman.sidecar.simulator_prefixes import PrefixCache


def test_second_visit_is_a_hit() -> None:
    cache = PrefixCache()
    assert [cache.visit(prefix) for prefix in ("a", "a", "b")] == [False, True, False]


def test_empty_prefix_is_never_a_hit() -> None:
    cache = PrefixCache()
    assert [cache.visit("") for _ in range(2)] == [False, False]


def test_least_recently_used_beginning_is_dropped() -> None:
    cache = PrefixCache(max_prefixes=2)
    for prefix in ("a", "b", "a", "c"):
        cache.visit(prefix)
    assert [cache.visit(prefix) for prefix in ("a", "c", "b")] == [True, True, False]
