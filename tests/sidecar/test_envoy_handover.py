"""An Envoy that a killed agent left: adopted where it is what we would start, else replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from envoy_lab import Events, Lab, get, left_by_a_killed_agent, program
from pointsman.sidecar.envoy_admin import EnvoyAdmin
from pointsman.sidecar.envoy_binary import EnvoyFailed, find_envoy
from pointsman.sidecar.envoy_handover import adoptable
from pointsman.sidecar.envoy_origin import EnvoyOrigin, changed_parts
from pointsman.sidecar.envoy_process import EnvoyOptions, EnvoyProcess, PredecessorEnded, PredecessorFound
from pointsman.sidecar.listening import listening_of
from pointsman.sidecar.process_identity import EnvoyRecord, ProcessIdentity, is_alive, living_envoys
from pointsman.sidecar.supervision import Cause, EnvoyAdopted, EnvoyGone, Timing
from pointsman.xds.api import Bootstrap
from until import until


@pytest.mark.envoy
async def test_envoy_of_a_killed_agent_serves_on_and_is_replaced_without_a_failed_request(
    lab: Lab, tmp_path: Path
) -> None:
    old_pid = await left_by_a_killed_agent(lab, tmp_path, concurrency=2)
    events = Events()
    failures: list[Exception] = []
    served = 0
    is_done = asyncio.Event()

    async def ask() -> None:
        nonlocal served
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while not is_done.is_set():
                try:
                    async with session.get(lab.url) as answer:
                        assert await answer.text() == "whole"
                        served += 1
                except aiohttp.ClientError as error:
                    failures.append(error)

    assert await get(lab.url) == "whole"
    async with aiohttp.ClientSession() as session, session.get(f"{lab.url}/stream") as stream:
        assert await stream.content.readexactly(6) == b"begin "
        async with asyncio.TaskGroup() as clients:
            for _ in range(4):
                clients.create_task(ask())
            async with EnvoyProcess(lab.options(), events.tell) as envoy:
                assert envoy.pid != old_pid
                assert {record.process.pid for record in living_envoys(lab.state.envoy_pids)} == {old_pid, envoy.pid}
                lab.backend.finish.set()
                assert await stream.read() == b"end"
                await events.until(lambda told: "PredecessorEnded" in told.kinds())
                assert [record.process.pid for record in living_envoys(lab.state.envoy_pids)] == [envoy.pid]
                assert await get(lab.url) == "whole"
                is_done.set()

    assert events.seen[0] == PredecessorFound(old_pid, ("arguments",))
    assert events.seen[-2] == PredecessorEnded(old_pid, 0)
    assert failures == []
    assert served > 100
    assert sorted(path.suffix for path in lab.state.path.iterdir()) == ["", ".log", ".pb"]


@pytest.mark.envoy
async def test_old_envoy_serves_until_the_new_one_has_a_listener(lab: Lab, tmp_path: Path) -> None:
    old_pid = await left_by_a_killed_agent(lab, tmp_path, concurrency=2)
    events = Events()
    bare = Bootstrap()
    bare.admin.address.pipe.path = str(lab.state.admin_socket)
    options = EnvoyOptions(find_envoy({}), lab.state, lambda _: bare.SerializeToString())

    async with EnvoyProcess(options, events.tell) as envoy, EnvoyAdmin(lab.state.admin_socket) as admin:
        assert envoy.is_serving
        assert not await admin.has_client_listener()
        assert await get(lab.url) == "whole"
        assert {record.process.pid for record in living_envoys(lab.state.envoy_pids)} == {old_pid, envoy.pid}
        assert events.kinds() == ["PredecessorFound", "EnvoyStarted", "EnvoyReady"]

    assert PredecessorEnded(old_pid, 0) in events.seen
    assert living_envoys(lab.state.envoy_pids) == ()


@pytest.mark.envoy
async def test_stop_before_readiness_ends_the_old_envoy_too(lab: Lab, tmp_path: Path) -> None:
    old_pid = await left_by_a_killed_agent(lab, tmp_path, concurrency=2)
    events = Events()
    never_ready = program(tmp_path, "import time; time.sleep(60)")
    envoy = EnvoyProcess(lab.options(binary=never_ready), events.tell)
    starting = asyncio.create_task(envoy.start())
    await events.until(lambda told: told.kinds() == ["PredecessorFound", "EnvoyStarted"])

    await envoy.stop()

    with pytest.raises(EnvoyFailed):
        await starting
    assert PredecessorEnded(old_pid, 0) in events.seen
    assert living_envoys(lab.state.envoy_pids) == ()


@pytest.mark.envoy
async def test_failed_start_leaves_the_old_envoy_serving(lab: Lab, tmp_path: Path) -> None:
    old_pid = await left_by_a_killed_agent(lab, tmp_path, concurrency=2)
    broken = program(tmp_path, "raise SystemExit('out of order')")

    with pytest.raises(EnvoyFailed, match="out of order"):
        await EnvoyProcess(lab.options(binary=broken), Events().tell).start()

    assert await get(lab.url) == "whole"
    assert [record.process.pid for record in living_envoys(lab.state.envoy_pids)] == [old_pid]
    async with EnvoyProcess(lab.options(), (events := Events()).tell):
        await events.until(lambda told: PredecessorEnded(old_pid, 0) in told.seen)


@pytest.mark.envoy
async def test_envoy_that_would_be_started_again_is_adopted_supervised_and_ended(lab: Lab, tmp_path: Path) -> None:
    old_pid = await left_by_a_killed_agent(lab, tmp_path)
    events = Events()

    async with EnvoyProcess(lab.options(), events.tell) as envoy:
        assert events.seen == [EnvoyAdopted(old_pid)]
        assert envoy.pid == old_pid
        assert envoy.is_serving
        (record,) = living_envoys(lab.state.envoy_pids)
        assert (record.process.pid, record.node_id) == (old_pid, envoy.node_id)
        assert await get(lab.url) == "whole"

    assert events.seen[1:] == [EnvoyGone(Cause.STOPPED, is_clean=True, cut_requests=0)]
    assert not is_alive(record.process)
    assert not lab.state.envoy_pids.exists()


@pytest.mark.envoy
async def test_adopted_envoy_that_is_killed_serves_again_under_its_node_id(lab: Lab, tmp_path: Path) -> None:
    old_pid = await left_by_a_killed_agent(lab, tmp_path)
    events = Events()

    async with EnvoyProcess(lab.options(), events.tell) as envoy:
        node_id = envoy.node_id
        os.kill(old_pid, signal.SIGKILL)
        await events.until(lambda told: "EnvoyReady" in told.kinds())
        assert await get(lab.url) == "whole"
        assert envoy.pid != old_pid
        assert envoy.node_id == node_id

    assert events.kinds() == ["EnvoyAdopted", "EnvoyDied", "EnvoyRestarting", "EnvoyStarted", "EnvoyReady", "EnvoyGone"]


@pytest.mark.envoy
async def test_envoy_that_is_not_ready_is_replaced_under_another_node_id(lab: Lab, tmp_path: Path) -> None:
    old_pid = await left_by_a_killed_agent(lab, tmp_path)
    async with EnvoyAdmin(lab.state.admin_socket) as admin:
        await admin.fail_health()
    (old,) = living_envoys(lab.state.envoy_pids)
    events = Events()

    async with EnvoyProcess(lab.options(timing=Timing(adopt_ms=100)), events.tell) as envoy:
        await events.until(lambda told: "PredecessorEnded" in told.kinds())
        assert envoy.pid != old_pid
        assert envoy.node_id != old.node_id
        assert await get(lab.url) == "whole"

    assert events.seen[0] == PredecessorFound(old_pid, ("not ready",))
    assert not is_alive(old.process)


@pytest.mark.envoy
async def test_idle_connection_of_a_replaced_envoy_is_answered_once_more(lab: Lab, tmp_path: Path) -> None:
    old_pid = await left_by_a_killed_agent(lab, tmp_path, concurrency=2)
    events = Events()

    async with aiohttp.ClientSession() as idle:
        async with idle.get(lab.url) as answer:
            await answer.read()
        async with EnvoyProcess(lab.options(), events.tell), EnvoyAdmin(lab.state.old_admin_socket(old_pid)) as old:
            await _until_closed(old_pid)
            assert (await old.in_flight()).connections == 1
            async with idle.get(lab.url) as answer:
                assert "close" == answer.headers["connection"]
            await events.until(lambda told: PredecessorEnded(old_pid, 0) in told.seen)


@pytest.mark.envoy
async def test_idle_connection_does_not_hold_up_a_stop(lab: Lab, tmp_path: Path) -> None:
    old_pid = await left_by_a_killed_agent(lab, tmp_path, concurrency=2)
    events = Events()

    async with aiohttp.ClientSession() as idle:
        async with idle.get(lab.url) as answer:
            await answer.read()
        envoy = EnvoyProcess(lab.options(timing=Timing(drain_ms=60_000)), events.tell)
        await envoy.start()
        await _until_closed(old_pid)
        async with asyncio.timeout(5):
            await envoy.stop()

    assert PredecessorEnded(old_pid, 0) in events.seen


def test_only_the_same_envoy_at_its_usual_place_is_adoptable() -> None:
    place, origin = Path("admin.sock"), EnvoyOrigin("b", "p", "s", "a")
    same = EnvoyRecord(ProcessIdentity(1, 1, "boot"), place, "node", origin)
    others = [replace(same, origin=replace(origin, **{part: "other"})) for part in changed_parts(origin, EnvoyOrigin())]
    aside = replace(same, admin_socket=Path("admin-1.sock"))

    assert len(others) == 4
    assert adoptable((same, *others, aside), place, origin) == same
    assert adoptable((*others, aside), place, origin) is None
    assert adoptable((), place, origin) is None


async def _until_closed(pid: int) -> None:
    """Wait until the process has no listening socket."""

    async def is_closed() -> bool:
        return not listening_of(pid)

    await until(is_closed)
