"""The breaker with a real Envoy: out, kept out, probed, back; and what never opens it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from agent_process import AgentProcess
from load import Load
from pointsman.router.request import Request
from until import until
from wire import Backend, Client

pytestmark = pytest.mark.envoy

BREAKER = "  breaker: {openFor: 500ms, recoverStep: 25, recoverEvery: 200ms, windows: [2s, 10s]}"
CANARY = "support-chat@v2.3-beta"


@dataclass
class Scene:
    """An agent with half of the keys on the canary, and its two servers."""

    agent: AgentProcess
    stable: Backend
    canary: Backend

    async def breaker(self) -> dict[str, object]:
        _, page = await self.agent.admin_json("/breakers")
        listed = page["breakers"]
        assert isinstance(listed, list)
        return next(item for item in listed if item["target"] == CANARY and item["class"] is None)

    async def until_state(self, state: str) -> None:
        async def is_there() -> bool:
            return (await self.breaker())["state"] == state

        await until(is_there, 20)

    async def ask(self, *headers: tuple[str, str]) -> tuple[int, dict[str, str]]:
        client = Client(self.agent.listen)
        sent = (("content-type", "application/json"), *headers)
        answer = await client.ask(Request(headers=sent, body=b'{"model": "support-chat"}'))
        await client.close()
        return answer.status, answer.headers


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with Backend() as stable, Backend() as canary:
        agent = AgentProcess(tmp_path, stable=stable.port, canary=canary.port)
        agent.policy.write_text(with_breaker(agent.policy.read_text(), weight=50))
        await agent.start()
        yield Scene(agent, stable, canary)
        assert await agent.stop() == 0


def with_breaker(policy: str, *, weight: int) -> str:
    lines = policy.replace("weight: 0", f"weight: {weight}").replace(", stickBy: [x-context-id]", "")
    return lines.replace(
        "  targets: [support-chat]", f"  targets: [support-chat]\n{BREAKER}\n  fallback: [{{canned: {{}}}}]"
    )


async def test_a_failing_target_goes_out_and_comes_back_and_no_client_notices(scene: Scene) -> None:
    async with Load(scene.agent.listen, connections=4) as load:
        await load.more(200)
        scene.canary.status = 503
        await scene.until_state("open")
        arrived = len(scene.canary.seen)
        await load.more(200)
        probes = [body for _, _, body in scene.canary.seen[arrived:] if b'"max_tokens": 1' in body]
        assert len(scene.canary.seen) - arrived - len(probes) <= 8, "only what was in flight"
        scene.canary.status = 200
        await scene.until_state("ramping")
        await scene.until_state("closed")
        arrived = len(scene.canary.seen)
        await load.more(200)
        assert len(scene.canary.seen) - arrived > 50
    assert load.failed == {}


async def test_a_strict_pin_to_an_open_target_gets_503_with_retry_after(scene: Scene) -> None:
    async with Load(scene.agent.listen, connections=4):
        scene.canary.status = 500
        await scene.until_state("open")
    status, headers = await scene.ask(("model-version", "v2.3-beta"))
    assert (503, "2") == (status, headers["retry-after"])


async def test_known_bug_34_client_errors_and_hang_ups_never_open_it(scene: Scene) -> None:
    scene.canary.status = 400
    async with Load(scene.agent.listen, connections=4) as load:
        await load.more(400)
        for _ in range(50):
            _, writer = await asyncio.open_connection("127.0.0.1", scene.agent.listen)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            await writer.drain()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await load.more(100)
    assert "closed" == (await scene.breaker())["state"]


async def test_observe_mode_tells_and_changes_nothing(scene: Scene) -> None:
    policy = scene.agent.policy.read_text()
    aside = scene.agent.policy.with_suffix(".new")
    aside.write_text(policy.replace("stateDir:", "mode: {breaker: observe}, stateDir:"))
    aside.rename(scene.agent.policy)

    async def observes() -> bool:
        return (await scene.agent.admin_json("/breakers"))[1]["mode"] == "observe"

    await until(observes)
    async with Load(scene.agent.listen, connections=4) as load:
        scene.canary.status = 503
        await scene.until_state("open")
        arrived = len(scene.canary.seen)
        await load.more(200)
        assert len(scene.canary.seen) - arrived > 50, "the canary still gets its share"
    await scene.agent.until_log("breaker moved")


async def test_a_policy_change_does_not_forget_an_open_breaker(scene: Scene) -> None:
    async with Load(scene.agent.listen, connections=4) as load:
        scene.canary.status = 503
        await scene.until_state("open")
        policy = scene.agent.policy.read_text()
        aside = scene.agent.policy.with_suffix(".new")
        aside.write_text(policy.replace("weight: 50", "weight: 60"))
        aside.rename(scene.agent.policy)
        await scene.agent.until_log("policy published")
        arrived = len(scene.canary.seen)
        await load.more(200)
        probes = [body for _, _, body in scene.canary.seen[arrived:] if b'"max_tokens": 1' in body]
        assert len(scene.canary.seen) - arrived - len(probes) <= 8
    assert load.failed == {}


async def test_websocket_talks_that_end_never_open_it(scene: Scene) -> None:
    talk = (
        b"GET /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"model-version: v2.3-beta\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )

    async def upgrade() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.agent.listen)
        writer.write(talk)
        status = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
        await reader.read()
        writer.close()
        return status

    async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nbye")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(switch, "127.0.0.1", 0)
    policy = scene.agent.policy.read_text()
    aside = scene.agent.policy.with_suffix(".new")
    aside.write_text(policy.replace(str(scene.canary.port), str(server.sockets[0].getsockname()[1])))
    aside.rename(scene.agent.policy)
    await scene.agent.until_log("policy published")
    for _ in range(30):
        assert b"101" in await upgrade()
    server.close()

    async def counted() -> bool:
        windows = (await scene.breaker())["windows"]
        assert isinstance(windows, list)
        return bool(windows[-1]["tries"] >= 5)

    await until(counted)
    assert "closed" == (await scene.breaker())["state"]
