"""Documents → policy values; each mistake is named where it stands, with what is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pointsman.router.decode import decode
from pointsman.router.document import Document, Entry, Fields, Items, Node, Unreadable, Value
from pointsman.router.policy import (
    Analysis,
    Breaker,
    CachedFallback,
    Canary,
    CannedFallback,
    Cost,
    Endpoint,
    HeaderMatch,
    Intent,
    LoopMode,
    Match,
    MatchKind,
    ModelFallback,
    Modes,
    PathMatch,
    Policy,
    Protocol,
    QosClass,
    Retries,
    Route,
    Settings,
    SiteFallback,
    Slice,
    Step,
    Timeouts,
    VersionFallback,
)
from pointsman.router.problem import Code
from pointsman.router.reading import MAX_PROBLEMS
from pointsman.router.schema import API_VERSION
from policy_trees import document, lines_of, model, route, settings_of, tree, version


def one_version(**fields: object) -> Document:
    return model("m", version(fields.pop("name", "v1"), **fields))


def accepted(*documents: Document) -> Policy:
    decoded = decode(documents)
    assert lines_of(decoded) == []
    assert decoded.policy is not None
    return decoded.policy


def only_route(*documents: Document) -> Route:
    return accepted(*documents).routes[0]


def test_absent_keys_give_the_defaults() -> None:
    policy = accepted(model(), route(), settings_of())
    assert Settings() == policy.settings
    assert Route("r", ("m",)) == policy.routes[0]
    assert policy.models[0].versions[0].accepts == ("m",)


def test_every_key_of_a_version_reaches_its_value() -> None:
    made = (
        accepted(
            one_version(
                accepts=["m", "alias"],
                quality=0.9,
                precision="fp16",
                precisionLoss=0.001,
                throughputQPS=60,
                cost={"inputPerMillion": 0.2, "outputPerMillion": 1},
                protocol="http2",
                slice={
                    "cgroup": "ml-gray-v2",
                    "cpuMax": "100000 100000",
                    "memoryMax": "2Gi",
                    "mark": 0x8001,
                    "markMask": 0xFFFF,
                },
                endpoints=[{"address": "[::1]:9001", "node": "node-a", "gpus": [0, 1]}],
            )
        )
        .models[0]
        .versions[0]
    )
    assert (Endpoint("[::1]:9001", "node-a", (0, 1)),) == made.endpoints
    assert Cost(0.2, 1.0) == made.cost
    assert Protocol.HTTP2 is made.protocol
    assert Slice("ml-gray-v2", "100000 100000", 2 << 30, 0x8001, 0xFFFF) == made.slice
    assert (
        made.accepts,
        made.quality,
        made.precision,
        made.precision_loss,
        made.throughput_qps,
    ) == (("m", "alias"), 0.9, "fp16", 0.001, 60.0)


def test_every_key_of_a_route_reaches_its_value() -> None:
    two = (version("v1"), version("v2"))
    made = only_route(
        model("m", *two),
        model("other"),
        route(
            targets=["m", "other"],
            match={
                "intents": ["chat", "code"],
                "models": ["m"],
                "paths": ["/a", {"prefix": "/b"}, {"regex": "/c/[0-9]+"}],
                "headers": [
                    {"name": "X-Tier", "exact": "gold"},
                    {"name": "x-n", "range": [1, 10]},
                    {"name": "x-p", "present": True},
                ],
            },
            qos=[{"name": "fast", "latencyBudgetMs": 120, "minQuality": 0, "priority": 10, "maxCostPerMillion": 2}],
            defaultQos="fast",
            canary={
                "model": "m",
                "version": "v2",
                "stickBy": ["x-a"],
                "steps": [{"weight": 0.5, "hold": "10m"}, {"weight": 100}],
                "analysis": {"window": "30s"},
            },
            fallback=[
                {"version": "v1"},
                {"model": "other"},
                {"cached": {"maxAge": "1h"}},
                {"site": {"url": "https://example.com"}},
                {"canned": {"status": 429, "retryAfter": 7}},
            ],
            retries={"max": 0, "retryOn": ["5xx", "429", "507"], "lowConfidenceBelow": 0.5},
            breaker={"windows": ["1s", "2s"], "recoverStep": 12.25, "percentiles": "source"},
            timeouts={"firstByte": "0s", "idle": "250ms", "total": "10m"},
            rewriteModel=True,
            scorers={"headroom": 2},
        ),
    )
    assert (
        Match(
            (Intent.CHAT, Intent.CODE),
            ("m",),
            (
                PathMatch(MatchKind.EXACT, "/a"),
                PathMatch(MatchKind.PREFIX, "/b"),
                PathMatch(MatchKind.REGEX, "/c/[0-9]+"),
            ),
            (
                HeaderMatch("x-tier", MatchKind.EXACT, "gold"),
                HeaderMatch("x-n", MatchKind.RANGE, range_start=1, range_end=10),
                HeaderMatch("x-p", MatchKind.PRESENT),
            ),
        )
        == made.match
    )
    assert (QosClass("fast", 120, 0.0, 2.0, 10),) == made.qos
    steps = (Step(50, 600_000), Step(10_000))
    assert Canary("m", "v2", stick_by=("x-a",), steps=steps, analysis=Analysis(30_000)) == made.canary
    assert (
        VersionFallback("v1"),
        ModelFallback("other"),
        CachedFallback(3_600_000),
        SiteFallback("https://example.com"),
        CannedFallback(429, 7),
    ) == made.fallback
    assert Retries(0, ("5xx", "429", "507"), 0.5) == made.retries
    assert Breaker(windows_ms=(1_000, 2_000), recover_step_parts=1_225, percentiles_source=True) == made.breaker
    assert Timeouts(0, 250, 600_000) == made.timeouts
    assert (made.rewrite_model, made.scorers) == (True, (("headroom", 2.0),))


def test_one_word_sets_all_modes() -> None:
    observe = LoopMode.OBSERVE
    assert Modes(observe, observe, observe) == accepted(settings_of(mode="observe")).settings.mode
    assert Modes(breaker=observe) == accepted(settings_of(mode={"breaker": "observe"})).settings.mode


def test_all_problems_of_a_policy_are_told_at_once_in_order() -> None:
    decoded = decode(
        [
            model(line=1, provder="vllm", maxInputTokens=0),
            route(line=10, targets=["n"], defaultQos="none", breaker={"errorRatio": "lots", "openFor": "5parsecs"}),
            document("Setings", "default", {"listen": 1}, line=20),
        ]
    )
    assert {"provder", "found 0", '"n"', '"none"', '"lots"', '"5parsecs"', '"Setings"'} == {
        next(
            word
            for word in ("provder", '"n"', '"none"', '"lots"', '"5parsecs"', '"Setings"', "found 0")
            if word in line
        )
        for line in lines_of(decoded)
    }
    assert sorted(problem.line for problem in decoded.problems) == [problem.line for problem in decoded.problems]


def test_a_value_that_the_shell_refused_is_not_reported_again() -> None:
    root = tree({"apiVersion": API_VERSION, "kind": "Settings", "metadata": {"name": "a"}})
    assert isinstance(root, Fields)
    spec = Entry("spec", 1, Fields(1, (Entry("answerHeaders", 1, Unreadable(1)),)))
    decoded = decode([Document("p.yaml", 1, Fields(1, (*root.entries, spec)))])
    assert [] == lines_of(decoded)


@pytest.mark.parametrize(
    "auth",
    [
        "sk-secret",
        ["sk-secret"],
        {"secretFile": ["sk-secret"]},
        {"sk-secret": None},
        {"secretFile": "/k", "key": "sk-secret"},
        {"secretFile": {"a": "sk-secret"}},
        {"secretFile": "sk-secret\n"},
        {"secretFile": "/k", "sk-secret": 1},
    ],
)
def test_nothing_below_auth_is_shown(auth: object) -> None:
    decoded = decode([one_version(auth=auth)])
    assert decoded.policy is None
    assert decoded.problems
    for problem in decoded.problems:
        assert "sk-secret" not in problem.render() + str(problem.as_json())


def test_a_problem_reads_as_one_line_and_as_json() -> None:
    (problem,) = decode([model(line=17, provder="x")]).problems[:1]
    assert problem.render().startswith(
        "p.yaml:17: Model m spec.provder: found an unknown key, expected one of versions, "
    )
    assert problem.render().endswith('; did you mean "provider"?')
    told = problem.as_json()
    assert tuple(told[name] for name in ("severity", "code", "file", "line", "document", "path", "nearest")) == (
        "error",
        "unknown-key",
        "p.yaml",
        17,
        "Model m",
        "spec.provder",
        "provider",
    )


def test_a_found_text_cannot_break_the_line() -> None:
    problem, _ = decode(
        [settings_of(answerHeaders="a\n\x1b[31m\u2028\ud800" + "x" * 500)]
    ).problems  # the other one: no Route
    assert problem.render().isprintable()
    assert len(problem.render()) < 200


def test_problems_are_counted_out_past_the_limit() -> None:
    wrong = {f"key{number}": 1 for number in range(3 * MAX_PROBLEMS)}
    decoded = decode([settings_of(**wrong)])
    assert len(decoded.problems) == MAX_PROBLEMS + 1
    assert Code.TOO_MANY is decoded.problems[-1].code


UNUSED = [
    ("residency", [model(residency="onDemand")]),
    ("capability", [model(capability={"openapi": "./a.yaml"})]),
    ("placement", [model(placement={"prefer": ["l4"]})]),
    ("slice", [one_version(slice={"cgroup": "a"})]),
    ("rules", [model(), route(rules=[{"when": "x", "to": "m"}])]),
    ("require", [model(), route(require={"sameNuma": True})]),
    ("scorers", [model(), route(scorers={"a": 1})]),
    ("breaker", [model(), route(breaker={"hard": True})]),
    ("maxConcurrency", [model(), route(pin={"maxConcurrency": 5})]),
    ("cached", [model(), route(fallback=[{"cached": {"maxAge": "1s"}}])]),
    ("site", [model(), route(fallback=[{"site": {"url": "http://a"}}])]),
]


@pytest.mark.parametrize(("word", "documents"), UNUSED)
def test_a_key_without_effect_is_a_warning(word: str, documents: list[Document]) -> None:
    decoded = decode(documents)
    assert decoded.policy is not None
    warnings = [problem.render() for problem in decoded.problems if problem.code is Code.NO_EFFECT]
    assert len(warnings) == 1
    assert word in warnings[0]
    assert "accepted, no effect in this version" in warnings[0]


def test_a_key_without_effect_is_told_once_with_its_count() -> None:
    routes = [route(name, match={"paths": [f"/{name}"]}, breaker={"hard": True}) for name in ("a", "b", "c")]
    warnings = [problem.message for problem in decode([model(), *routes]).problems]
    assert warnings == ["accepted, no effect in this version (also in 2 other places)"]


@pytest.mark.parametrize(
    "documents",
    [
        [model(residency="resident"), route()],
        [model(), route(rules=[], require={}, scorers={})],
        [model(), route(), settings_of(tracing={"captureContent": False})],
    ],
)
def test_a_key_that_asks_for_nothing_is_no_warning(documents: list[Document]) -> None:
    assert decode(documents).problems == ()


WORDS = st.sampled_from(
    [
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        "name",
        "versions",
        "endpoints",
        "address",
        "match",
        "headers",
        "regex",
        "canary",
        "weight",
        "steps",
        "fallback",
        "version",
        "model",
        "auth",
        "secretFile",
        "qos",
        "retries",
        "mode",
        API_VERSION,
        "Model",
        "Route",
        "Settings",
        "AIModelProfile",
        "targets",
        "paths",
        "range",
        "scorers",
        "slice",
        "m",
        "5s",
        "2Gi",
    ]
)
SCALARS = WORDS | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
LINES = st.integers(1, 1_000)


def _trees(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    entries = st.lists(
        st.builds(Entry, WORDS | st.text(max_size=8), LINES, children), max_size=6, unique_by=lambda entry: entry.key
    )
    lists = st.lists(children, max_size=4)
    return st.builds(Items, LINES, lists.map(tuple)) | st.builds(Fields, LINES, entries.map(tuple))


TREES: st.SearchStrategy[Node] = st.recursive(
    st.builds(lambda line, value: Value(line, value, str(value)), LINES, SCALARS) | st.builds(Unreadable, LINES),
    _trees,
    max_leaves=25,
)


@st.composite
def documents_with_a_head(draw: st.DrawFn) -> Document:
    head = {"apiVersion": API_VERSION, "kind": draw(st.sampled_from(["Model", "Route", "Settings", "AIModelProfile"]))}
    root = tree({**head, "metadata": {"name": "m"}})
    assert isinstance(root, Fields)
    return Document("p.yaml", 1, Fields(1, (*root.entries, Entry("spec", 1, draw(TREES)))))


@given(st.lists(st.builds(Document, st.just("p.yaml"), LINES, TREES) | documents_with_a_head(), max_size=3))
@settings(max_examples=300, deadline=None)
def test_no_tree_raises_and_every_problem_has_its_place(documents: list[Document]) -> None:
    for problem in decode(documents).problems:
        assert problem.file == "p.yaml"
        assert problem.line >= 1
        assert problem.message
        assert problem.render().isprintable()
