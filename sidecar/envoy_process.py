"""One supervised Envoy: launch or adoption, readiness, restart, drain, end, and the replacement of others.

Performs what supervision.py decides; decides only places, arguments and node ids. Envoy runs in a session of its own
and logs to a file, so that it serves on when the agent is killed; the next agent on the same state directory finds it
by its record. It adopts it when it would start just the same one (envoy_origin.py); else it starts a new one beside it
on the same port, and hands over once the new one serves. Refuses to signal any process that it cannot identify.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from pointsman.sidecar.envoy_admin import EnvoyAdmin, drain
from pointsman.sidecar.envoy_binary import EnvoyFailed, bootstrap_problem, envoy_environment
from pointsman.sidecar.envoy_handover import Urgency, adoptable, end, hand_over
from pointsman.sidecar.envoy_log import log_tail, open_log
from pointsman.sidecar.envoy_origin import changed_parts, origin_of
from pointsman.sidecar.process_identity import (
    EnvoyRecord,
    ProcessIdentity,
    identify,
    is_alive,
    living_envoys,
    replace_file,
    send_signal,
    until_ended,
    write_envoys,
)
from pointsman.sidecar.shared_port import SharedPort
from pointsman.sidecar.state_dir import StateDir
from pointsman.sidecar.supervision import (
    Adopt,
    AdoptAsked,
    BecameReady,
    BootstrapChecked,
    Cause,
    CheckBootstrap,
    Command,
    Died,
    Disown,
    Drain,
    Drained,
    EnvoyAdopted,
    EnvoyEvent,
    EnvoyGone,
    EnvoyReady,
    Event,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    Phase,
    StartAsked,
    StopAsked,
    Supervision,
    Tell,
    Terminate,
    TimePassed,
    Timing,
    Watch,
    step,
)

_READY_POLL_S = 0.02
_LISTENER_POLL_S = 0.1
_LISTENER_DRAIN_S = 600
"""How long connections of a changed listener go on before Envoy cuts them: its own default, longer than most streams.
The drain at the end does not use it."""

_LOG_FLUSH_MS = 200
_MAX_CONCURRENCY = 2
_NOT_READY = "not ready"
_BEGUN = "replacement had begun"
_UNKNOWN_EXIT = "an exit status that only its first agent was told"


@dataclass(frozen=True, slots=True)
class EnvoyOptions:
    """What to run and where. `module` None: no scanner is searched."""

    binary: Path
    state: StateDir
    bootstrap: Callable[[str], bytes]
    """Makes the serialized message of xds/bootstrap.py for a node id; its admin socket is `state.admin_socket`."""

    module: Path | None = None
    """The scanner's library."""

    environ: Mapping[str, str] = field(default_factory=dict)
    """The agent's environment; Envoy gets a few variables of it."""

    concurrency: int = 0
    """Worker threads; zero: as many as processors, at most 2."""

    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True)
class PredecessorFound:
    """An Envoy of an earlier agent will be replaced. `reasons`: parts of EnvoyOrigin that changed, or one below."""

    pid: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PredecessorEnded:
    """An Envoy of an earlier agent was drained and ended. `cut_requests` None: not known."""

    pid: int
    cut_requests: int | None


AgentEvent = EnvoyEvent | PredecessorFound | PredecessorEnded


