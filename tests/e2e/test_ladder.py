"""Fallback ladders: who answers when a target is down, busy or hung, and what callers see when nobody can."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from stack import SMALL, STABLE, Answer, Mirror, Stack

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

CANNED_RETRY_AFTER = "7"
"""What the policy's canned rungs say."""

FIRST_BYTE_S = 0.6
"""The policy's firstByte of the routes to the hung server."""


def unavailable(answer: Answer, retry_after: str) -> str:
    """Check a 503's shape; return its message."""
    assert (503, "application/json") == (answer.status, answer.headers["content-type"])
    assert retry_after == answer.headers["retry-after"]
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} == set(error)
    assert "server_error" == error["type"]
    return str(error["message"])


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def fresh_records(stack: Stack) -> AsyncIterator[None]:
    await stack.forget("STABLE", "SMALL", "BUSY", "HUNG", "CUT")
    yield


async def test_refused_connection_moves_to_the_next_rung(stack: Stack) -> None:
    answer = await stack.chat(model="down-chat")
    assert (200, SMALL, SMALL, "fallback;attempt=2") == (
        answer.status,
        answer.target,
        answer.headers["x-pointsman-target"],
        answer.reason,
    )


async def test_503_moves_to_the_next_rung(stack: Stack) -> None:
    answer = await stack.chat(model="busy-chat")
    assert (200, SMALL, "fallback;attempt=2") == (answer.status, answer.target, answer.reason)
    assert 1 == len(await stack.seen("BUSY"))


async def test_streams_move_to_the_next_rung_before_their_first_byte(stack: Stack) -> None:
    answer = await stack.chat(model="busy-chat", stream=True)
    assert (200, SMALL) == (answer.status, answer.target)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert 1 == answer.body.count(b"[DONE]")


async def test_canned_rung_answers_when_nobody_else_can(stack: Stack) -> None:
    answer = await stack.chat(model="dead-chat")
    assert "no model can answer" in unavailable(answer, CANNED_RETRY_AFTER)
    assert answer.target is None


async def test_all_rungs_busy_end_at_the_canned_answer(stack: Stack) -> None:
    await stack.control("SMALL", errorRatio=1.0)
    try:
        answer = await stack.chat(model="busy-chat")
    finally:
        await stack.control("SMALL", errorRatio=0.0)
    unavailable(answer, CANNED_RETRY_AFTER)
    assert (1, 1) == (len(await stack.seen("BUSY")), len(await stack.seen("SMALL")))


async def test_a_ladder_of_one_rung_says_503_with_retry_after(stack: Stack) -> None:
    assert unavailable(await stack.chat(model="alone-chat"), "2")


async def test_pin_to_a_version_that_is_down_is_strict(stack: Stack) -> None:
    answer = await stack.chat({"model-version": "v1"}, model="down-chat")
    assert unavailable(answer, "2")
    assert [] == await stack.seen("SMALL")


async def test_pin_to_a_busy_version_gets_the_servers_own_answer(stack: Stack) -> None:
    answer = await stack.chat({"model-version": "v1"}, model="busy-chat")
    assert (503, "simulated error", "pinned") == (answer.status, answer.json()["error"]["message"], answer.reason)
    assert 1 == len(await stack.seen("BUSY"))


async def test_what_may_have_run_is_not_sent_again(stack: Stack) -> None:
    await stack.control("CUT", resetAfterChunks=0)
    try:
        answer = await stack.chat(model="cut-chat")
    finally:
        await stack.control("CUT", resetAfterChunks=3)
    assert unavailable(answer, "2")
    assert 1 == len(await stack.seen("CUT"))


async def test_client_errors_are_not_retried(stack: Stack) -> None:
    answer = await stack.chat({"model-version": "v2.2"}, stream="perhaps")
    assert (400, STABLE) == (answer.status, answer.target)
    assert 1 == len(await stack.seen("STABLE"))


async def test_known_bug_37_a_body_of_200_kb_is_sent_again_whole(
    stack: Stack, mirrors: dict[str, Mirror], mirror: Mirror
) -> None:
    busy = mirrors["MIRROR_BUSY"]
    busy.reset()
    busy.status = 503
    body = b'{"model": "twice-chat", "messages": [{"role": "user", "content": "%s"}]}' % (b"words " * 33_400)
    answer = await stack.post(body)
    assert (200, mirror.name, "fallback;attempt=2") == (answer.status, answer.target, answer.reason)
    digest = hashlib.sha256(body).hexdigest()
    assert [digest] == [seen.sha256 for seen in busy.seen]
    assert [digest] == [seen.sha256 for seen in mirror.seen]


async def test_the_largest_body_that_is_read_is_sent_again_whole(
    stack: Stack, mirrors: dict[str, Mirror], mirror: Mirror
) -> None:
    busy = mirrors["MIRROR_BUSY"]
    busy.reset()
    busy.status = 503
    body = b'{"model": "twice-chat", "messages": "%s"}' % (b"x" * ((4 << 20) - 41))
    assert 4 << 20 >= len(body) > (4 << 20) - 10
    answer = await stack.post(body)
    assert (200, mirror.name) == (answer.status, answer.target)
    assert [seen.sha256 for seen in busy.seen] == [seen.sha256 for seen in mirror.seen]


async def test_many_failovers_at_once_all_succeed(stack: Stack) -> None:
    answers = await asyncio.gather(*(stack.chat(model="busy-chat") for _ in range(64)))
    assert {(200, SMALL)} == {(answer.status, answer.target) for answer in answers}


async def test_known_bug_40_one_hung_server_does_not_hold_up_the_others(stack: Stack) -> None:
    async def ask_hung() -> Answer:
        return await stack.chat(model="hung-chat")

    hung = [asyncio.ensure_future(ask_hung()) for _ in range(20)]
    answers = [await stack.chat({"model-version": "v2.2"}) for _ in range(20)]
    assert not any(one.done() for one in hung)
    assert {(200, STABLE)} == {(answer.status, answer.target) for answer in answers}
    for answer in await asyncio.gather(*hung):
        assert (504, "application/json") == (answer.status, answer.headers["content-type"])
        assert answer.json()["error"]["message"]


async def test_a_server_without_a_first_byte_is_given_up_in_time(stack: Stack) -> None:
    started = time.monotonic()
    answer = await stack.chat(model="hung-chat")
    assert 504 == answer.status
    assert 0.9 * FIRST_BYTE_S < time.monotonic() - started < 3 * FIRST_BYTE_S
    assert 1 == len(await stack.seen("HUNG"))


async def test_first_byte_limit_holds_without_retries_too(stack: Stack) -> None:
    started = time.monotonic()
    answer = await stack.chat(model="hasty-chat")
    assert 504 == answer.status
    assert 0.9 * FIRST_BYTE_S < time.monotonic() - started < 3 * FIRST_BYTE_S
