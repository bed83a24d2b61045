"""What the table does with single requests: model, pin, route, class, split."""

import json

import pytest
from pointsman.router.build import build_table
from pointsman.router.decide import Decision, decide
from pointsman.router.policy import HeaderMatch, Intent, Match, MatchKind, PathMatch, Pin, PinMode, Route
from pointsman.router.request import Request
from sample_policies import EMBED, SUPPORT_POLICY, with_route

TABLE = build_table(SUPPORT_POLICY)
BODY = {"model": "support-chat", "messages": []}


def ask(
    *headers: tuple[str, str], body: object = BODY, path: str = "/v1/chat/completions", method: str = "POST"
) -> Decision:
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = (("content-type", "application/json"), *headers) if raw is not None else headers
    return decide(Request(method, path, sent, raw), TABLE)


@pytest.mark.parametrize("version", ["v2.2", "v2.3-beta"])
@pytest.mark.parametrize("name", ["model-version", "model_version"])
def test_a_pin_goes_to_its_version(version: str, name: str) -> None:
    decision = ask((name, version))
    assert (f"support-chat@{version}", "pinned") == (decision.target, decision.reason)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((("model-version", "v9"),), 404),
        ((("model-version", ""),), 404),
        ((("model-version", "v2.2"), ("model-version", "v2.3-beta")), 400),
        ((("model-version", "v2.2,v2.3-beta"),), 400),
        ((("model-version", "v2.2"), ("model_version", "v2.3-beta")), 400),
        ((("x-session-ttl", "soon"),), 400),
        ((("x-session-ttl", "0"),), 400),
        ((("x-session-ttl", "10"), ("x-session-ttl", "20")), 400),
    ],
)
def test_contradictions_and_unknowns_are_refused(headers: tuple[tuple[str, str], ...], status: int) -> None:
    refusal = ask(*headers).refusal
    assert refusal is not None
    assert status == refusal.status


def test_known_bug_19_a_repeated_equal_pin_is_that_pin_and_a_different_one_never_canary() -> None:
    same = ask(("model-version", "v2.3-beta"), ("model-version", "v2.3-beta"), ("model-version", "v2.3-beta"))
    assert same.target == "support-chat@v2.3-beta"
    different = ask(("model-version", "v2.2"), ("model-version", "v2.3-beta"))
    assert different.arm is None
    assert different.refusal is TABLE.contradictory_pin


def test_the_refusal_of_an_unknown_version_names_the_known_ones() -> None:
    refusal = ask(("model-version", "v9")).refusal
    assert refusal is not None
    assert "v2.2, v2.3-beta" in refusal.message


@pytest.mark.parametrize(
    ("headers", "qos", "reason"),
    [
        ((), "interactive", "default"),
        ((("x-qos-class", "batch"),), "batch", "qos"),
        ((("x-gateway-inference-objective", "batch"),), "batch", "qos"),
        ((("x-qos-class", "interactive"), ("x-gateway-inference-objective", "batch")), "interactive", "qos"),
        ((("x-qos-class", "gold"),), "interactive", "default;class=unknown"),
        ((("x-qos-class", "batch"), ("x-slo-ttft-ms", "100")), "batch", "qos"),
        ((("x-slo-ttft-ms", "6000"),), "batch", "qos"),
        ((("x-slo-ttft-ms", "5000"),), "batch", "qos"),
        ((("x-slo-ttft-ms", "4999.5"),), "interactive", "qos"),
        ((("x-qos-latency-ms", "200"),), "interactive", "qos"),
        ((("x-qos-min-quality", "80"), ("x-slo-ttft-ms", "9000")), "interactive", "qos"),
        ((("x-qos-min-quality", "80.5"),), "interactive", "qos;class=unmet"),
        ((("x-slo-ttft-ms", "50"),), "interactive", "qos;class=unmet"),
        ((("x-slo-ttft-ms", "fast"),), "interactive", "qos;class=unreadable"),
        ((("x-slo-ttft-ms", "100"), ("x-slo-ttft-ms", "9000")), "interactive", "qos;class=unreadable"),
    ],
)
def test_classes_by_name_and_by_number(headers: tuple[tuple[str, str], ...], qos: str, reason: str) -> None:
    decision = ask(*headers, ("x-context-id", "ctx-1"))
    assert decision.row is not None
    assert decision.row.qos is not None
    assert (qos, reason) == (decision.row.qos.name, decision.row.label)


