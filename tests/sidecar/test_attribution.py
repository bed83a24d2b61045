"""A log entry's row, arm and reason: what spans and metrics say of a request's way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pointsman.router.build import build_table
from pointsman.router.entry import RequestEntry
from pointsman.router.policy import CannedFallback, Intent, Match, Policy, QosClass
from pointsman.sidecar.attribution import Attribution
from sample_policies import EMBED, SUPPORT_POLICY, with_route

CANARY_LADDER = "ladder>support-chat@v2.3-beta>support-chat@v2.2>small-chat@v1>canned:503:2"
STABLE_LADDER = "ladder>support-chat@v2.2>small-chat@v1>canned:503:2"
STABLE_BYPASS = "ladder>small-chat@v1>canned:503:2"
DEFAULT_ROW = "support/support-chat/interactive/default"
NO_SERVER = {"target": None, "endpoint": None, "status": 503, "flags": ("UH",), "details": "no_healthy_upstream"}


def entry(**changes: object) -> RequestEntry:
    """A request of the stable arm that its first target answered; `changes` say what is different."""
    asked = RequestEntry(
        started_unix_ns=1_790_000_000_000_000_000,
        duration_ms=12.5,
        row=DEFAULT_ROW,
        ladder=STABLE_LADDER,
        target="support-chat@v2.2",
        endpoint="127.0.0.1:9001",
        status=200,
        flags=(),
        details="via_upstream",
        attempts=1,
        method="POST",
        path="/v1/chat/completions",
        request_id="id",
        params={"model": "support-chat"},
    )
    return replace(asked, **changes)  # type: ignore[arg-type]


def attribution(policy: Policy = SUPPORT_POLICY, before: Attribution | None = None) -> Attribution:
    return Attribution.of(policy, build_table(policy), before)


def reason_of(policy: Policy = SUPPORT_POLICY, **changes: object) -> str:
    return attribution(policy).routed(entry(**changes)).reason


def test_request_has_its_rows_route_class_and_provider() -> None:
    policy = replace(
        SUPPORT_POLICY, models=tuple(replace(model, provider="vllm") for model in SUPPORT_POLICY.models)
    )  # fmt: skip
    routed = attribution(policy).routed(entry())
    assert ("support", "interactive", "vllm", "support-chat") == (
        routed.route,
        routed.qos_class,
        routed.provider,
        routed.model,
    )


def test_row_without_classes_has_none() -> None:
    routed = attribution().routed(entry(row="embed/embedder/-/default", ladder="ladder>embedder@v1"))
    assert ("embed", None) == (routed.route, routed.qos_class)


REASONS = [
    ("stable arm, although its ladder is the canary's bypass", {}, "default"),
    ("canary arm", {"ladder": CANARY_LADDER, "target": "support-chat@v2.3-beta"}, "canary"),
    ("class by name", {"row": "support/support-chat/batch/named"}, "qos"),
    ("unusual row", {"row": "support/support-chat/interactive/unknown"}, "default;class=unknown"),
    (
        "canary of an unusual row",
        {
            "row": "support/support-chat/interactive/unknown",
            "ladder": CANARY_LADDER,
            "target": "support-chat@v2.3-beta",
        },
        "canary",
    ),
    (
        "pin",
        {"row": "support/support-chat/-/pin=v2.2", "ladder": "pin>support-chat@v2.2"},
        "pinned",
    ),
    ("stable answered for the canary", {"ladder": CANARY_LADDER}, "fallback"),
    ("second rung of stable", {"target": "small-chat@v1"}, "fallback"),
    ("canned rung", {"target": "canned", "status": 503}, "fallback"),
    ("bypassed arm", {"ladder": STABLE_BYPASS, "target": "small-chat@v1"}, "fallback"),
    ("no rung could be reached", NO_SERVER, "default"),
    ("ladder that the row does not have", {"ladder": "ladder>gone@v1"}, "default"),
    ("refused body", {"target": None, "status": 400, "details": "pointsman_body_malformed"}, "refused"),
    ("answer of the table on a known row", {"target": None, "details": "direct_response"}, "refused"),
    (
        "refusal of the table",
        {"row": "support-chat/unknown-version", "ladder": "", "target": None, "details": "direct_response"},
        "refused",
    ),
    ("refused before any row", {"row": "", "ladder": "", "target": None, "status": 400, "details": "x"}, "refused"),
    ("server's answer with a telling word in its details", {"details": "direct_response"}, "default"),
    ("list of models", {"row": "models", "ladder": "", "target": None, "details": "direct_response"}, "listed"),
    ("row that nobody knows", {"row": "gone/x/-/default"}, "unknown"),
]


@pytest.mark.parametrize(("changes", "reason"), [row[1:] for row in REASONS], ids=[row[0] for row in REASONS])
def test_reason(changes: dict[str, object], reason: str) -> None:
    assert reason == reason_of(**changes)


def test_canned_answer_as_first_rung_is_the_rows_own_reason() -> None:
    policy = with_route(
        qos=(QosClass("best", 100, min_quality=0.99),), default_qos="best", fallback=(CannedFallback(),)
    )
    row = {"row": "support/support-chat/best/unknown", "ladder": "ladder>canned:503:2", "target": "canned"}
    assert "fallback;class=unknown" == reason_of(policy, **row)


def test_canned_answer_names_no_model_of_the_policy() -> None:
    routed = attribution().routed(entry(target="canned", endpoint=None, status=503))
    assert (None, None) == (routed.model, routed.provider)


def test_unknown_row_leaves_its_facts_unknown_and_keeps_the_others() -> None:
    routed = attribution().routed(entry(row="gone/x/-/default", target="support-chat@v2.3-beta"))
    assert ("", None, False) == (routed.route, routed.qos_class, routed.is_canary)
    assert ("support-chat", "chat") == (routed.model, routed.intent)


@pytest.mark.parametrize(
    ("changes", "is_canary"),
    [
        ({"ladder": CANARY_LADDER, "target": "support-chat@v2.3-beta"}, True),
        ({"row": "support/support-chat/-/pin=v2.3-beta", "target": "support-chat@v2.3-beta"}, True),
        ({}, False),
        ({"ladder": CANARY_LADDER}, False),
        ({"ladder": CANARY_LADDER, "target": None}, False),
        ({"row": "embed/embedder/-/default", "target": "support-chat@v2.3-beta"}, False),
    ],
)
def test_canary_is_who_answered_not_who_was_meant(changes: dict[str, object], is_canary: bool) -> None:
    assert is_canary == attribution().routed(entry(**changes)).is_canary


def test_rows_of_the_table_before_stay_known() -> None:
    before = attribution()
    after = attribution(replace(SUPPORT_POLICY, routes=(EMBED,)), before)
    late = entry(ladder=CANARY_LADDER)
    assert ("support", "fallback", "interactive") == (
        (routed := after.routed(late)).route,
        routed.reason,
        routed.qos_class,
    )
    assert "unknown" == attribution(replace(SUPPORT_POLICY, routes=(EMBED,))).routed(late).reason


def test_a_row_that_both_tables_have_is_the_new_ones() -> None:
    after = attribution(with_route(canary=None), attribution())
    routed = after.routed(entry(ladder=CANARY_LADDER, target="support-chat@v2.3-beta"))
    assert "default" == routed.reason, "the new row has no canary arm"


def test_rows_of_older_tables_are_bounded() -> None:
    before = attribution()
    row = before.rows[DEFAULT_ROW]
    many = replace(before, rows={f"old/{number}": row for number in range(20_000)})
    assert "unknown" == attribution(before=many).routed(entry(row="old/7")).reason


@pytest.mark.parametrize(
    ("changes", "intent"),
    [
        ({}, "chat"),
        ({"path": "/v1/embeddings?x=1"}, "embed"),
        ({"headers": {"x-intent": "summarize"}}, "summarize"),
        ({"headers": {"x-intent": "sing"}}, "chat"),
        ({"path": "/custom"}, None),
        ({"path": "/custom", "headers": {"x-intent": "code"}}, "code"),
    ],
)
def test_intent_is_the_headers_else_the_paths(changes: dict[str, object], intent: str | None) -> None:
    assert intent == attribution().routed(entry(**changes)).intent


@pytest.mark.parametrize(
    ("params", "is_known"),
    [
        ({"model": "support-chat"}, True),
        ({"model": "small-chat"}, True),
        ({"model": "alias"}, True),
        ({"model": "nobody"}, False),
        ({"model": 7.0}, False),
        ({}, False),
    ],
)
def test_model_is_known_when_the_policy_names_it(params: dict[str, object], is_known: bool) -> None:
    policy = with_route(match=Match(intents=(Intent.CHAT,), models=("alias", "support-chat")))
    assert is_known == attribution(policy).routed(entry(params=params)).is_known_model