class EnvoyProcess:
    """One supervised Envoy; `async with` starts or adopts it, and drains it. One event loop only.

    `tell` gets every event, in order, from the supervising task; it must not block.
    """

    def __init__(self, options: EnvoyOptions, tell: Callable[[AgentEvent], None]) -> None:
        self._options = options
        self._state_dir = options.state
        self._tell = tell
        self._supervision = Supervision()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        """A handful at most: each launch and each piece of work says one thing, once."""

        self._was_ready = asyncio.Event()
        self._is_abandoned = False
        self._task: asyncio.Task[EnvoyGone] | None = None
        self._group = asyncio.TaskGroup()
        self._work: asyncio.Task[None] | None = None
        """What goes on beside the running process: waiting for readiness or a listener, checking, draining."""

        self._process: ProcessIdentity | None = None
        self._records: tuple[EnvoyRecord, ...] = ()
        self._predecessors: tuple[EnvoyRecord, ...] = ()
        self._urgency = Urgency.PATIENT
        self._node_id = _new_node_id()
        arguments = self._arguments()
        self._origin = origin_of(options.binary, options.bootstrap, module=options.module, arguments=arguments)

    @property
    def node_id(self) -> str:
        """What the Envoy calls itself towards the xDS server, restarts included."""
        return self._node_id

    @property
    def pid(self) -> int | None:
        """The running Envoy's pid; None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def is_serving(self) -> bool:
        """Whether Envoy was ready when last heard of."""
        return self._supervision.phase is Phase.SERVING

    async def start(self) -> None:
        """Adopt a living Envoy or start one, and return when it serves; EnvoyFailed when it cannot."""
        try:
            adopted = self._take_over()
            self._write_bootstrap()
        except OSError as error:
            raise EnvoyFailed(
                f"state directory {self._state_dir.path}: {error.strerror}; make room or choose another stateDir"
            ) from error
        # A TaskGroup would wrap the errors of the `async with` body: this one task is ended by stop() instead.
        self._task = asyncio.create_task(self._supervise(), name="envoy supervisor")
        self._events.put_nowait(StartAsked() if adopted is None else AdoptAsked(adopted.process.pid))
        ready = asyncio.create_task(self._was_ready.wait())
        try:
            await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            ready.cancel()
        if self._task.done():
            raise EnvoyFailed(self._task.result().text or "Envoy was stopped before it was ready")

    async def stop(self) -> EnvoyGone:
        """Drain Envoy, end it and return how that went; while a stop is going on, end it at once."""
        if self._task is None:
            return EnvoyGone(Cause.STOPPED, is_clean=True, cut_requests=0)
        self._urgency = Urgency.STOPPING if self._urgency is Urgency.PATIENT else Urgency.AT_ONCE
        self._events.put_nowait(StopAsked())
        return await asyncio.shield(self._task)

    async def abandon(self) -> None:
        """Leave Envoy serving with its last table, unsupervised: for an agent that has a fault and must end."""
        self._is_abandoned = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def gone(self) -> EnvoyGone:
        """Wait until no Envoy runs and none will."""
        if self._task is None:
            raise RuntimeError("EnvoyProcess.gone() before start()")
        return await asyncio.shield(self._task)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # The loop: wait for an event or the time, ask the machine, perform -----------------------------------------------

    async def _supervise(self) -> EnvoyGone:
        try:
            async with self._group:
                gone: EnvoyGone | None = None
                while gone is None:
                    event = await self._next_event()
                    now_ms = time.monotonic_ns() // 1_000_000
                    self._supervision, commands = step(
                        self._supervision, event, now_ms=now_ms, timing=self._options.timing
                    )
                    if isinstance(event, Died):
                        self._forget_process()
                    for command in commands:
                        gone = await self._perform(command) or gone
                self._stop_work()
                if gone.cause is Cause.STOPPED:
                    # Otherwise they go on serving: with their last table they are better than nothing.
                    self._retire_predecessors()
            return gone
        finally:
            # Reached with a living child only when this task was cancelled or has a fault: nobody would supervise it.
            if self._process is not None and not self._is_abandoned:
                send_signal(self._process, signal.SIGKILL)
                self._forget_process()

    async def _next_event(self) -> Event:
        wake_at_ms = self._supervision.wake_at_ms
        if wake_at_ms is None:
            return await self._events.get()
        try:
            async with asyncio.timeout(max(0.0, wake_at_ms / 1000 - time.monotonic())):
                return await self._events.get()
        except TimeoutError:
            return TimePassed()

    async def _perform(self, command: Command) -> EnvoyGone | None:
        match command:
            case Launch():
                await self._launch()
            case Adopt():
                self._begin(self._await_ready())
            case Watch():
                self._watch_adopted()
            case Disown():
                self._disown()
            case CheckBootstrap():
                self._begin(self._check_bootstrap())
            case Drain(within_ms):
                self._begin(self._drain(within_ms))
            case Terminate():
                self._stop_work()
                self._signal(signal.SIGTERM)
            case Kill():
                self._signal(signal.SIGKILL)
            case Tell(event):
                if isinstance(event, EnvoyReady | EnvoyAdopted):
                    self._was_ready.set()
                    self._begin(self._retire_once_replaced())
                self._tell(event)
                return event if isinstance(event, EnvoyGone) else None
        return None

    # Launch and watch ------------------------------------------------------------------------------------------------

    async def _launch(self) -> None:
        state = self._state_dir
        log = -1
        try:
            state.admin_socket.unlink(missing_ok=True)
            if not state.bootstrap.exists():
                self._write_bootstrap()  # somebody removed it
            log = open_log(state.envoy_log)
            log_from = os.fstat(log).st_size
            child = await asyncio.create_subprocess_exec(
                self._options.binary,
                *self._arguments(),
                env=self._environment(),
                cwd="/",
                stdin=asyncio.subprocess.DEVNULL,
                # Its log goes to the file by --log-path. What it says besides is the dump of a crash, with the headers
                # of the request at hand: nobody may keep that.
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._events.put_nowait(LaunchFailed(f"{error.filename or self._options.binary}: {error.strerror}"))
            return
        finally:
            if log >= 0:
                os.close(log)
        process = identify(child.pid)
        self._process = process
        if process is not None:
            self._record((*self._records, EnvoyRecord(process, state.admin_socket, self._node_id, self._origin)))
        self._events.put_nowait(Launched(child.pid))
        self._group.create_task(self._watch(child, log_from))
        self._begin(self._await_ready())

    def _arguments(self) -> tuple[str, ...]:
        return (
            *("-c", str(self._state_dir.bootstrap)),
            "--disable-hot-restart",
            *("--concurrency", str(self._options.concurrency or default_concurrency())),
            *("--log-path", str(self._state_dir.envoy_log)),
            *("-l", "warning"),
            *("--drain-time-s", str(_LISTENER_DRAIN_S)),
            *("--file-flush-interval-msec", str(_LOG_FLUSH_MS)),
        )

    def _environment(self) -> dict[str, str]:
        module = self._options.module
        return envoy_environment(self._options.environ, None if module is None else module.parent)

    def _write_bootstrap(self) -> None:
        replace_file(self._state_dir.bootstrap, self._options.bootstrap(self._node_id))

    async def _watch(self, child: asyncio.subprocess.Process, log_from: int) -> None:
        code = await child.wait()
        exit_text = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        self._events.put_nowait(Died(exit_text, log_tail(self._state_dir.envoy_log, log_from)))

    async def _await_ready(self) -> None:
        async with EnvoyAdmin(self._state_dir.admin_socket) as admin:
            while True:
                if await admin.is_ready():
                    break
                await asyncio.sleep(_READY_POLL_S)
        self._events.put_nowait(BecameReady())

    async def _check_bootstrap(self) -> None:
        try:
            problem = await bootstrap_problem(self._options.binary, self._state_dir.bootstrap, self._environment())
        except EnvoyFailed:
            # No verdict: the next launch shows whether it was a passing trouble.
            problem = None
        self._events.put_nowait(BootstrapChecked(problem))

    async def _drain(self, within_ms: int) -> None:
        async with EnvoyAdmin(self._state_dir.admin_socket) as admin:
            self._events.put_nowait(Drained(await drain(admin, within_ms)))

    def _begin(self, work: asyncio._CoroutineLike[None]) -> None:
        self._stop_work()
        self._work = self._group.create_task(work)

    def _stop_work(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            send_signal(self._process, number)

    def _forget_process(self) -> None:
        self._stop_work()
        self._state_dir.admin_socket.unlink(missing_ok=True)
        self._record(tuple(record for record in self._records if record.process != self._process))
        self._process = None

    def _record(self, records: tuple[EnvoyRecord, ...]) -> None:
        self._records = records
        # A full disk must not end a serving Envoy: only a later agent's take-over depends on the file.
        with contextlib.suppress(OSError):
            write_envoys(self._state_dir.envoy_pids, records)

    # Envoys of an earlier agent --------------------------------------------------------------------------------------

    def _take_over(self) -> EnvoyRecord | None:
        """Return the living Envoy to adopt, if there is one; prepare to replace the others."""
        living = living_envoys(self._state_dir.envoy_pids)
        adopted = adoptable(living, self._state_dir.admin_socket, self._origin)
        self._records = living
        for record in living:
            if record is not adopted:
                self._prepare_to_replace(record, changed_parts(record.origin, self._origin) or (_BEGUN,))
        if adopted is not None:
            self._process = adopted.process
            self._node_id = adopted.node_id
        return adopted

    def _prepare_to_replace(self, record: EnvoyRecord, reasons: tuple[str, ...]) -> None:
        """Move its admin socket aside: the new Envoy takes the name."""
        aside = replace(record, admin_socket=self._state_dir.old_admin_socket(record.process.pid))
        if record.admin_socket != aside.admin_socket:
            # Gone already: it is ended without a drain.
            with contextlib.suppress(FileNotFoundError):
                record.admin_socket.rename(aside.admin_socket)
        self._predecessors = (*self._predecessors, aside)
        self._record(tuple(aside if other is record else other for other in self._records))
        self._tell(PredecessorFound(record.process.pid, reasons))

    def _watch_adopted(self) -> None:
        process, log = self._process, self._state_dir.envoy_log
        assert process is not None
        # An agent that was killed in the middle of a replacement leaves its filter.
        SharedPort(process, ()).release()
        log_from = log.stat().st_size if log.exists() else 0

        async def watch() -> None:
            await until_ended(process)
            self._events.put_nowait(Died(_UNKNOWN_EXIT, log_tail(log, log_from)))

        self._group.create_task(watch())

    def _disown(self) -> None:
        """Replace the Envoy that was to be adopted: under a node id of its own, as its answers must be told apart."""
        self._stop_work()
        process, self._process = self._process, None
        self._node_id = _new_node_id()
        # A full disk shows itself at the launch.
        with contextlib.suppress(OSError):
            self._write_bootstrap()
        for record in self._records:
            if record.process == process and is_alive(process):
                self._prepare_to_replace(record, (_NOT_READY,))

    async def _retire_once_replaced(self) -> None:
        """Retire them when this Envoy has a listener: ready it also becomes when nobody sends one (after 30 s)."""
        async with EnvoyAdmin(self._state_dir.admin_socket) as admin:
            while self._predecessors:
                if await admin.has_client_listener():
                    self._retire_predecessors()
                    break
                await asyncio.sleep(_LISTENER_POLL_S)

    def _retire_predecessors(self) -> None:
        self._group.create_task(self._retire(self._predecessors))
        self._predecessors = ()

    async def _retire(self, records: tuple[EnvoyRecord, ...]) -> None:
        await hand_over(records, self._process)
        await asyncio.gather(*(self._end(record) for record in records))

    async def _end(self, record: EnvoyRecord) -> None:
        timing = self._options.timing
        cut_requests = await end(record, within_ms=timing.drain_ms, end_ms=timing.end_ms, urgency=lambda: self._urgency)
        self._record(tuple(other for other in self._records if other.process != record.process))
        self._tell(PredecessorEnded(record.process.pid, cut_requests))


def _new_node_id() -> str:
    return f"{os.uname().nodename}-{secrets.token_hex(4)}"


def default_concurrency() -> int:
    """Return the worker threads for this machine: Envoy serves a sidecar's load with two."""
    return max(1, min(len(os.sched_getaffinity(0)), _MAX_CONCURRENCY))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)