@pytest.mark.parametrize(
    ("path", "headers", "route"),
    [
        ("/v1/chat/completions", (), "support"),
        ("/v1/chat/completions?api=1", (), "support"),
        ("/v1/embeddings", (), "embed"),
        ("/v1/embeddings", (("x-intent", "chat"),), "support"),
        ("/v1/chat/completions", (("x-intent", "embed"),), "embed"),
        ("/v1/chat/completions", (("x-intent", "sing"),), "support"),
        ("/v1/chat/completions", (("x-intent", "embed"), ("x-intent", "chat")), "support"),
        ("/elsewhere", (("x-intent", "summarize"),), "support"),
    ],
)
def test_intent_by_header_else_by_path(path: str, headers: tuple[tuple[str, str], ...], route: str) -> None:
    decision = ask(*headers, body={"messages": []}, path=path)
    assert decision.row is not None
    assert route == decision.row.route


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/elsewhere", ()), ("/v1/chat/completions", (("x-intent", "rerank"),)), ("/v1/images/generations", ())],
)
def test_a_path_that_no_route_takes_is_404(path: str, headers: tuple[tuple[str, str], ...]) -> None:
    refusal = ask(*headers, body={"input": "x"}, path=path).refusal
    assert refusal is not None
    assert refusal.status == 404


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({"model": "auto"}, 200),
        ({}, 200),
        ({"model": "support-chat"}, 200),
        ({"model": "nobody"}, 404),
        ({"model": "m\u00fcnchen"}, 404),
        ({"model": ""}, 404),
        ({"model": "x" * 60_000}, 400),
        ({"model": None}, 400),
        ({"model": ["support-chat"]}, 400),
        (b"", 400),
        (b"[]", 400),
        (b'{"model": "support-chat"', 400),
        (b'{"model": "nobody", "model": "support-chat"}', 200),
        (b'{"model": "support-chat", "model": "nobody"}', 404),
        (b'{"mo\\u0064el": "nobody"}', 404),
        (b'{"temperature": NaN}', 400),
        (b'{"temperature": 1e400}', 200),
        (b'{"x": ' + b"[" * 600 + b"]" * 600 + b"}", 400),
    ],
)
def test_bodies(body: object, outcome: int) -> None:
    decision = ask(body=body)
    assert outcome == (decision.refusal.status if decision.refusal else 200)


def test_known_bug_23_the_body_wins_over_a_client_s_routing_header() -> None:
    assert ask(("x-pm-model", "embedder"), ("x-context-id", "a")).row is not None
    decision = ask(("x-pm-model", "support-chat"), body={"model": "nobody"})
    assert decision.refusal is TABLE.unknown_model


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "multipart/form-data; boundary=x"])
def test_another_content_type_on_a_json_path_is_415(content_type: str) -> None:
    refusal = decide(Request(headers=(("content-type", content_type),), body=b"{}"), TABLE).refusal
    assert refusal is not None
    assert refusal.status == 415


def test_an_encoded_body_is_routed_by_headers() -> None:
    headers = (("content-type", "application/json"), ("content-encoding", "gzip"), ("x-context-id", "a"))
    assert decide(Request(headers=headers, body=b"\x1f\x8b"), TABLE).refusal is None


def test_without_the_scanner_the_body_is_not_looked_at() -> None:
    request = Request(
        headers=(("content-type", "application/json"), ("x-context-id", "a")), body=b'{"model": "nobody"}'
    )
    assert decide(request, TABLE, reads_body=False).refusal is None


