"""Builders of matcher trees: what each becomes. That Envoy walks them as `decide` does is shown in differential/."""

from __future__ import annotations

import pytest
from golden import as_json
from pointsman.xds.api import Any, Matcher, Route, pack, unpack
from pointsman.xds.matchers import act, all_of, any_of, contains, exact, listing, negate, prefix, present, regex, tree

A, B, C = exact("x-a", "1"), exact("x-b", "2"), exact("x-c", "3")


def to(name: str) -> Matcher.OnMatch:
    """An end of the walk that can be told from others."""
    return act(pack(Route(name=name)))


def name_of(on_match: Matcher.OnMatch) -> str:
    return unpack(on_match.action.typed_config, Route).name


KINDS = [
    (exact("x-a", "v"), {"exact": "v"}),
    (exact("x-a", ""), {"exact": ""}),
    (prefix("x-a", "v"), {"prefix": "v"}),
    (contains("x-a", "v"), {"contains": "v"}),
    (regex("x-a", "v+"), {"safe_regex": {"google_re2": {}, "regex": "v+"}}),
    (present("x-a"), {"safe_regex": {"google_re2": {}, "regex": r"\C*"}}),
]


@pytest.mark.parametrize(("predicate", "value_match"), KINDS)
def test_predicate_compares_the_header_as_said(
    predicate: Matcher.MatcherList.Predicate, value_match: dict[str, object]
) -> None:
    header = {
        "@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
        "header_name": "x-a",
    }
    assert {
        "single_predicate": {"input": {"name": "x-a", "typed_config": header}, "value_match": value_match}
    } == as_json(predicate)


def test_every_header_is_its_own_input() -> None:
    single = {name: exact(name, "1").single_predicate.input for name in ("x-a", "x-b", "x-a")}
    assert {"x-a": "x-a", "x-b": "x-b"} == {
        name: as_json(found)["typed_config"]["header_name"]  # type: ignore[index]
        for name, found in single.items()
    }


def test_negation_holds_what_must_not_be() -> None:
    assert A == negate(A).not_matcher
    assert "not_matcher" == negate(A).WhichOneof("match_type")


@pytest.mark.parametrize(("combine", "kind"), [(any_of, "or_matcher"), (all_of, "and_matcher")])
def test_several_predicates_are_a_list_in_order_and_one_stays_itself(combine: object, kind: str) -> None:
    assert callable(combine)
    several = combine(iter((B, A, C)))
    assert kind == several.WhichOneof("match_type")
    assert [B, A, C] == list(getattr(several, kind).predicate)
    assert A == combine([A])


def test_end_of_the_walk_is_the_action() -> None:
    packed = pack(Route(name="there"))
    on_match = act(packed)
    assert ("action", "route") == (on_match.WhichOneof("on_match"), on_match.action.name)
    assert isinstance(on_match.action.typed_config, Any)
    assert packed == on_match.action.typed_config


def test_tree_has_a_leaf_for_each_value_and_the_rest_otherwise() -> None:
    matcher = tree("x-a", {"1": to("one"), "2": to("two")}, to("rest")).matcher
    assert "x-a" == as_json(matcher.matcher_tree.input)["typed_config"]["header_name"]  # type: ignore[index]
    leaves = matcher.matcher_tree.exact_match_map.map
    assert {"1": "one", "2": "two"} == {value: name_of(leaves[value]) for value in leaves}
    assert "rest" == name_of(matcher.on_no_match)


def test_list_keeps_its_order_and_the_rest_goes_otherwise() -> None:
    matcher = listing(iter([(B, to("b")), (A, to("a")), (B, to("late"))]), to("rest")).matcher
    fields = matcher.matcher_list.matchers
    assert [(B, "b"), (A, "a"), (B, "late")] == [(field.predicate, name_of(field.on_match)) for field in fields]
    assert "rest" == name_of(matcher.on_no_match)


def test_nothing_to_choose_is_the_rest_alone() -> None:
    """Envoy refuses a tree or a list without entries."""
    assert ["rest", "rest"] == [name_of(found) for found in (tree("x-a", {}, to("rest")), listing([], to("rest")))]


def test_trees_can_be_leaves_of_trees_and_lists() -> None:
    inner = tree("x-b", {"2": to("both")}, to("rest"))
    outer = listing([(A, tree("x-a", {"1": inner}, to("rest")))], to("rest"))
    found = outer.matcher.matcher_list.matchers[0].on_match.matcher.matcher_tree.exact_match_map.map["1"]
    assert inner == found


def test_what_was_built_is_not_shared() -> None:
    leaf = to("one")
    built = tree("x-a", {"1": leaf}, to("rest"))
    leaf.action.name = "changed"
    exact("x-a", "1").single_predicate.input.typed_config.Clear()
    assert "route" == built.matcher.matcher_tree.exact_match_map.map["1"].action.name
    assert "x-a" == as_json(exact("x-a", "1").single_predicate.input)["typed_config"]["header_name"]  # type: ignore[index]
