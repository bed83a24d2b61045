"""What the next run makes of the Envoy that a killed one left: adopts it, or replaces it, and no client notices."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from agent_process import AgentProcess
from load import CHAT
from paced_load import PacedLoad
from pointsman.sidecar.envoy_admin import EnvoyAdmin
from pointsman.sidecar.envoy_binary import find_envoy
from pointsman.sidecar.process_identity import identify
from until import until
from wire import Backend, Client, free_port

pytestmark = pytest.mark.envoy

ADOPTED = "Envoy of an earlier run adopted"
REPLACED = "Envoy of an earlier run is replaced"
ENDED = "Envoy of an earlier run drained and ended"
CHANGES = re.compile(
    r"^(cluster_manager\.cluster_(?:added|modified|removed)|listener_manager\.listener_(?:added|modified|removed)"
    r"|cluster\.[^:]*\.assignment_(?:stale|timeout_received)|http\.pointsman\.rds\.[^:]*\.config_reload): (\d+)$",
    re.MULTILINE,
)


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


def another_program(folder: Path) -> str:
    """Make a program that is Envoy in another file."""
    path = folder / "envoy"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(str(find_envoy(os.environ)))} "$@"\n')
    path.chmod(0o755)
    return str(path)


async def what_envoy_changed(agent: AgentProcess) -> dict[str, int]:
    """Return how often Envoy took something new, by what."""
    async with EnvoyAdmin(agent.folder / "state" / "admin.sock") as admin:
        return {name: int(count) for name, count in CHANGES.findall(await admin.get("/stats"))}


async def served_by(agent: AgentProcess) -> str:
    client = Client(agent.listen)
    answer = await client.ask(CHAT)
    await client.close()
    return answer.headers["x-served-by"]


@pytest.mark.parametrize("keeps_connections", [True, False])
async def test_the_living_envoy_is_adopted_without_a_failed_request(
    agent: AgentProcess, keeps_connections: bool
) -> None:
    await agent.start()
    first = agent.envoy_pid()
    async with PacedLoad(agent.listen, keeps_connections=keeps_connections) as load:
        await load.more(200)
        await agent.kill()
        await agent.start()
        await load.more(max(300, 1_000 - load.answers.total()))
    assert load.failed == {}
    assert load.answers.total() >= 1_000
    assert agent.envoy_pid() == first
    assert ADOPTED in agent.log
    assert REPLACED not in agent.log
    assert await agent.stop() == 0
    assert identify(first) is None


@pytest.mark.parametrize("keeps_connections", [True, False])
async def test_an_envoy_of_another_program_is_replaced_without_a_failed_request(
    agent: AgentProcess, tmp_path: Path, keeps_connections: bool
) -> None:
    await agent.start()
    first = agent.envoy_pid()
    async with PacedLoad(agent.listen, keeps_connections=keeps_connections) as load:
        await load.more(200)
        await agent.kill()
        await agent.start(POINTSMAN_ENVOY=another_program(tmp_path))
        await agent.until_log(ENDED)
        await load.more(max(300, 1_000 - load.answers.total()))
    assert load.failed == {}
    assert load.answers.total() >= 1_000
    assert agent.envoy_pid() != first
    assert identify(first) is None
    assert '"changed": ["program"]' in agent.log
    status, health = await agent.admin_json("/readyz")
    assert (200, "ready") == (status, health["status"])
    assert await agent.stop() == 0


async def test_a_replacement_that_a_kill_cut_short_is_finished_by_the_next_run(
    agent: AgentProcess, tmp_path: Path
) -> None:
    program = another_program(tmp_path)
    await agent.start()
    first = agent.envoy_pid()
    idle = Client(agent.listen)
    await idle.ask(CHAT)
    await agent.kill()
    await agent.start(POINTSMAN_ENVOY=program)
    second = agent.envoy_pid()
    async with PacedLoad(agent.listen, keeps_connections=False) as load:
        await agent.kill()
        await agent.start(POINTSMAN_ENVOY=program)
        assert ADOPTED in agent.log
        assert agent.envoy_pid() == second
        assert identify(first) is not None
        assert (await idle.ask(CHAT)).headers["connection"] == "close"
        await agent.until_log(ENDED)
        await load.more(100)
    assert load.failed == {}
    assert identify(first) is None
    assert await agent.stop() == 0


async def test_an_adopted_envoy_is_sent_nothing_that_it_has(agent: AgentProcess) -> None:
    await agent.start()
    before = await what_envoy_changed(agent)
    await agent.kill()
    await agent.start()
    assert before == await what_envoy_changed(agent)
    assert before["http.pointsman.rds.pointsman.config_reload"] == 1


async def test_an_adopted_envoy_is_sent_what_changed_while_no_agent_ran(
    agent: AgentProcess, backends: tuple[Backend, Backend]
) -> None:
    await agent.start()
    first, before = agent.envoy_pid(), await what_envoy_changed(agent)
    await agent.kill()
    agent.write(weight=100)
    await agent.start()
    assert agent.envoy_pid() == first
    after = await what_envoy_changed(agent)
    assert {"http.pointsman.rds.pointsman.config_reload"} == {name for name in after if after[name] != before[name]}
    assert await served_by(agent) == str(backends[1].port)


async def test_an_adopted_envoy_moves_to_a_changed_address(agent: AgentProcess) -> None:
    await agent.start()
    first = agent.envoy_pid()
    await agent.kill()
    agent.listen = free_port()
    agent.write(listen=agent.listen)
    await agent.start()
    assert agent.envoy_pid() == first
    assert await served_by(agent)


async def test_an_adopted_envoy_that_dies_is_started_again(agent: AgentProcess) -> None:
    await agent.start()
    first = agent.envoy_pid()
    await agent.kill()
    await agent.start()
    os.kill(first, signal.SIGKILL)
    await agent.until_log("Envoy is started again")

    async def serves() -> bool:
        try:
            return bool(await served_by(agent))
        except (OSError, KeyError):
            return False

    await until(serves)
    assert agent.envoy_pid() != first
    assert await agent.stop() == 0
