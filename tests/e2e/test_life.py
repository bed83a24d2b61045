"""The life of a run: reloads under load, kills, drains, and starts that are refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from agent_process import AgentProcess
from load import Load
from pointsman.router.request import Request
from until import until
from wire import Backend, Client, free_port

pytestmark = pytest.mark.envoy


@pytest_asyncio.fixture
async def backends() -> AsyncIterator[tuple[Backend, Backend]]:
    async with Backend() as stable, Backend() as canary:
        yield stable, canary


@pytest_asyncio.fixture
async def agent(tmp_path: Path, backends: tuple[Backend, Backend]) -> AsyncIterator[AgentProcess]:
    agent = AgentProcess(tmp_path, stable=backends[0].port, canary=backends[1].port)
    yield agent
    if agent.process is not None and agent.process.returncode is None:
        await agent.stop()
    agent.end_envoys()


def ask_for(*headers: tuple[str, str]) -> Request:
    return Request(headers=(("content-type", "application/json"), *headers), body=b'{"model": "support-chat"}')


async def served_by(agent: AgentProcess, *headers: tuple[str, str]) -> str:
    client = Client(agent.listen)
    answer = await client.ask(ask_for(*headers))
    await client.close()
    return answer.headers.get("x-served-by", str(answer.status))


async def until_served_by(agent: AgentProcess, port: int | str, *headers: tuple[str, str]) -> None:
    async def is_served() -> bool:
        try:
            return await served_by(agent, *headers) == str(port)
        except OSError:
            return False

    await until(is_served, 10)


async def test_it_says_one_line_when_ready_and_drains_cleanly(agent: AgentProcess) -> None:
    line = await agent.start()
    assert line == f"ready listen=127.0.0.1:{agent.listen} admin=127.0.0.1:{agent.admin}"
    status, health = await agent.admin_json("/readyz")
    assert (200, "ready") == (status, health["status"])
    assert await agent.stop() == 0


async def test_a_hundred_changes_under_load_all_go_live_and_no_request_fails(
    agent: AgentProcess, backends: tuple[Backend, Backend]
) -> None:
    await agent.start()
    async with Load(agent.listen) as load:
        for number in range(100):
            weight = 100 - 100 * (number % 2)
            agent.write(weight=weight)
            await until_served_by(agent, backends[1 if weight else 0].port, ("x-context-id", "a"))
    assert load.failed == {}
    assert load.answers.total() > 100


async def test_models_and_versions_come_and_go_without_a_failed_request(
    agent: AgentProcess, backends: tuple[Backend, Backend]
) -> None:
    await agent.start()
    async with Backend() as third, Load(agent.listen) as load:
        for _ in range(10):
            agent.write(more=f'    - {{name: v3, endpoints: [{{address: "127.0.0.1:{third.port}"}}]}}')
            await until_served_by(agent, third.port, ("model-version", "v3"))
            agent.write(more="")
            await until_served_by(agent, "404", ("model-version", "v3"))
            await load.more(20)
    assert load.failed == {}


async def test_a_bad_change_changes_nothing_and_is_told(agent: AgentProcess, backends: tuple[Backend, Backend]) -> None:
    await agent.start()
    good = agent.policy.read_text()
    agent.policy.write_text(good.replace("targets: [support-chat]", "targets: [support-chatt]"))
    await agent.until_log("policy change refused")
    status, health = await agent.admin_json("/readyz")
    assert (200, "degraded") == (status, health["status"])
    assert "support-chatt" in str(health["degraded"])
    assert await served_by(agent) == str(backends[0].port)
    agent.write(weight=100)
    await until_served_by(agent, backends[1].port)
    assert (await agent.admin_json("/readyz"))[1]["status"] == "ready"


async def test_a_policy_file_that_vanishes_changes_nothing(
    agent: AgentProcess, backends: tuple[Backend, Backend]
) -> None:
    await agent.start()
    agent.policy.unlink()
    await agent.until_log("policy change refused")
    assert await served_by(agent) == str(backends[0].port)


async def test_settings_that_need_a_restart_are_told_and_the_rest_is_applied(
    agent: AgentProcess, backends: tuple[Backend, Backend]
) -> None:
    await agent.start()
    first = agent.listen
    agent.write(listen=free_port(), weight=100)
    await agent.until_log("settings that take effect at the next start")
    agent.listen = first
    await until_served_by(agent, backends[1].port)
    assert (await agent.admin_json("/readyz"))[1]["nextStart"] == ["listen"]


async def test_a_killed_envoy_is_back(agent: AgentProcess, backends: tuple[Backend, Backend]) -> None:
    await agent.start()
    first = agent.envoy_pid()
    os.kill(first, signal.SIGKILL)
    await agent.until_log("Envoy is started again")
    await until_served_by(agent, backends[0].port)
    assert agent.envoy_pid() != first
    assert await agent.stop() == 0


async def test_traffic_goes_on_with_the_last_table_when_the_agent_is_killed(
    agent: AgentProcess, backends: tuple[Backend, Backend]
) -> None:
    await agent.start()
    agent.write(weight=100)
    await until_served_by(agent, backends[1].port)
    async with Load(agent.listen) as load:
        await load.more(20)
        await agent.kill()
        await load.more(200)
    assert load.failed == {}
    assert await served_by(agent) == str(backends[1].port)


async def test_a_drain_lets_requests_in_flight_finish(agent: AgentProcess) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"7\r\ndata: 1\r\n")
        arrived.set()
        await go_on.wait()
        writer.write(b"7\r\ndata: 2\r\n0\r\n\r\n")
        await writer.drain()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    agent.write(stable=server.sockets[0].getsockname()[1])
    await agent.start()
    client = Client(agent.listen)
    asking = asyncio.create_task(client.ask(ask_for()))
    await asyncio.wait_for(arrived.wait(), 10)
    stopping = asyncio.create_task(agent.stop())

    async def is_closed() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", agent.listen)
        except ConnectionRefusedError:
            return True
        writer.close()
        return False

    await until(is_closed)
    assert not stopping.done()
    go_on.set()
    answer = await asking
    assert answer.body.endswith(b"data: 2")
    assert await stopping == 0
    await client.close()
    server.close()


@pytest.mark.parametrize("where", ["listen", "admin"])
async def test_a_port_in_use_is_refused_with_who_has_it(agent: AgentProcess, where: str) -> None:
    async with Backend() as other:
        agent.write(**{where: other.port})
        assert await agent.start() == ""
    assert agent.process is not None
    assert await agent.process.wait() == 2
    assert str(other.port) in agent.log
    assert "in use" in agent.log


async def test_a_second_run_on_the_same_port_or_state_is_refused(agent: AgentProcess, tmp_path: Path) -> None:
    await agent.start()
    second = AgentProcess.__new__(AgentProcess)
    second.__dict__.update(agent.__dict__)
    folder = tmp_path / "second"
    folder.mkdir()
    second.folder, second.process = folder, None
    assert await second.start() == ""
    assert second.process is not None
    assert await second.process.wait() == 2
    other = AgentProcess(folder, stable=1, canary=2)
    other.write(listen=agent.listen)
    assert await other.start() == ""
    assert other.process is not None
    assert await other.process.wait() == 2
    assert await agent.stop() == 0


async def test_a_missing_envoy_is_told_with_the_next_step(agent: AgentProcess) -> None:
    assert await agent.start(POINTSMAN_ENVOY="/nowhere/envoy") == ""
    assert agent.process is not None
    assert await agent.process.wait() == 1
    assert "POINTSMAN_ENVOY" in agent.log


async def test_a_refused_policy_ends_with_2_and_every_problem(agent: AgentProcess) -> None:
    agent.policy.write_text(
        agent.policy.read_text().replace("weight: 0", "weight: 150").replace("kind: Route", "kind: Rote")
    )
    assert await agent.start() == ""
    assert agent.process is not None
    assert await agent.process.wait() == 2
    assert "Rote" in agent.log


async def test_logs_are_one_json_object_a_line(agent: AgentProcess) -> None:
    await agent.start()
    agent.write(weight=50)
    await agent.until_log("policy in force")
    assert await agent.stop() == 0
    for line in agent.log.splitlines():
        assert {"time", "level", "logger", "message"} <= set(json.loads(line))
