"""Names across documents, and what is legal key by key but cannot be meant."""

from __future__ import annotations

import pytest
from pointsman.router.decode import decode
from pointsman.router.document import Document
from pointsman.router.problem import Severity
from pointsman.router.schema import API_VERSION
from policy_trees import document, lines_of, model, tree, version
from policy_trees import route as any_route


def route(name: str = "r", line: int = 1, **spec: object) -> Document:
    return any_route(name, line, **{"targets": ["big"], **spec})


BIG = model("big", version("v1"), version("v2"))
SMALL = model("small", version("v1", accepts=["small", "big"]))


def told(*documents: Document, severity: Severity = Severity.ERROR, has_all: bool = True) -> list[str]:
    return lines_of(decode(documents, has_all=has_all), severity)


ERRORS = [
    (
        [model("two", version("v1"), version("v2")), route(canary={"model": "two", "version": "v1"})],
        ["canary.model", '"two"', "one of the route's targets (big)"],
    ),
    ([route(canary={"model": "bigg", "version": "v1"})], ["canary.model", 'did you mean "big"']),
    ([route(canary={"model": "big", "version": "v7"})], ["canary.version", '"v7"', "a version of big: v1, v2"]),
    (
        [route(targets=["small"], canary={"model": "small", "version": "v1"})],
        ["canary.version", "only version of small", "stable version beside it"],
    ),
    ([route(defaultQos="fast")], ["spec.defaultQos", '"fast"', "there is none"]),
    (
        [route(defaultQos="fats", qos=[{"name": "fast", "latencyBudgetMs": 1}])],
        ["spec.defaultQos", '"fats"', 'did you mean "fast"'],
    ),
    ([route(fallback=[{"model": "smal"}])], ["fallback[0].model", 'did you mean "small"']),
    ([route(fallback=[{"model": "big"}])], ["fallback[0].model", "the route's only target"]),
    ([route(fallback=[{"version": "v3"}])], ["fallback[0].version", '"v3"', "v1, v2"]),
    ([route(targets=["small"], fallback=[{"version": "v1"}])], ["fallback[0].version", "only version"]),
    ([route(match={"models": ["bog"]})], ["match.models[0]", '"bog"', 'did you mean "big"']),
    ([document("AIModelProfile", "bigg", {})], ["AIModelProfile bigg metadata.name", 'did you mean "big"']),
    ([model("big", line=9)], ["p.yaml:9: Model big metadata.name", "taken already, at p.yaml:1"]),
    ([route("a"), route("a", line=8)], ["p.yaml:8: Route a", "taken already, at p.yaml:1"]),
    (
        [document("Settings", "a", {}), document("Settings", "b", {}, line=7)],
        ["p.yaml:7: Settings b", "a Settings already, at p.yaml:1"],
    ),
    (
        [route(canary={"model": "big", "version": "v2", "steps": [{"weight": 25}, {"weight": 5}]})],
        ["steps[1].weight", "5 is not more than the step before, 25"],
    ),
    ([document("Settings", "a", {"listen": "127.0.0.1:9001"})], ["address", "round in a circle"]),
]


@pytest.mark.parametrize(("documents", "words"), ERRORS)
def test_each_mistake_between_documents_is_named(documents: list[Document], words: list[str]) -> None:
    lines = told(BIG, SMALL, *documents)
    assert lines
    assert [word for word in words if word not in lines[0]] == [], lines[0]
    # The circle is told at each of the three endpoints.
    assert len(lines) == (3 if "round in a circle" in lines[0] else 1), lines


GOOD = [
    [route(canary={"model": "big", "version": "v2", "weight": 5})],
    [route(canary={"model": "big", "version": "v2"})],
    [route(qos=[{"name": "fast", "latencyBudgetMs": 1}])],
    [route(targets=["big", "small"], fallback=[{"model": "small"}])],
    [route(fallback=[{"version": "v1"}])],
    [route(match={"models": ["big"]})],
    [route(match={"models": ["latest"]}, rewriteModel=True)],
    [model("other", version(accepts=["alias"])), route(targets=["other"], match={"models": ["alias"]})],
    [route(), document("AIModelProfile", "big", {"precisionTolerance": 0.1})],
    [route("a", match={"paths": ["/a"]}), document("Settings", "a", {})],
]


@pytest.mark.parametrize("documents", GOOD)
def test_names_that_fit_give_no_problem(documents: list[Document]) -> None:
    assert decode([BIG, SMALL, *documents]).problems == ()


def test_a_model_that_failed_still_counts_as_known() -> None:
    broken = model("big", version("v1", quality=7), version("v2"), provder="x")
    lines = told(broken, route(canary={"model": "big", "version": "v2", "weight": 5}))
    assert [line for line in lines if "Route" in line] == []


def test_a_document_of_unknown_kind_may_be_the_model_that_is_named() -> None:
    unknown = document("Modell", "big", {})
    (line,) = told(unknown, route())
    assert '"Modell"' in line


def test_a_model_whose_name_is_a_number_is_still_known() -> None:
    numbered = Document(
        "p.yaml", 1, tree({"apiVersion": API_VERSION, "kind": "Model", "metadata": {"name": 7}, "spec": {}}, 1)
    )
    assert [line for line in told(numbered, route(targets=["7"])) if "Route" in line] == []


