"""`rewriteModel`: each rung's server gets a name that it accepts, and every other byte as it was sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pointsman.router.policy import Endpoint, Match, Model, ModelFallback, Policy, Route, Version
from pointsman.router.request import Request
from rig import Rig
from wire import Backend, Client

pytestmark = pytest.mark.envoy

BODY = b'{ "n": 12345678901234567890, "model" : "gpt-4o",  "f": 1.0, "x": {"model": "gpt-4o"}, "u": "\\u00e9" }'


def policy(rig: Rig, first: Backend, second: Backend) -> Policy:
    def model(name: str, backend: Backend, *accepts: str) -> Model:
        return Model(name, (Version("v1", (Endpoint(f"127.0.0.1:{backend.port}"),), accepts),))

    route = Route(
        "chat",
        ("large", "small"),
        Match(models=("gpt-4o",)),
        fallback=(ModelFallback("small"),),
        rewrite_model=True,
    )
    models = (model("large", first, "org/large"), model("small", second, "small", "gpt-4o"))
    return Policy(models=models, routes=(route,), settings=rig.settings)


async def ask(rig: Rig, body: bytes) -> tuple[int, str | None]:
    client = Client(rig.port)
    answer = await client.ask(Request(headers=(("content-type", "application/json"),), body=body))
    await client.close()
    return answer.status, answer.headers.get("x-pointsman-target")


async def test_the_server_gets_its_own_name_and_every_other_byte(rig: Rig) -> None:
    async with Backend() as first, Backend() as second:
        await rig.publish(policy(rig, first, second))
        assert await ask(rig, BODY) == (200, "large@v1")
        _, headers, body = first.seen[-1]
        assert body == BODY.replace(b'"model" : "gpt-4o"', b'"model" : "org/large"')
        assert headers["content-length"] == str(len(body))
        assert not any(name.startswith("x-pm-") for name in headers)


async def test_a_rung_that_accepts_the_name_gets_the_bytes_as_sent(rig: Rig) -> None:
    async with Backend() as second:
        async with Backend() as first:
            await rig.publish(policy(rig, first, second))
        assert await ask(rig, BODY) == (200, "small@v1")
        assert second.seen[-1][2] == BODY


async def test_without_rewriting_a_server_that_does_not_accept_the_name_is_no_candidate(rig: Rig) -> None:
    async with Backend() as first, Backend() as second:
        wanted = policy(rig, first, second)
        await rig.publish(replace(wanted, routes=(replace(wanted.routes[0], rewrite_model=False),)))
        assert await ask(rig, BODY) == (200, "small@v1")