def test_each_context_stays_on_its_side_and_growing_only_adds() -> None:
    def canary_keys(parts: int) -> set[int]:
        canary = with_route().routes[0].canary
        assert canary is not None
        table = build_table(with_route(canary=type(canary)("support-chat", "v2.3-beta", weight_parts=parts)))
        chosen = set()
        for key in range(2000):
            decision = decide(Request(headers=(("x-context-id", f"ctx-{key}"),), body=b"{}"), table)
            if decision.target == "support-chat@v2.3-beta":
                chosen.add(key)
        return chosen

    at_0, at_5, at_25, at_100 = (canary_keys(parts) for parts in (0, 500, 2500, 10_000))
    assert not at_0
    assert 60 <= len(at_5) <= 140
    assert at_5 < at_25
    assert len(at_100) == 2000


def test_known_bug_26_both_sides_are_sticky() -> None:
    first = [ask(("x-context-id", f"c{n}")).target for n in range(200)]
    for _ in range(3):
        assert first == [ask(("x-context-id", f"c{n}")).target for n in range(200)]


def test_without_a_sticky_key_the_split_is_random_and_says_so() -> None:
    decision = ask()
    assert decision.arm is None
    assert decision.row is not None
    assert "random: support-chat@v2.3-beta 5 %, support-chat@v2.2 95 %" == decision.steps[-1].finding


def test_the_first_sticky_header_present_decides() -> None:
    by_context = ask(("x-context-id", "a"), ("x-session-id", "b")).target
    assert by_context == ask(("x-context-id", "a"), ("x-session-id", "other")).target


def test_the_list_of_models_is_answered_from_policy() -> None:
    decision = ask(body=None, path="/v1/models", method="GET")
    assert decision.listed_models == ("embedder", "support-chat")


def test_more_conditions_go_first_then_names() -> None:
    by_header = Route(
        name="zz-gold",
        targets=("small-chat",),
        match=Match(intents=(Intent.CHAT,), headers=(HeaderMatch("x-tier", MatchKind.EXACT, "gold"),)),
    )
    by_path = Route(name="aa-path", targets=("embedder",), match=Match(paths=(PathMatch(MatchKind.PREFIX, "/v1/"),)))
    policy = with_route()
    table = build_table(type(policy)(policy.models, (*policy.routes, by_header, by_path), (), policy.settings))

    def route(*headers: tuple[str, str]) -> str:
        row = decide(Request(headers=headers, body=b"{}"), table).row
        assert row is not None
        return row.route

    assert route(("x-tier", "gold")) == "zz-gold"
    assert route(("x-tier", "silver")) == "aa-path"


@pytest.mark.parametrize(
    ("value", "taken"), [("150", True), ("100", True), ("199.5", True), ("200", False), ("x", False)]
)
def test_a_range_condition_is_half_open(value: str, taken: bool) -> None:
    match = Match(headers=(HeaderMatch("x-size", MatchKind.RANGE, range_start=100, range_end=200),))
    table = build_table(with_route(match=match))
    decision = decide(Request(headers=(("x-size", value), ("x-context-id", "a")), body=b"{}"), table)
    assert taken == (decision.row is not None)


def test_a_ladder_pin_has_the_routes_rungs() -> None:
    table = build_table(with_route(pin=Pin(mode=PinMode.LADDER)))
    decision = decide(Request(headers=(("model-version", "v2.2"),), body=b"{}"), table)
    assert decision.arm is not None
    assert decision.arm.ladder.name == "pin>support-chat@v2.2>small-chat@v1>canned:503:2"


def test_a_route_without_classes_has_one_row() -> None:
    row = ask(body={"input": "x"}, path="/v1/embeddings").row
    assert row is not None
    assert (EMBED.name, None, ()) == (row.route, row.qos, row.stick_by)
