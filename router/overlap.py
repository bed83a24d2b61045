"""Overlap: whether one request could be taken by two routes.

Decides by what the routes state; two regular expressions are taken to overlap, since nobody can tell quickly. Refuses
nothing. Called by advice.py.
"""

from __future__ import annotations

import re

from pointsman.router.number_regex import NUMBER_REGEX
from pointsman.router.policy import HeaderMatch, MatchKind, PathMatch, Route


def may_overlap(one: Route, other: Route) -> bool:
    """Say whether a request may exist that both routes match."""
    return (
        _share_a_model(one, other)
        and _share(one.match.intents, other.match.intents)
        and _share_a_path(one.match.paths, other.match.paths)
        and not any(_exclude(a, b) for a in one.match.headers for b in other.match.headers if a.name == b.name)
    )


def _share(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return not one or not other or not set(one).isdisjoint(other)


def _share_a_model(one: Route, other: Route) -> bool:
    """A route without `models` takes its targets' names and requests that name no model."""
    if not one.match.models and not other.match.models:
        return True
    return not set(one.match.models or one.targets).isdisjoint(other.match.models or other.targets)


def _share_a_path(one: tuple[PathMatch, ...], other: tuple[PathMatch, ...]) -> bool:
    return not one or not other or any(_paths_meet(a, b) for a in one for b in other)


def _paths_meet(one: PathMatch, other: PathMatch) -> bool:
    kinds = {one.kind, other.kind}
    if kinds == {MatchKind.EXACT}:
        return one.value == other.value
    if kinds == {MatchKind.PREFIX}:
        return one.value.startswith(other.value) or other.value.startswith(one.value)
    if MatchKind.EXACT not in kinds:
        return True
    exact, wide = (one, other) if one.kind is MatchKind.EXACT else (other, one)
    return _holds(wide.kind, wide.value, exact.value)


def _exclude(one: HeaderMatch, other: HeaderMatch) -> bool:
    """Say whether no value of the header can satisfy both conditions."""
    if one.kind is MatchKind.RANGE and other.kind is MatchKind.RANGE:
        return one.range_end <= other.range_start or other.range_end <= one.range_start
    if one.kind is MatchKind.PREFIX and other.kind is MatchKind.PREFIX:
        return not (one.value.startswith(other.value) or other.value.startswith(one.value))
    if MatchKind.EXACT not in {one.kind, other.kind}:
        return False
    exact, wide = (one, other) if one.kind is MatchKind.EXACT else (other, one)
    if wide.kind is MatchKind.RANGE:
        is_number = re.fullmatch(NUMBER_REGEX, exact.value) is not None
        return not is_number or not wide.range_start <= float(exact.value) < wide.range_end
    return not _holds(wide.kind, wide.value, exact.value)


def _holds(kind: MatchKind, condition: str, value: str) -> bool:
    if kind is MatchKind.EXACT:
        return condition == value
    if kind is MatchKind.PREFIX:
        return value.startswith(condition)
    # A regex is never run here: Python's can take for ever on a pattern that RE2 matches at once.
    return True
