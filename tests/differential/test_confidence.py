"""An unsure answer is asked of the next model; the last model's stands, whatever it says."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from pointsman.router.policy import (
    CannedFallback,
    Endpoint,
    Match,
    Model,
    ModelFallback,
    Policy,
    Retries,
    Route,
    Version,
)
from pointsman.router.request import Request
from rig import Rig
from wire import Backend, Client

pytestmark = pytest.mark.envoy

REQUESTS, CONNECTIONS = 1_000, 32


def policy(rig: Rig, first: Backend, second: Backend) -> Policy:
    def model(name: str, backend: Backend) -> Model:
        return Model(name, (Version("v1", (Endpoint(f"127.0.0.1:{backend.port}"),), ("m",)),))

    route = Route(
        "chat",
        ("large",),
        Match(models=("m",)),
        fallback=(ModelFallback("small"), CannedFallback()),
        retries=Retries(low_confidence_below=0.5),
    )
    return Policy(models=(model("large", first), model("small", second)), routes=(route,), settings=rig.settings)


async def answers(rig: Rig, count: int) -> Counter[tuple[int, str | None, str | None]]:
    found: Counter[tuple[int, str | None, str | None]] = Counter()

    async def ask(times: int) -> None:
        client = Client(rig.port)
        for _ in range(times):
            body = b'{"model": "m"}'
            answer = await client.ask(Request(headers=(("content-type", "application/json"),), body=body))
            seen = answer.headers
            assert not any(name.startswith("x-pm-") for name in seen)
            found[answer.status, seen.get("x-pointsman-target"), seen.get("x-model-confidence")] += 1
        await client.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(ask(-(-count // CONNECTIONS)))
    return found


async def test_a_thousand_unsure_answers_come_from_the_next_model(rig: Rig) -> None:
    async with Backend() as first, Backend() as second:
        first.extra, second.extra = {"x-model-confidence": "0.31"}, {"x-model-confidence": "0.9"}
        await rig.publish(policy(rig, first, second))
        assert {(200, "small@v1", "0.9")} == set(await answers(rig, REQUESTS))


async def test_when_all_are_unsure_the_last_model_s_answer_stands(rig: Rig) -> None:
    async with Backend() as first, Backend() as second:
        first.extra = second.extra = {"x-model-confidence": "0.1"}
        await rig.publish(policy(rig, first, second))
        assert {(200, "small@v1", "0.1")} == set(await answers(rig, 200))


@pytest.mark.parametrize("confidence", ["0.5", "0.93", "1", "sure", ""])
async def test_a_sure_or_unreadable_answer_is_passed_on(rig: Rig, confidence: str) -> None:
    async with Backend() as first, Backend() as second:
        first.extra = {"x-model-confidence": confidence}
        await rig.publish(policy(rig, first, second))
        assert {(200, "large@v1", confidence)} == set(await answers(rig, CONNECTIONS))
        assert [] == second.seen
