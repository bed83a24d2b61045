"""Lifetimes in both variants: stated to clients that announce them, confirmed in time, to nobody else (36)."""

from __future__ import annotations

import pytest
from joined_stream import JoinedStream, both_variants, names_of
from pointsman.xds.fake_client import CDS, EDS
from pointsman.xds.snapshot import Resource, Snapshot
from pointsman.xds.wire import SOTW_TTL_FEATURES, TTL_FEATURE
from sample_resources import assignment, cluster

ALL_FEATURES = {TTL_FEATURE, *SOTW_TTL_FEATURES}


def lasting(*names: str, ttl_s: float | None = 30.0, timeout_s: int = 1) -> Snapshot:
    """A snapshot whose clusters have a lifetime."""
    return Snapshot.build(
        [Resource.of(cluster(name, timeout_s=timeout_s), ttl_s=ttl_s) for name in names],
        [assignment(name) for name in names],
    )


@both_variants
def test_point_36_lifetime_is_stated_and_confirmed_without_content(variant: str) -> None:
    wire = JoinedStream(lasting("a", "b"), variant=variant, features=ALL_FEATURES)
    (first,) = wire.subscribe(CDS)
    assert {"a": 30.0, "b": 30.0} == first.ttls_s
    assert 110.0 == wire.stream.deadline_s(wire.now_s)
    wire.now_s += 9.9
    assert [] == wire.receive()
    wire.now_s += 0.1
    confirmation = wire.receive_one()
    assert (("a", "b"), {}, {"a": 30.0, "b": 30.0}) == (
        confirmation.confirmed,
        confirmation.resources,
        confirmation.ttls_s,
    )
    wire.acknowledge(confirmation)
    assert [] == wire.receive()
    wire.now_s += 10
    wire.acknowledge(wire.receive_one())
    assert 2 == wire.stream.types()[0].resources_held


@pytest.mark.parametrize(
    ("variant", "features"),
    [("delta", set()), ("sotw", set()), ("sotw", {TTL_FEATURE}), ("sotw", SOTW_TTL_FEATURES)],
)
def test_point_36_client_that_announces_too_little_gets_no_lifetime(variant: str, features: set[str]) -> None:
    wire = JoinedStream(lasting("a"), variant=variant, features=features)
    (first,) = wire.subscribe(CDS)
    assert {} == first.ttls_s
    wire.now_s += 1_000
    assert [] == wire.receive()
    assert wire.stream.deadline_s(wire.now_s) is None


@both_variants
def test_lifetime_that_ends_is_a_change_that_is_sent_once(variant: str) -> None:
    wire = JoinedStream(lasting("a"), variant=variant, features=ALL_FEATURES)
    wire.subscribe(CDS)
    wire.stream.offer(lasting("a", ttl_s=None))
    (changed,) = wire.drain()
    assert (["a"], {}) == (list(changed.resources), changed.ttls_s)
    wire.now_s += 1_000
    assert [] == wire.receive()


@both_variants
def test_refused_content_leaves_the_older_one_confirmed(variant: str) -> None:
    wire = JoinedStream(lasting("a"), variant=variant, features=ALL_FEATURES)
    wire.subscribe(CDS)
    wire.stream.offer(lasting("a", timeout_s=2))
    wire.send(wire.client.refuse(wire.receive_one(), "no"))
    wire.now_s += 10
    assert ("a",) == wire.receive_one().confirmed


@both_variants
def test_unanswered_confirmation_is_followed_by_changes_only_as_the_variant_allows(variant: str) -> None:
    wire = JoinedStream(lasting("a"), variant=variant, features=ALL_FEATURES)
    wire.subscribe(CDS)
    wire.now_s += 10
    confirmation = wire.receive_one()
    wire.stream.offer(lasting("a", "b"))
    sent_now = names_of(wire.receive())
    assert ([("CDS", ["b"], [])] if variant == "delta" else []) == sent_now
    wire.acknowledge(confirmation)
    sent_later = [name for one in wire.receive() for name in one.resources]
    assert (["b"] if variant == "sotw" else []) == sent_later


def test_point_29_lifetime_of_what_a_reconnecting_client_holds_begins_anew_at_once() -> None:
    before = JoinedStream(lasting("a"), features=ALL_FEATURES)
    before.subscribe(CDS)
    wire = JoinedStream(lasting("a"), before=before, features=ALL_FEATURES)
    wire.send(wire.client.subscribe(CDS))
    empty, confirmation = wire.receive()
    assert ({}, ("a",)) == (empty.resources, confirmation.confirmed)


@both_variants
def test_endpoints_have_lifetimes_too(variant: str) -> None:
    offered = Snapshot.build([cluster("a")], [Resource.of(assignment("a"), ttl_s=3)])
    wire = JoinedStream(offered, variant=variant, features=ALL_FEATURES)
    wire.subscribe(EDS, "a")
    wire.now_s += 1
    assert ("a",) == wire.receive_one().confirmed