def test_an_unknown_target_does_not_make_the_canary_wrong_too() -> None:
    (line,) = told(BIG, route(targets=["bigg"], canary={"model": "big", "version": "v2"}))
    assert "spec.targets[0]" in line


def test_names_are_not_missed_while_part_of_the_policy_is_unreadable() -> None:
    assert told(route(fallback=[{"model": "small"}]), has_all=False) == []


def test_references_are_checked_in_a_document_with_other_mistakes() -> None:
    lines = told(BIG, route(targets=["big", "nowhere"], breaker={"openFor": "soon"}, defaultQos="none"))
    assert len(lines) == 3


def gpu_version(name: str, node: str, gpu: int, port: int) -> dict[str, object]:
    return version(name, endpoints=[{"address": f"127.0.0.1:{port}", "node": node, "gpus": [gpu]}])


WARNINGS = [
    (
        [BIG, model("small"), route(fallback=[{"model": "small"}])],
        ["fallback[0]", "can never apply", "small accepts small", "rewriteModel"],
    ),
    (
        [BIG, SMALL, route(fallback=[{"canned": {}}, {"model": "small"}])],
        ["fallback[1]", "never reached"],
    ),
    (
        [BIG, route(qos=[{"name": "slow", "latencyBudgetMs": 500}, {"name": "fast", "latencyBudgetMs": 100}])],
        ["qos[1]", "fast (100 ms) is listed after slow (500 ms)"],
    ),
    (
        [model("big", version(quality=0.5)), route(qos=[{"name": "good", "latencyBudgetMs": 1, "minQuality": 0.8}])],
        ["qos[0]", "stable version meets class good"],
    ),
    (
        [
            model("big", version(cost={"inputPerMillion": 1, "outputPerMillion": 9})),
            route(qos=[{"name": "cheap", "latencyBudgetMs": 1, "maxCostPerMillion": 2}]),
        ],
        ["qos[0]", "stable version meets class cheap"],
    ),
    (
        [
            model("big", version("v1", quality=0.5), version("v2", quality=0.9)),
            route(qos=[{"name": "good", "latencyBudgetMs": 1, "minQuality": 0.8}]),
        ],
        ["qos[0]", "stable version meets class good"],
    ),
    (
        [BIG, route("b", match={"intents": ["chat"]}), route("a", match={"intents": ["chat", "code"]})],
        ["Route b spec.match", "Route a", "a wins by name"],
    ),
    (
        [
            model("big", gpu_version("v1", "n", 0, 9001), gpu_version("v2", "n", 0, 9002)),
            route(canary={"model": "big", "version": "v2", "weight": 5}),
        ],
        ["canary.version", "v2 and v1 share n GPU 0", "CPU and memory only"],
    ),
    ([model("big", version(endpoints=[])), route()], ["versions[0].endpoints", "big@v1 has no endpoint"]),
    ([BIG], ["no Route", "404"]),
]


@pytest.mark.parametrize(("documents", "words"), WARNINGS)
def test_what_cannot_be_meant_is_a_warning(documents: list[Document], words: list[str]) -> None:
    decoded = decode(documents)
    assert decoded.policy is not None
    (line,) = told(*documents, severity=Severity.WARNING)
    assert [word for word in words if word not in line] == [], line


APART = [
    ({"intents": ["chat"]}, {"intents": ["code"]}),
    ({"paths": ["/a"]}, {"paths": ["/b", {"prefix": "/c"}]}),
    ({"paths": [{"prefix": "/a"}]}, {"paths": [{"prefix": "/b"}]}),
    ({"headers": [{"name": "x", "exact": "a"}]}, {"headers": [{"name": "x", "exact": "b"}]}),
    ({"headers": [{"name": "x", "range": [0, 5]}]}, {"headers": [{"name": "x", "range": [5, 9]}]}),
    ({"headers": [{"name": "x", "range": [0, 5]}]}, {"headers": [{"name": "x", "exact": "5"}]}),
    ({"models": ["big"]}, {"models": ["small"]}),
    ({"intents": ["chat"]}, {"intents": ["chat"], "paths": ["/a"]}),
]


@pytest.mark.parametrize(("one", "other"), APART)
def test_routes_that_cannot_meet_or_differ_in_conditions_are_no_overlap(one: object, other: object) -> None:
    assert told(BIG, SMALL, route("a", match=one), route("b", match=other), severity=Severity.WARNING) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"paths": [{"regex": "/(a+)+b"}]}, {"paths": ["/" + "a" * 200]}),
        ({"headers": [{"name": "x", "present": True}]}, {"headers": [{"name": "y", "exact": "a"}]}),
        ({"intents": ["chat"]}, {"paths": ["/a"]}),
        ({"headers": [{"name": "x", "range": [0, 6]}]}, {"headers": [{"name": "x", "exact": "5"}]}),
    ],
)
def test_routes_that_may_meet_are_an_overlap(one: object, other: object) -> None:
    assert len(told(BIG, route("a", match=one), route("b", match=other), severity=Severity.WARNING)) == 1


def test_unstated_quality_and_cost_meet_every_class() -> None:
    qos = [{"name": "good", "latencyBudgetMs": 1, "minQuality": 1, "maxCostPerMillion": 0}]
    assert told(BIG, route(qos=qos), severity=Severity.WARNING) == []
