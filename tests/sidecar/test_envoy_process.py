"""A supervised Envoy: the real one, and small programs in its place where it has to misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import pytest
from aiohttp import web
from pointsman.sidecar.envoy_admin import EnvoyAdmin
from pointsman.sidecar.envoy_binary import EnvoyFailed, find_envoy
from pointsman.sidecar.envoy_process import EnvoyOptions, EnvoyProcess, PredecessorEnded, default_concurrency
from pointsman.sidecar.process_identity import is_alive, living_envoys
from pointsman.sidecar.state_dir import StateDir
from pointsman.sidecar.supervision import (
    Cause,
    EnvoyDied,
    EnvoyEvent,
    EnvoyGone,
    EnvoyRestarting,
    EnvoyStarted,
    Timing,
)
from pointsman.xds.api import Bootstrap, HttpConnectionManager, Router, pack
from pointsman.xds.clusters import split_address
from pointsman.xds.listeners import HCM


@dataclass(slots=True)
class Events:
    """What the agent was told, and a way to wait for it."""

    seen: list[EnvoyEvent | PredecessorEnded] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, event: EnvoyEvent | PredecessorEnded) -> None:
        self.seen.append(event)
        self.changed.set()

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.seen]

    async def until(self, holds: Callable[[Events], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds(self):
                self.changed.clear()
                await self.changed.wait()


@dataclass(frozen=True, slots=True)
class Backend:
    """A server whose answer to /stream begins, and ends when `finish` is set."""

    address: str
    finish: asyncio.Event


@dataclass(frozen=True, slots=True)
class Lab:
    """A state directory, a backend, and the address on which Envoy serves."""

    state: StateDir
    backend: Backend
    listen: str

    @property
    def url(self) -> str:
        return f"http://{self.listen}"

    def options(self, *, binary: Path | None = None, timing: Timing | None = None) -> EnvoyOptions:
        bootstrap = _bootstrap(self.state.admin_socket, self.listen, self.backend.address).SerializeToString()
        timing = timing or Timing(drain_ms=10_000)
        return EnvoyOptions(binary or find_envoy({}), self.state, bootstrap, concurrency=1, timing=timing)


def _bootstrap(admin: Path, listen: str, backend: str) -> Bootstrap:
    """Return a whole configuration without an agent: the machinery here does not depend on xDS."""
    bootstrap = Bootstrap()
    bootstrap.admin.address.pipe.path = str(admin)
    bootstrap.admin.address.pipe.mode = 0o600
    manager = HttpConnectionManager(stat_prefix="pointsman")
    route = manager.route_config.virtual_hosts.add(name="all", domains=["*"]).routes.add()
    route.match.prefix = "/"
    route.route.cluster = "backend"
    route.route.timeout.FromSeconds(0)
    manager.http_filters.add(name="envoy.filters.http.router").typed_config.CopyFrom(pack(Router()))
    listener = bootstrap.static_resources.listeners.add(name="pointsman")
    host, port = split_address(listen)
    listener.address.socket_address.address = host
    listener.address.socket_address.port_value = port
    listener.filter_chains.add().filters.add(name=HCM).typed_config.CopyFrom(pack(manager))
    cluster = bootstrap.static_resources.clusters.add(name="backend")
    cluster.load_assignment.cluster_name = "backend"
    address = cluster.load_assignment.endpoints.add().lb_endpoints.add().endpoint.address.socket_address
    address.address, address.port_value = split_address(backend)
    return bootstrap


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    finish = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/stream":
            return web.Response(text="whole")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begin ")
        await finish.wait()
        await response.write(b"end")
        await response.write_eof()
        return response

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield Backend(f"{host}:{port}", finish)
    finish.set()
    await runner.cleanup()


@pytest.fixture
def state() -> Iterator[StateDir]:
    with TemporaryDirectory(prefix="pm-") as folder:
        with StateDir(Path(folder) / "state", runtime=Path(folder) / "run") as held:
            yield held
            # Whatever a failed test left behind.
            for record in living_envoys(held.envoy_pids):
                os.kill(record.process.pid, signal.SIGKILL)


@pytest.fixture
async def lab(state: StateDir, backend: Backend) -> Lab:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return Lab(state, backend, f"127.0.0.1:{port}")


async def _get(url: str) -> str:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        async with session.get(url) as answer:
            return await answer.text()


def _program(folder: Path, text: str) -> Path:
    path = folder / "envoy"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    path.chmod(0o755)
    return path


@pytest.mark.envoy
async def test_envoy_serves_once_started_and_is_gone_once_stopped(lab: Lab) -> None:
    events = Events()

    async with EnvoyProcess(lab.options(), events.tell) as envoy:
        assert await _get(lab.url) == "whole"
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
            assert await _get(lab.url) == "whole"
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
async def test_envoy_of_a_killed_agent_serves_on_and_is_replaced_without_a_failed_request(
    lab: Lab, tmp_path: Path
) -> None:
    old_pid = await _left_by_a_killed_agent(lab, tmp_path)
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

    assert await _get(lab.url) == "whole"
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
                assert await _get(lab.url) == "whole"
                is_done.set()

    assert events.seen[-2] == PredecessorEnded(old_pid, 0)
    assert failures == []
    assert served > 100
    assert sorted(path.suffix for path in lab.state.path.iterdir()) == ["", ".log", ".pb"]


@pytest.mark.envoy
async def test_old_envoy_serves_until_the_new_one_has_a_listener(lab: Lab, tmp_path: Path) -> None:
    old_pid = await _left_by_a_killed_agent(lab, tmp_path)
    events = Events()
    bare = Bootstrap()
    bare.admin.address.pipe.path = str(lab.state.admin_socket)
    options = EnvoyOptions(find_envoy({}), lab.state, bare.SerializeToString())

    async with EnvoyProcess(options, events.tell) as envoy, EnvoyAdmin(lab.state.admin_socket) as admin:
        assert envoy.is_serving
        assert not await admin.has_client_listener()
        assert await _get(lab.url) == "whole"
        assert {record.process.pid for record in living_envoys(lab.state.envoy_pids)} == {old_pid, envoy.pid}
        assert events.kinds() == ["EnvoyStarted", "EnvoyReady"]

    assert PredecessorEnded(old_pid, 0) in events.seen
    assert living_envoys(lab.state.envoy_pids) == ()


@pytest.mark.envoy
async def test_stop_before_readiness_ends_the_old_envoy_too(lab: Lab, tmp_path: Path) -> None:
    old_pid = await _left_by_a_killed_agent(lab, tmp_path)
    events = Events()
    never_ready = _program(tmp_path, "import time; time.sleep(60)")
    envoy = EnvoyProcess(lab.options(binary=never_ready), events.tell)
    starting = asyncio.create_task(envoy.start())
    await events.until(lambda told: told.kinds() == ["EnvoyStarted"])

    await envoy.stop()

    with pytest.raises(EnvoyFailed):
        await starting
    assert PredecessorEnded(old_pid, 0) in events.seen
    assert living_envoys(lab.state.envoy_pids) == ()


@pytest.mark.envoy
async def test_failed_start_leaves_the_old_envoy_serving(lab: Lab, tmp_path: Path) -> None:
    old_pid = await _left_by_a_killed_agent(lab, tmp_path)
    broken = _program(tmp_path, "raise SystemExit('out of order')")

    with pytest.raises(EnvoyFailed, match="out of order"):
        await EnvoyProcess(lab.options(binary=broken), Events().tell).start()

    assert await _get(lab.url) == "whole"
    assert [record.process.pid for record in living_envoys(lab.state.envoy_pids)] == [old_pid]
    async with EnvoyProcess(lab.options(), (events := Events()).tell):
        await events.until(lambda told: PredecessorEnded(old_pid, 0) in told.seen)


@pytest.mark.envoy
async def test_bootstrap_that_envoy_refuses_fails_with_the_reason_after_one_launch(lab: Lab) -> None:
    events = Events()
    wrong = Bootstrap()
    wrong.static_resources.listeners.add(name="no address")
    options = EnvoyOptions(find_envoy({}), lab.state, wrong.SerializeToString())

    with pytest.raises(EnvoyFailed, match="refuses its bootstrap"):
        await EnvoyProcess(options, events.tell).start()

    assert events.kinds() == ["EnvoyStarted", "EnvoyDied", "EnvoyGone"]
    died = events.seen[1]
    assert isinstance(died, EnvoyDied)
    assert "address" in died.log_tail.lower()


async def test_program_that_crashes_at_once_is_tried_five_times(lab: Lab, tmp_path: Path) -> None:
    events = Events()
    crashing = _program(
        tmp_path,
        """
        import os, sys
        if "validate" not in sys.argv:
            print("broken beyond repair", file=sys.stderr, flush=True)
            os.kill(os.getpid(), 11)
        """,
    )
    timing = Timing(back_off_ms=1)

    with pytest.raises(EnvoyFailed, match=r"5 times in a row.*signal SIGSEGV: broken beyond repair"):
        await EnvoyProcess(lab.options(binary=crashing, timing=timing), events.tell).start()

    assert events.kinds().count("EnvoyStarted") == 5
    assert [event.in_ms for event in events.seen if isinstance(event, EnvoyRestarting)] == [1, 2, 4, 8]
    assert not lab.state.envoy_pids.exists()


async def test_program_that_cannot_be_executed_fails_with_its_name(lab: Lab, tmp_path: Path) -> None:
    missing = tmp_path / "none"

    with pytest.raises(EnvoyFailed, match=str(missing)):
        await EnvoyProcess(lab.options(binary=missing, timing=Timing(back_off_ms=1)), Events().tell).start()


async def test_program_that_never_gets_ready_is_killed(lab: Lab, tmp_path: Path) -> None:
    events = Events()
    idle = _program(tmp_path, "import sys, time\nif 'validate' not in sys.argv: time.sleep(60)")
    timing = Timing(back_off_ms=1, ready_ms=100, early_deaths=2)

    with pytest.raises(EnvoyFailed, match="signal SIGKILL"):
        await EnvoyProcess(lab.options(binary=idle, timing=timing), events.tell).start()

    assert events.kinds().count("EnvoyStarted") == 2


async def test_program_that_ignores_sigterm_is_killed(lab: Lab, tmp_path: Path) -> None:
    events = Events()
    up = tmp_path / "up"
    os.mkfifo(up)
    deaf = _program(
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
    idle = _program(tmp_path, "import time; time.sleep(60)")
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


async def _left_by_a_killed_agent(lab: Lab, folder: Path) -> int:
    """Run an agent in a process of its own on the same directory, kill it once Envoy serves, return Envoy's pid."""
    bootstrap = folder / "given.pb"
    bootstrap.write_bytes(lab.options().bootstrap)
    program = """
        import asyncio, os, sys
        from pathlib import Path
        from pointsman.sidecar.envoy_binary import find_envoy
        from pointsman.sidecar.envoy_process import EnvoyOptions, EnvoyProcess
        from pointsman.sidecar.state_dir import StateDir

        async def main():
            state = StateDir(Path(sys.argv[1]), runtime=Path(sys.argv[1]))
            options = EnvoyOptions(find_envoy({}), state, Path(sys.argv[2]).read_bytes(), concurrency=1)
            async with EnvoyProcess(options, lambda event: None) as envoy:
                print(envoy.pid, flush=True)
                os.kill(os.getpid(), 9)

        asyncio.run(main())
    """
    lab.state.close()
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(program), str(lab.state.path), str(bootstrap)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert agent.stdout is not None
    async with asyncio.timeout(20):
        pid = int(await agent.stdout.readline())
        assert await agent.wait() == -signal.SIGKILL
    return pid
