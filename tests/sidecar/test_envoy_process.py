"""A supervised Envoy: the real one, and small programs in its place where it has to misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from pathlib import Path

import aiohttp
import pytest
from envoy_lab import Events, Lab, get, program
from pointsman.sidecar.envoy_binary import EnvoyFailed, find_envoy
from pointsman.sidecar.envoy_process import EnvoyOptions, EnvoyProcess, default_concurrency
from pointsman.sidecar.process_identity import is_alive, living_envoys
from pointsman.sidecar.supervision import (
    Cause,
    EnvoyDied,
    EnvoyGone,
    EnvoyRestarting,
    EnvoyStarted,
    Timing,
)
from pointsman.xds.api import Bootstrap
from pointsman.xds.clusters import split_address


@pytest.mark.envoy
async def test_envoy_serves_once_started_and_is_gone_once_stopped(lab: Lab) -> None:
    events = Events()

    async with EnvoyProcess(lab.options(), events.tell) as envoy:
        assert await get(lab.url) == "whole"
        assert envoy.is_serving
        (record,) = living_envoys(lab.state.envoy_pids)
        assert record.process.pid == envoy.pid
        for path in (lab.state.bootstrap, lab.state.envoy_log, lab.state.envoy_pids, lab.state.admin_socket):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
        assert os.getsid(record.process.pid) == record.process.pid

    assert events.kinds() == ["EnvoyStarted", "EnvoyReady", "EnvoyGone"]
    assert not is_alive(record.process)
    assert not lab.state.envoy_pids.exists()
    assert not lab.state.admin_socket.exists()


@pytest.mark.envoy
async def test_killed_envoy_serves_again_within_2_s(lab: Lab) -> None:
    events = Events()

    async with EnvoyProcess(lab.options(), events.tell) as envoy:
        for count in (2, 3):
            assert envoy.pid is not None
            killed_s = time.monotonic()
            os.kill(envoy.pid, signal.SIGKILL)
            await events.until(lambda told, count=count: told.kinds().count("EnvoyReady") == count)  # type: ignore[misc]
            assert await get(lab.url) == "whole"
            assert time.monotonic() - killed_s < 2

    assert EnvoyDied("signal SIGKILL", "") in events.seen
    assert [event.in_ms for event in events.seen if isinstance(event, EnvoyRestarting)] == [100, 200]


@pytest.mark.envoy
async def test_stop_with_nothing_in_flight_ends_within_2_s(lab: Lab) -> None:
    async with aiohttp.ClientSession() as idle:
        envoy = EnvoyProcess(lab.options(), Events().tell)
        await envoy.start()
        async with idle.get(lab.url) as answer:
            await answer.read()
        stopped_s = time.monotonic()

        gone = await envoy.stop()

    assert time.monotonic() - stopped_s < 2
    assert gone == EnvoyGone(Cause.STOPPED, is_clean=True, cut_requests=0)


@pytest.mark.envoy
async def test_stop_lets_a_stream_finish_and_takes_no_new_connection(lab: Lab) -> None:
    async with aiohttp.ClientSession() as session:
        envoy = EnvoyProcess(lab.options(), Events().tell)
        await envoy.start()
        async with session.get(f"{lab.url}/stream") as stream:
            assert await stream.content.readexactly(6) == b"begin "
            stopping = asyncio.create_task(envoy.stop())
            await _until_refused(lab.listen)
            assert not stopping.done()
            lab.backend.finish.set()
            assert await stream.read() == b"end"
        gone = await stopping

    assert gone == EnvoyGone(Cause.STOPPED, is_clean=True, cut_requests=0)


@pytest.mark.envoy
async def test_stop_counts_the_requests_that_the_deadline_cut(lab: Lab) -> None:
    async with aiohttp.ClientSession() as session:
        envoy = EnvoyProcess(lab.options(timing=Timing(drain_ms=300)), Events().tell)
        await envoy.start()
        async with session.get(f"{lab.url}/stream") as stream:
            assert await stream.content.readexactly(6) == b"begin "
            gone = await envoy.stop()
            with pytest.raises(aiohttp.ClientPayloadError):
                await stream.read()

    assert gone == EnvoyGone(Cause.STOPPED, is_clean=False, cut_requests=1)


@pytest.mark.envoy
async def test_second_stop_ends_it_at_once(lab: Lab) -> None:
    async with aiohttp.ClientSession() as session:
        envoy = EnvoyProcess(lab.options(), Events().tell)
        await envoy.start()
        async with session.get(f"{lab.url}/stream") as stream:
            assert await stream.content.readexactly(6) == b"begin "
            first = asyncio.create_task(envoy.stop())
            second = asyncio.create_task(envoy.stop())
            async with asyncio.timeout(5):
                assert await first == await second == EnvoyGone(Cause.STOPPED, is_clean=False, cut_requests=None)


@pytest.mark.envoy
async def test_bootstrap_that_envoy_refuses_fails_with_the_reason_after_one_launch(lab: Lab) -> None:
    events = Events()
    wrong = Bootstrap()
    wrong.static_resources.listeners.add(name="no address")
    options = EnvoyOptions(find_envoy({}), lab.state, lambda _: wrong.SerializeToString())

    with pytest.raises(EnvoyFailed, match="refuses its bootstrap"):
        await EnvoyProcess(options, events.tell).start()

    assert events.kinds() == ["EnvoyStarted", "EnvoyDied", "EnvoyGone"]
    died = events.seen[1]
    assert isinstance(died, EnvoyDied)
    assert "address" in died.log_tail.lower()


async def test_program_that_crashes_at_once_is_tried_five_times(lab: Lab, tmp_path: Path) -> None:
    events = Events()
    crashing = program(
        tmp_path,
        """
        import os, sys
        if "validate" not in sys.argv:
            print("a dump with a client's headers", file=sys.stderr, flush=True)
            os.kill(os.getpid(), 11)
        """,
    )
    timing = Timing(back_off_ms=1)

    with pytest.raises(EnvoyFailed, match=r"5 times in a row.*signal SIGSEGV"):
        await EnvoyProcess(lab.options(binary=crashing, timing=timing), events.tell).start()

    assert events.kinds().count("EnvoyStarted") == 5
    assert [event.in_ms for event in events.seen if isinstance(event, EnvoyRestarting)] == [1, 2, 4, 8]
    assert not lab.state.envoy_pids.exists()
    assert "dump" not in lab.state.envoy_log.read_text()


async def test_program_that_cannot_be_executed_fails_with_its_name(lab: Lab, tmp_path: Path) -> None:
    missing = tmp_path / "none"

    with pytest.raises(EnvoyFailed, match=str(missing)):
        await EnvoyProcess(lab.options(binary=missing, timing=Timing(back_off_ms=1)), Events().tell).start()


async def test_program_that_never_gets_ready_is_killed(lab: Lab, tmp_path: Path) -> None:
    events = Events()
    idle = program(tmp_path, "import sys, time\nif 'validate' not in sys.argv: time.sleep(60)")
    timing = Timing(back_off_ms=1, ready_ms=100, early_deaths=2)

    with pytest.raises(EnvoyFailed, match="signal SIGKILL"):
        await EnvoyProcess(lab.options(binary=idle, timing=timing), events.tell).start()

    assert events.kinds().count("EnvoyStarted") == 2


async def test_program_that_ignores_sigterm_is_killed(lab: Lab, tmp_path: Path) -> None:
    events = Events()
    up = tmp_path / "up"
    os.mkfifo(up)
    deaf = program(
        tmp_path,
        f"""
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open({str(up)!r}, "w").close()
        time.sleep(60)
        """,
    )
    envoy = EnvoyProcess(lab.options(binary=deaf, timing=Timing(end_ms=100)), events.tell)
    starting = asyncio.create_task(envoy.start())
    await asyncio.to_thread(up.read_bytes)
    pid = envoy.pid
    assert pid is not None

    gone = await envoy.stop()

    with pytest.raises(EnvoyFailed):
        await starting
    assert not gone.is_clean
    assert not Path(f"/proc/{pid}").exists()


async def test_cancelled_start_leaves_no_process(lab: Lab, tmp_path: Path) -> None:
    events = Events()
    idle = program(tmp_path, "import time; time.sleep(60)")
    starting = asyncio.create_task(EnvoyProcess(lab.options(binary=idle), events.tell).start())
    await events.until(lambda told: told.kinds() == ["EnvoyStarted"])
    started = events.seen[0]
    assert isinstance(started, EnvoyStarted)

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert not Path(f"/proc/{started.pid}").exists()


async def test_gone_is_reported_to_who_waits_for_it(lab: Lab, tmp_path: Path) -> None:
    envoy = EnvoyProcess(lab.options(binary=tmp_path / "none", timing=Timing(back_off_ms=1)), Events().tell)
    with pytest.raises(EnvoyFailed):
        await envoy.start()

    gone = await envoy.gone()

    assert gone.cause is Cause.CRASHING
    assert await envoy.stop() == gone


def test_concurrency_fits_the_machine() -> None:
    assert default_concurrency() in (1, 2)


async def _until_refused(address: str) -> None:
    """Connect until the listener is closed."""
    host, port = split_address(address)
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, port)
            except ConnectionError:
                return
            writer.close()
