"""Builders for `xds.type.matcher.v3.Matcher`: trees of exact values, lists of predicates, all over request headers.

The matcher input joins a header's lines by a comma, so a repeated header is one value here: the same view that
`router.request.joined` gives. Pure; called by the route renderer only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pointsman.xds.api import Any, HttpRequestHeaderMatchInput, Matcher, pack

OnMatch = Matcher.OnMatch
Predicate = Matcher.MatcherList.Predicate

_INPUTS: dict[str, Any] = {}


def _input(header: str) -> Any:
    if header not in _INPUTS:
        _INPUTS[header] = pack(HttpRequestHeaderMatchInput(header_name=header))
    return _INPUTS[header]


def exact(header: str, value: str) -> Matcher.MatcherList.Predicate:
    """The header is exactly this value."""
    predicate = Predicate()
    _single(predicate, header).value_match.exact = value
    return predicate


def prefix(header: str, value: str) -> Matcher.MatcherList.Predicate:
    """The header starts with this value."""
    predicate = Predicate()
    _single(predicate, header).value_match.prefix = value
    return predicate


def regex(header: str, expression: str) -> Matcher.MatcherList.Predicate:
    """The whole header matches this RE2 expression; an absent header does not."""
    predicate = Predicate()
    value_match = _single(predicate, header).value_match
    value_match.safe_regex.google_re2.SetInParent()
    value_match.safe_regex.regex = expression
    return predicate


def contains(header: str, part: str) -> Matcher.MatcherList.Predicate:
    """The header contains this text."""
    predicate = Predicate()
    _single(predicate, header).value_match.contains = part
    return predicate


def present(header: str) -> Matcher.MatcherList.Predicate:
    """The header is there, even when empty (any bytes: RE2's `.` would want valid UTF-8)."""
    return regex(header, r"\C*")


def _single(predicate: Matcher.MatcherList.Predicate, header: str) -> Matcher.MatcherList.Predicate.SinglePredicate:
    single = predicate.single_predicate
    single.input.name = header
    single.input.typed_config.CopyFrom(_input(header))
    return single


def negate(predicate: Matcher.MatcherList.Predicate) -> Matcher.MatcherList.Predicate:
    """The predicate does not hold."""
    return Predicate(not_matcher=predicate)


def any_of(predicates: Iterable[Matcher.MatcherList.Predicate]) -> Matcher.MatcherList.Predicate:
    """At least one holds. A single predicate stays itself: Envoy wants two or more in a list."""
    listed = list(predicates)
    if len(listed) == 1:
        return listed[0]
    return Predicate(or_matcher=Predicate.PredicateList(predicate=listed))


def all_of(predicates: Iterable[Matcher.MatcherList.Predicate]) -> Matcher.MatcherList.Predicate:
    """All hold. A single predicate stays itself."""
    listed = list(predicates)
    if len(listed) == 1:
        return listed[0]
    return Predicate(and_matcher=Predicate.PredicateList(predicate=listed))


def act(action: Any) -> Matcher.OnMatch:
    """The end of the walk: this action (a packed Route)."""
    on_match = OnMatch()
    on_match.action.name = "route"
    on_match.action.typed_config.CopyFrom(action)
    return on_match


def tree(header: str, leaves: Mapping[str, Matcher.OnMatch], otherwise: Matcher.OnMatch) -> Matcher.OnMatch:
    """Exact values of one header; anything else, or no header, goes `otherwise`."""
    if not leaves:
        return otherwise
    matcher = Matcher(on_no_match=otherwise)
    matcher.matcher_tree.input.name = header
    matcher.matcher_tree.input.typed_config.CopyFrom(_input(header))
    for value, on_match in leaves.items():
        matcher.matcher_tree.exact_match_map.map[value].CopyFrom(on_match)
    return OnMatch(matcher=matcher)


def listing(
    cases: Iterable[tuple[Matcher.MatcherList.Predicate, Matcher.OnMatch]], otherwise: Matcher.OnMatch
) -> Matcher.OnMatch:
    """Predicates in order; the first that holds decides."""
    fields = [Matcher.MatcherList.FieldMatcher(predicate=predicate, on_match=on_match) for predicate, on_match in cases]
    if not fields:
        return otherwise
    return OnMatch(matcher=Matcher(matcher_list=Matcher.MatcherList(matchers=fields), on_no_match=otherwise))
