"""Headers: whose they are, which of them count, and which of them anybody sees."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from pointsman.router.request import Request
from stack import CANARY, SMALL, STABLE, Mirror, Stack
from wire import Client

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

OURS = ("x-pm-", "x-pointsman-", "x-envoy-", "x-gateway-destination-endpoint")
PINNED = {"model-version": "v2.2"}


# ---- internal headers are not a client's to send


@pytest.mark.parametrize("name", ["x-pm-model", "X-PM-Model", "x-pm-rewrite", "x-pm-body"])
@pytest.mark.parametrize("value", ["small-chat", "nobody", ""])
async def test_known_bug_23_the_bodys_model_wins_over_a_spoofed_header(stack: Stack, name: str, value: str) -> None:
    answer = await stack.chat({name: value, **PINNED})
    assert (200, STABLE) == (answer.status, answer.target)


@pytest.mark.parametrize("value", ["small-chat", "nobody", "auto"])
async def test_known_bug_23_a_spoofed_model_does_not_route_what_has_no_body(
    stack: Stack, mirror: Mirror, value: str
) -> None:
    answer = await stack.ask("GET", "/mirror/x", headers={"x-pm-model": value})
    assert (200, mirror.name) == (answer.status, answer.target)
    answer = await stack.ask("POST", "/mirror/x", data=b"binary", headers={"x-pm-model": value})
    assert (200, mirror.name) == (answer.status, answer.target)


async def test_known_bug_20_a_client_cannot_choose_the_endpoint(stack: Stack) -> None:
    headers = {
        "x-gateway-destination-endpoint": f"127.0.0.1:{stack.values['SMALL']}",
        "x-pointsman-target": SMALL,
        "x-pointsman-reason": "mine",
        "x-envoy-original-dst-host": f"127.0.0.1:{stack.values['SMALL']}",
        **PINNED,
    }
    answer = await stack.chat(headers)
    assert (STABLE, STABLE, "pinned") == (answer.target, answer.headers["x-pointsman-target"], answer.reason)


async def test_a_client_cannot_ask_for_retries(stack: Stack) -> None:
    await stack.forget("BUSY")
    headers = {
        "model-version": "v1",
        "x-envoy-retry-on": "5xx,retriable-status-codes",
        "x-envoy-retriable-status-codes": "503",
        "x-envoy-max-retries": "5",
    }
    answer = await stack.chat(headers, model="busy-chat")
    assert 503 == answer.status
    assert 1 == len(await stack.seen("BUSY"))


async def test_a_client_cannot_shorten_time_limits(stack: Stack) -> None:
    headers = {"x-envoy-upstream-rq-timeout-ms": "1", "x-envoy-upstream-rq-per-try-timeout-ms": "1", **PINNED}
    await stack.control("STABLE", latencyMs=100)
    try:
        answer = await stack.chat(headers)
    finally:
        await stack.control("STABLE", latencyMs=0)
    assert (200, STABLE) == (answer.status, answer.target)


async def test_servers_get_no_internal_header_of_a_client(stack: Stack, mirror: Mirror) -> None:
    spoofed = {
        "x-pm-model": "spoofed",
        "x-pm-anything": "spoofed",
        "x-pointsman-target": "spoofed",
        "x-pointsman-reason": "spoofed",
        "x-gateway-destination-endpoint": "spoofed",
        "x-envoy-retry-on": "spoofed",
        "x-envoy-attempt-count": "spoofed",
        "x-envoy-force-trace": "spoofed",
    }
    answer = await stack.chat(spoofed, model="mirror")
    assert 200 == answer.status
    seen = mirror.seen[0]
    assert [] == [(name, value) for name, value in seen.headers if "spoofed" in value]
    assert {"x-envoy-attempt-count"} >= {name.lower() for name, _ in seen.headers if name.lower().startswith(OURS)}


async def test_clients_get_no_internal_header(stack: Stack) -> None:
    answer = await stack.chat(PINNED)
    shown = {name.lower() for name in answer.headers if name.lower().startswith(OURS)}
    assert {"x-pointsman-target", "x-pointsman-reason"} == shown


# ---- what passes


async def test_everything_else_of_a_client_passes_unchanged(stack: Stack, mirror: Mirror) -> None:
    headers = {
        "Authorization": "Bearer sk-client-secret",
        "x-api-key": "key-1",
        "cookie": "a=1; b=2",
        "user-agent": "my-app/1.0",
        "accept": "text/event-stream",
        "OpenAI-Organization": "org-1",
        "x-context-id": "customer-1",
        "x-forwarded-for": "203.0.113.9",
        "x-custom": "  spaced out  ",
        "x-gateway-inference-objective": "batch",
        "model_version": "v1",
    }
    await stack.chat(headers, model="mirror")
    seen = mirror.seen[0]
    assert {name: [value.strip()] for name, value in headers.items()} == {
        name: seen.lines(name.lower()) for name in headers
    }
    assert [f"127.0.0.1:{stack.port}"] == seen.lines("host")


async def test_header_lines_keep_their_number_and_order(stack: Stack, mirror: Mirror) -> None:
    lines = [("x-many", "1"), ("x-other", "a"), ("x-many", "2"), ("x-many", "1")]
    await stack.ask("GET", "/mirror/x", headers=lines)
    assert ["1", "2", "1"] == mirror.seen[0].lines("x-many")


async def test_answers_keep_the_servers_own_headers(stack: Stack, mirror: Mirror) -> None:
    mirror.answer_headers = {"x-ratelimit-remaining": "9", "set-cookie": "s=1", "cache-control": "no-store"}
    answer = await stack.chat(model="mirror")
    assert "mirror/1" == answer.headers["server"]
    assert mirror.answer_headers == {name: answer.headers[name] for name in mirror.answer_headers}
    assert 1 == len(answer.headers.getall("date"))
    assert "x-envoy-upstream-service-time" not in answer.headers


async def test_a_server_cannot_speak_in_our_name(stack: Stack, mirror: Mirror) -> None:
    mirror.answer_headers = {"x-pointsman-target": "somebody@v1", "x-pointsman-reason": "because"}
    answer = await stack.chat(model="mirror")
    assert ["mirror@v1"] == answer.headers.getall("x-pointsman-target")
    assert ["default"] == answer.headers.getall("x-pointsman-reason")


# ---- what counts


async def test_aliases_stand_for_their_headers(stack: Stack) -> None:
    assert CANARY == (await stack.chat({"model_version": "v2.3-beta"})).target
    by_alias = await stack.chat({"x-gateway-inference-objective": "batch", "x-session-id": "customer-1"})
    assert (200, "qos") == (by_alias.status, by_alias.reason)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "default"),
        ({"x-qos-class": "batch"}, "qos"),
        ({"x-qos-class": "gold"}, "default;class=unknown"),
        ({"x-qos-class": "gold", "x-gateway-inference-objective": "batch"}, "default;class=unknown"),
        ({"x-slo-ttft-ms": "6000"}, "qos"),
        ({"x-slo-ttft-ms": "150", "x-qos-min-quality": "80"}, "qos"),
        ({"x-qos-min-quality": "80"}, "qos"),
        ({"x-qos-min-quality": "99"}, "qos;class=unmet"),
        ({"x-slo-ttft-ms": "fast"}, "qos;class=unreadable"),
        ({"x-qos-class": "batch", "x-slo-ttft-ms": "1"}, "qos"),
    ],
)
async def test_the_reason_says_how_the_class_was_found(stack: Stack, headers: dict[str, str], reason: str) -> None:
    stable_key = await key_on_stable(stack)
    answer = await stack.chat({**headers, "x-context-id": stable_key})
    assert (200, STABLE, reason) == (answer.status, answer.target, answer.reason)


async def key_on_stable(stack: Stack) -> str:
    """A sticky key that the split leaves with the stable version."""
    for number in range(100):
        key = f"customer-{number}"
        if (await stack.chat({"x-context-id": key})).target == STABLE:
            return key
    raise AssertionError("100 keys, and none on the stable version")


async def test_intent_chooses_the_route_where_the_path_says_nothing(stack: Stack) -> None:
    answer = await stack.ask("POST", "/any/path", json={"messages": []}, headers={"x-intent": "chat", **PINNED})
    assert STABLE == answer.target
    answer = await stack.ask("POST", "/any/path", json={"messages": []}, headers={"x-intent": "dance"})
    assert 404 == answer.status


# ---- answer headers off


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def silent(changing: Stack) -> AsyncIterator[Stack]:
    """A stack that tells clients nothing of its decisions; put back afterwards."""
    await changing.apply_policy(ANSWER_HEADERS="false")
    yield changing
    await changing.apply_policy(ANSWER_HEADERS="true")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model": "support-chat", "messages": []}', 200),
        (b'{"model": "nobody"}', 404),
        (b'{"model": ', 400),
        (b"", 400),
    ],
)
async def test_answer_headers_can_be_switched_off(silent: Stack, body: bytes, status: int) -> None:
    client = Client(silent.port)  # a connection of its own: Envoy's local replies change with new connections
    headers = (("content-type", "application/json"), *PINNED.items())
    answer = await client.ask(Request(headers=headers, body=body))
    await client.close()
    assert status == answer.status
    assert {"x-pointsman-target", "x-pointsman-reason", "x-trace-id"}.isdisjoint(answer.headers)
