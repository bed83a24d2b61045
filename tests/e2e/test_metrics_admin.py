"""The admin server against what really happened: metrics, the table, explanations, xDS status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from pointsman.sidecar.admin import PAGES
from stack import CANARY, CHAT, SMALL, STABLE, Mirror, Stack, until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

SAMPLE = re.compile(r"^(\w+)(?:\{(.*?)\})? (\S+)(?: # .*)?$")
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


async def value(stack: Stack, name: str, **labels: str) -> float:
    """The sum of the samples of that name that have these labels."""
    total = 0.0
    for line in (await stack.admin("/metrics")).body.decode().splitlines():
        match = SAMPLE.match(line)
        if match is None or match[1] != name:
            continue
        found = dict(re.findall(r'(\w+)="(.*?)"', match[2] or ""))
        if labels.items() <= found.items():
            total += float(match[3])
    return total


class Delta:
    """How much a metric grows from here on."""

    def __init__(self, stack: Stack, name: str, **labels: str) -> None:
        self._stack, self._name, self._labels = stack, name, labels
        self._before = 0.0

    async def start(self) -> Delta:
        self._before = await self.now()
        return self

    async def now(self) -> float:
        return await value(self._stack, self._name, **self._labels) - self._before

    async def reaches(self, expected: float) -> None:
        """Wait until it grew by that much, and not more."""

        async def is_there() -> bool:
            return await self.now() >= expected

        await until(is_there)
        assert expected == await self.now()


# ---- metrics


async def test_requests_are_counted_as_clients_saw_them(stack: Stack) -> None:
    requests = "pointsman_requests_total"
    pinned = await Delta(stack, requests, route="support", target=CANARY, reason="pinned", code_class="2xx").start()
    refused = await Delta(stack, requests, target="none", reason="refused", code_class="4xx").start()
    fallback = await Delta(stack, requests, route="busy", target=SMALL, reason="fallback", code_class="2xx").start()
    for _ in range(3):
        await stack.chat({"model-version": "v2.3-beta"})
    for _ in range(2):
        await stack.chat(model="nobody")
    await stack.chat(model="busy-chat")
    await pinned.reaches(3)
    await refused.reaches(2)
    await fallback.reaches(1)


async def test_refused_bodies_are_counted_as_refused(stack: Stack) -> None:
    refused = await Delta(stack, "pointsman_requests_total", target="none", reason="refused", code_class="4xx").start()
    await stack.post(b"{")
    await stack.ask("POST", CHAT, data=b"{}", headers={"content-type": "text/plain"})
    await refused.reaches(2)


async def test_tries_are_counted_by_who_made_them(stack: Stack) -> None:
    failed = await Delta(stack, "pointsman_tries_total", target="busy-chat@v1", outcome="failure").start()
    repaired = await Delta(stack, "pointsman_tries_total", target=SMALL, outcome="success").start()
    down = await Delta(stack, "pointsman_tries_total", target="down-chat@v1", outcome="failure").start()
    for _ in range(4):
        await stack.chat(model="busy-chat")
    await stack.chat(model="down-chat")
    await failed.reaches(4)
    await repaired.reaches(5)
    await down.reaches(1)


async def test_client_errors_and_rate_limits_are_no_failures(stack: Stack, mirror: Mirror) -> None:
    # known bug 34
    failures = await Delta(stack, "pointsman_tries_total", target="mirror@v1", outcome="failure").start()
    successes = await Delta(stack, "pointsman_tries_total", target="mirror@v1", outcome="success").start()
    rejected = await Delta(stack, "pointsman_tries_total", target="mirror@v1", outcome="rejected").start()
    for status in (400, 422, 429):
        mirror.status = status
        assert status == (await stack.chat(model="mirror")).status
    await successes.reaches(2)
    await rejected.reaches(1)
    assert 0 == await failures.now()


async def test_tokens_and_times_are_counted_by_target(stack: Stack) -> None:
    labels = {"target": STABLE, "gen_ai_operation_name": "chat", "gen_ai_request_model": "support-chat"}
    usage = "gen_ai_client_inference_usage"
    read = await Delta(stack, f"{usage}_input_tokens_total", **labels).start()
    written = await Delta(stack, f"{usage}_output_tokens_total", **labels).start()
    duration = await Delta(stack, "gen_ai_server_request_duration_seconds_count", **labels).start()
    first = await Delta(stack, "gen_ai_server_time_to_first_token_seconds_count", **labels).start()
    await stack.chat({"model-version": "v2.2"}, max_tokens=9)
    await stack.chat({"model-version": "v2.2"}, stream=True, stream_options={"include_usage": True})
    await duration.reaches(2)
    await read.reaches(8)
    await written.reaches(9 + 16)
    await first.reaches(1)


async def test_confidence_and_entropy_of_servers_are_shown_after_failures_too(stack: Stack, mirror: Mirror) -> None:
    for mirror.status in (400, 404, 409, 422, 500, 503):
        await stack.chat(model="mirror")
    confidence = await Delta(stack, "pointsman_model_confidence_count", target=STABLE).start()
    entropy = await Delta(stack, "pointsman_model_logit_entropy_sum", target=STABLE).start()
    await stack.control("STABLE", confidence=0.9, entropy=1.5)
    try:
        answer = await stack.chat({"model-version": "v2.2"})
    finally:
        await stack.control("STABLE", confidence=None, entropy=None)
    assert ("0.9", "1.5") == (answer.headers["x-model-confidence"], answer.headers["x-model-logit-entropy"])
    await confidence.reaches(1)
    await entropy.reaches(1.5)


async def test_openmetrics_has_exemplars_that_lead_to_the_trace(stack: Stack) -> None:
    answer = await stack.chat({"model-version": "v2.2"})
    trace_id = answer.headers["x-trace-id"]

    async def has_exemplar() -> bool:
        return f'trace_id="{trace_id}"'.encode() in (await stack.admin("/metrics", headers=OPENMETRICS)).body

    await until(has_exemplar)
    page = await stack.admin("/metrics", headers=OPENMETRICS)
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    assert page.body.endswith(b"# EOF\n")


async def test_plain_metrics_name_no_unknown_client_words(stack: Stack) -> None:
    refused = await Delta(stack, "pointsman_requests_total", reason="refused").start()
    await stack.chat(model="made-up-model")
    await refused.reaches(1)
    page = await stack.admin("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    assert b"made-up-model" not in page.body
    assert b"# EOF" not in page.body


async def test_envoy_is_on_the_newest_table(stack: Stack) -> None:
    async def is_confirmed() -> bool:
        return await value(stack, "pointsman_xds_pushes_total") == await value(stack, "pointsman_xds_acks_total")

    await until(is_confirmed)
    assert 1 <= await value(stack, "pointsman_xds_pushes_total")
    assert 0 == await value(stack, "pointsman_xds_nacks_total")
    assert 0 == await value(stack, "pointsman_log_gaps_total")
    assert 0 == await value(stack, "pointsman_envoy_restarts_total")


# ---- table and xDS


async def test_table_tells_arms_in_parts_of_ten_thousand(stack: Stack) -> None:
    table = (await stack.admin("/table")).json()
    rows = {row["name"]: row for row in table["rows"]}
    assert {10_000} == {sum(arm["base"] for arm in row["arms"]) for row in rows.values()}
    split = rows["support/support-chat/interactive/default"]
    assert [(CANARY, 500, "canary"), (STABLE, 9_500, "default")] == [
        (arm["target"], arm["base"], arm["reason"]) for arm in split["arms"]
    ]
    assert ["x-context-id", "x-session-id"] == split["stickBy"]
    addresses = {(endpoint["target"], endpoint["address"]) for endpoint in table["endpoints"]}
    assert (STABLE, f"127.0.0.1:{stack.values['STABLE']}") in addresses
    assert table["version"] == await stack.version()


async def test_xds_tells_what_envoy_acknowledged(stack: Stack) -> None:
    (node,) = (await stack.admin("/xds")).json()["nodes"]
    assert node["connected"] is True
    assert node["lastRefusal"] in (None, "")
    assert await stack.version() == node["snapshot"] == node["acknowledgedSnapshot"]
    kinds = {kind["type"]: kind for kind in node["types"] if kind["subscribed"]}
    assert 4 == len(kinds)
    for kind in kinds.values():
        assert kind["sent"] == kind["acknowledged"]
        assert (0, []) == (kind["nacks"], kind["refused"])


# ---- explain


def asked(headers: Mapping[str, str], model: str | None) -> list[tuple[str, str]]:
    told = [("header", f"{name}:{value}") for name, value in headers.items()]
    return told if model is None else [*told, ("model", model)]


@pytest.mark.parametrize(
    ("headers", "model"),
    [
        ({"model-version": "v2.3-beta"}, "support-chat"),
        ({"model_version": "v2.2"}, "support-chat"),
        ({"x-context-id": "customer-7"}, "support-chat"),
        ({"x-context-id": "customer-7", "x-qos-class": "batch"}, None),
        ({"x-session-id": "customer-7", "x-slo-ttft-ms": "150"}, "auto"),
        ({"x-context-id": "customer-7"}, "small-chat"),
        ({"x-lane": "mirror"}, "mirror"),
        ({}, "embedder"),
        ({"x-pm-model": "small-chat", "model-version": "v2.2"}, "support-chat"),
        ({"model-version": "v9"}, "support-chat"),
        ({"model-version": "v2.2,v2.3-beta"}, "support-chat"),
        ({"x-session-ttl": "soon"}, "support-chat"),
        ({}, "nobody"),
    ],
)
async def test_explain_tells_what_really_happens(
    stack: Stack, mirror: Mirror, headers: dict[str, str], model: str | None
) -> None:
    told = (await stack.admin("/explain", params=asked(headers, model))).json()
    body: dict[str, Any] = {} if model is None else {"model": model}
    answer = await stack.ask("POST", CHAT, json=body, headers={"content-type": "application/json", **headers})
    if "refusal" in told:
        assert (told["refusal"]["status"], "refused") == (answer.status, answer.reason)
        if told["refusal"]["status"] == 404:
            assert told["refusal"]["message"] == answer.json()["error"]["message"]
    else:
        assert (200, told["target"], told["reason"]) == (
            answer.status,
            answer.headers["x-pointsman-target"],
            answer.reason,
        )
    assert told["steps"]


@pytest.mark.parametrize("kind", ["customer-{}", "é {}", "露凝-{}"], ids=["ASCII", "Latin", "CJK"])
async def test_explain_knows_the_side_of_every_sticky_key(stack: Stack, kind: str) -> None:
    for number in range(40):
        headers = {"x-context-id": kind.format(number)}
        told = await stack.admin("/explain", params=asked(headers, "support-chat"))
        answer = await stack.chat(headers)
        assert 200 == told.status
        assert (headers, answer.target, answer.reason) == (headers, told.json()["target"], told.json()["reason"])


async def test_explain_takes_a_body_and_shows_candidates(stack: Stack) -> None:
    async with stack.session.post(f"{stack.admin_url}/explain?header=x-qos-class:interactive", data=b"{}") as response:
        told = await response.json()
    looked_at = [(one["target"], one["taken"]) for one in told["candidates"]]
    assert [(STABLE, True), (SMALL, False), (SMALL, True), (CANARY, True)] == looked_at
    assert "quality 0.6 is under the class's 0.8" == told["candidates"][1]["why"]
    async with stack.session.post(f"{stack.admin_url}/explain", data=b'{"model": ') as response:
        assert 400 == (await response.json())["refusal"]["status"]


# ---- pages


@pytest.mark.parametrize("path", ["/nothing", "/config_dump", "/quitquitquit", "/table/x", "/../etc/passwd"])
async def test_unknown_admin_page_is_404(stack: Stack, path: str) -> None:
    assert 404 == (await stack.admin(path)).status


@pytest.mark.parametrize("query", ["x=1", "header=novalue", "header=:x"])
async def test_a_question_that_cannot_be_read_is_400(stack: Stack, query: str) -> None:
    answer = await stack.admin(f"/explain?{query}")
    assert 400 == answer.status
    assert answer.json()["error"]


async def test_admin_pages_are_not_on_the_clients_port(stack: Stack) -> None:
    for path in PAGES:
        assert 404 == (await stack.ask("GET", path)).status


async def test_health_pages_say_ready(stack: Stack) -> None:
    assert {"status": "ok"} == (await stack.admin("/healthz")).json()
    ready = await stack.admin("/readyz")
    assert (200, "ready", "read") == (ready.status, ready.json()["status"], ready.json()["bodies"])
    assert set(PAGES) == set((await stack.admin("/")).json()["pages"])
