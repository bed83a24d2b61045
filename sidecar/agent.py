"""The agent: composes policy, xDS, logs, Envoy, spans, metrics and the admin server into `pointsman run`.

A ring of I/O around pure parts: each loop receives, calls the core, performs. Decides nothing about traffic. Ends with
a drain on SIGTERM or SIGINT; a second signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from aiohttp import web
from pointsman.otel.exporter import SpanExporter
from pointsman.router.entry import LogGap, RequestEntry, TryEntry
from pointsman.router.rollout import Verb
from pointsman.router.table import Table
from pointsman.sidecar import policy_file
from pointsman.sidecar.admin import make_app
from pointsman.sidecar.breaker_loop import BreakerLoop
from pointsman.sidecar.envoy_binary import EnvoyFailed, find_envoy, supports_module
from pointsman.sidecar.envoy_process import (
    AgentEvent,
    EnvoyOptions,
    EnvoyProcess,
    PredecessorEnded,
    PredecessorFound,
)
from pointsman.sidecar.json_log import event
from pointsman.sidecar.live import Live
from pointsman.sidecar.policy_watch import Fingerprint, changes, fingerprint
from pointsman.sidecar.port_probe import PortRefused, check_port, claimed_port
from pointsman.sidecar.process_identity import living_envoys
from pointsman.sidecar.recorder import Recorder
from pointsman.sidecar.rollout_loop import RolloutLoop
from pointsman.sidecar.rollout_store import RolloutStore
from pointsman.sidecar.state_dir import StateDir, StateRefused, default_state_path, runtime_path
from pointsman.sidecar.supervision import EnvoyAdopted, EnvoyDied, EnvoyReady, EnvoyRestarting, EnvoyStarted, Timing
from pointsman.sidecar.views import Json, breakers_view
from pointsman.xds.ads import DEFAULT_GROUP, AdsRefused, AdsServer, NotAcknowledged
from pointsman.xds.bootstrap import BootstrapSpec, render_bootstrap
from pointsman.xds.clusters import split_address
from pointsman.xds.logs import LogReceiver
from pointsman.xds.proxyless import PROXYLESS_GROUP, group_of
from pointsman.xds.render import Renderer
from pointsman.xds.snapshot import Snapshot, SnapshotRefused
from pointsman.xds.status import NodeStatus, ResourceRefused, XdsEvent

MODULE = Path(__file__).resolve().parent / "libpmscan.so"
"""The body scanner, beside this file; absent where no C compiler was found at build time."""

ACKNOWLEDGED_WITHIN_S = 30.0
EXPORT_DEADLINE_S = 1.0
"""What the last spans may take to leave at the end; SIGTERM with nothing in flight ends within 2 s."""


class AgentRefused(Exception):
    """The agent cannot run as asked: policy, port or state; exit 2."""


class AgentFault(Exception):
    """The agent cannot go on; its Envoy can, and must not be ended with it."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line says."""

    config: Path
    drain_ms: int = 30_000
    concurrency: int = 0


class Agent:
    """One run."""

    def __init__(self, options: RunOptions) -> None:
        """Starts nothing yet."""
        self._options = options
        self._stop = asyncio.Event()
        self._is_ready = False
        self._scanner_problem: str | None = None
        self._live: Live
        self._ads: AdsServer
        self._logs: LogReceiver
        self._recorder: Recorder
        self._breakers: BreakerLoop
        self._rollouts: RolloutLoop
        self._envoy: EnvoyProcess | None = None
        self._published = asyncio.Event()
        self._seen: Fingerprint = ()
        self._background: set[asyncio.Task[object]] = set()
        self._unconfirmed = 0
        self._is_draining = False

    async def run(self) -> int:
        """Run until a signal; 0 after a clean drain, 1 otherwise. AgentRefused and EnvoyFailed tell why not at all."""
        self._seen = fingerprint(self._options.config)
        decoded = policy_file.load(self._options.config)
        if decoded.policy is None:
            raise AgentRefused("\n".join(problem.render() for problem in decoded.problems))
        settings = decoded.policy.settings
        binary = find_envoy(os.environ)
        runtime = runtime_path(os.environ)
        state_path = Path(settings.state_dir) if settings.state_dir else None
        state_path = state_path or default_state_path(self._options.config, os.environ)
        try:
            with contextlib.ExitStack() as held:
                state = held.enter_context(StateDir(state_path, runtime=runtime))
                old = frozenset(record.process.pid for record in living_envoys(state.envoy_pids))
                held.enter_context(claimed_port(settings.listen, runtime=runtime, own_pids=old))
                check_port(settings.admin)
                self._scanner_problem = await supports_module(binary, MODULE, state)
                has_scanner = self._scanner_problem is None
                self._rollouts = RolloutLoop(
                    decoded.policy, RolloutStore(state.rollouts), self._on_decision, withheld=self._withheld
                )
                self._live = Live(decoded.policy, Renderer(has_scanner=has_scanner), self._rollouts)
                self._live.tell_start(decoded.problems)
                if not has_scanner:
                    event("header mode: bodies are not read", logging.WARNING, reason=self._scanner_problem)
                return await self._serve(binary, state)
        except (StateRefused, PortRefused, SnapshotRefused) as refused:
            raise AgentRefused(str(refused)) from refused

    async def _serve(self, binary: Path, state: StateDir) -> int:
        live = self._live
        self._recorder = Recorder(live.metrics, live.in_force.attribution)
        self._ads = AdsServer(state.xds_socket, group_of=group_of, on_event=self._on_xds)
        self._breakers = BreakerLoop(live.in_force.policy, live.metrics, self._on_decision)
        self._breakers.adopt(live.in_force.policy, live.in_force.attribution.rows)
        self._rollouts.adopt(live.in_force.policy, live.in_force.attribution.rows)
        self._logs = LogReceiver(state.log_socket, self._on_entries)
        self._publish(live.in_force.snapshot)
        self._renew_exporter()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        async with contextlib.AsyncExitStack() as opened:
            opened.push_async_callback(self._close_exporter)
            try:
                await self._ads.start()
                opened.push_async_callback(self._ads.stop, 0.1)
                await self._logs.start()
                opened.push_async_callback(self._logs.stop, 0.1)
                await self._start_admin(opened)
            except (AdsRefused, OSError) as error:
                raise AgentRefused(f"a socket of the agent cannot be opened: {error}") from error
            self._envoy = EnvoyProcess(self._envoy_options(binary, state), self._on_envoy)
            try:
                return await self._until_stopped(self._envoy)
            except (EnvoyFailed, NotAcknowledged, asyncio.CancelledError):
                await self._envoy.stop()
                raise
            except BaseException as fault:
                # A fault of ours ends the agent, not the traffic: the next run adopts this Envoy.
                await self._envoy.abandon()
                raise AgentFault("the agent has a fault and ends; Envoy serves on with its last table") from fault

    async def _start_admin(self, opened: contextlib.AsyncExitStack) -> None:
        runner = web.AppRunner(make_app(self), access_log=None)
        await runner.setup()
        opened.push_async_callback(runner.cleanup)
        host, port = split_address(self._live.in_force.policy.settings.admin)
        await web.TCPSite(runner, host, port).start()

    def _envoy_options(self, binary: Path, state: StateDir) -> EnvoyOptions:
        def bootstrap(node_id: str) -> bytes:
            spec = BootstrapSpec(node_id, str(state.admin_socket), str(state.xds_socket), str(state.log_socket))
            return render_bootstrap(spec).SerializeToString(deterministic=True)

        return EnvoyOptions(
            binary=binary,
            state=state,
            bootstrap=bootstrap,
            module=MODULE if self._scanner_problem is None else None,
            environ=os.environ,
            concurrency=self._options.concurrency,
            timing=Timing(drain_ms=self._options.drain_ms),
        )

    async def _until_stopped(self, envoy: EnvoyProcess) -> int:
        """Start Envoy, serve, drain. Losing Envoy for good ends the run with EnvoyFailed."""
        stopping = asyncio.create_task(self._stop.wait())
        starting = asyncio.create_task(self._start(envoy))
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if self._stop.is_set():
            await envoy.stop()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        await starting
        self._announce()
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(self._watch_policy()),
                group.create_task(self._confirm_changes()),
                group.create_task(self._breakers.run()),
                group.create_task(self._rollouts.run()),
            ]
            gone = group.create_task(envoy.gone())
            await asyncio.wait((gone, stopping), return_when=asyncio.FIRST_COMPLETED)
            self._stop.set()
            self._is_draining = True
            event("draining", within_ms=self._options.drain_ms)
            self._logs.expect_end()
            ended = await envoy.stop()
            for loop in loops:
                loop.cancel()
        if ended.text:
            raise EnvoyFailed(ended.text)
        event("stopped", clean=ended.is_clean, cut_requests=ended.cut_requests)
        return 0 if ended.is_clean else 1

    async def _start(self, envoy: EnvoyProcess) -> None:
        """Return once Envoy serves the first table; EnvoyFailed when it refuses it (the port may have been taken)."""
        await envoy.start()
        answer = await self._ads.wait_acknowledged(self._live.in_force.snapshot, ACKNOWLEDGED_WITHIN_S)
        if answer.refused:
            texts = "; ".join(node.last_refusal for node in self._ads.status() if node.last_refusal)
            raise EnvoyFailed(f"Envoy refused its first table: {texts}")

    def _announce(self) -> None:
        self._is_ready = True
        settings = self._live.in_force.policy.settings
        try:
            print(f"ready listen={settings.listen} admin={settings.admin}", flush=True)
        except OSError:  # whoever started us does not read; that must not end the traffic
            event("nobody reads the ready line", listen=settings.listen, admin=settings.admin)

    async def _watch_policy(self) -> None:
        """Reload on every change on disk. What goes wrong while reading is a problem of the policy, not of the loop."""
        async for _ in changes(self._options.config, self._stop, self._seen):
            self._reload()

    def _reload(self) -> None:
        started = time.monotonic()
        tracing = self._live.in_force.policy.settings.tracing
        try:
            decoded = policy_file.load(self._options.config)
            applied = self._live.apply(decoded.policy, decoded.problems, self._publish)
        except Exception as error:  # noqa: BLE001 - the outermost loop: a fault of ours must not end the run
            self._live.refuse_fault(error)
            return
        if not applied:
            return
        self._recorder.attribution = self._live.in_force.attribution
        self._breakers.adopt(self._live.in_force.policy, self._live.in_force.attribution.rows)
        self._rollouts.adopt(self._live.in_force.policy, self._live.in_force.attribution.rows)
        self._on_decision()
        if self._live.in_force.policy.settings.tracing != tracing:
            self._renew_exporter()
        event("policy published", took_ms=round((time.monotonic() - started) * 1e3, 1))

    def _on_entries(self, entries: Sequence[RequestEntry | TryEntry | LogGap]) -> None:
        self._recorder.record(entries)
        self._breakers.observe(entries)
        self._rollouts.observe(entries)

    def _withheld(self) -> tuple[str, ...]:
        """Targets that a breaker does not admit whole."""
        return tuple(target for target, _ in self._breakers.breakers.admits()) if self._breakers.acts else ()

    def _on_decision(self) -> None:
        """Put the breakers' and the rollouts' decisions into the table; in observe mode there are none."""
        self._live.readmit(self._breakers.breakers.admits() if self._breakers.acts else {}, self._publish)
        self._recorder.attribution = self._live.in_force.attribution

    def _publish(self, snapshot: Snapshot) -> None:
        self._ads.publish(snapshot)
        self._ads.publish(self._live.in_force.proxyless, group=PROXYLESS_GROUP)
        self._live.metrics.snapshot_published()
        self._unconfirmed += 1
        self._published.set()

    async def _confirm_changes(self) -> None:
        """Count what became of published snapshots; a refusal is told by `_on_xds`."""
        while True:
            await self._published.wait()
            self._published.clear()
            snapshot = self._live.in_force.snapshot
            try:
                answer = await self._ads.wait_acknowledged(snapshot, ACKNOWLEDGED_WITHIN_S)
            except NotAcknowledged as late:
                event("Envoy has not answered the published table", logging.WARNING, detail=str(late))
                continue
            # A later snapshot answers for those before it.
            for _ in range(self._unconfirmed - bool(answer.refused)):
                self._live.metrics.snapshot_acked()
            if answer.refused:
                self._live.metrics.snapshot_refused()
            self._unconfirmed = 0

    def _renew_exporter(self) -> None:
        """Send spans where the policy in force says; the exporter before it delivers what it has and ends."""
        before, self._recorder.exporter = self._recorder.exporter, None
        if before is not None:
            self._in_background(before.close(EXPORT_DEADLINE_S))
        endpoint = self._live.in_force.policy.settings.tracing.otlp
        if endpoint is None:
            return
        exporter = SpanExporter(
            endpoint, service_version=metadata.version("pointsman"), on_drop=self._live.metrics.spans_dropped
        )
        self._recorder.exporter = exporter
        self._in_background(exporter.run())

    async def _close_exporter(self) -> None:
        if self._recorder.exporter is not None:
            await self._recorder.exporter.close(EXPORT_DEADLINE_S)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _in_background(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _on_signal(self) -> None:
        if self._stop.is_set() and self._envoy is not None:
            self._in_background(self._envoy.stop())
        self._stop.set()

    def _on_xds(self, happened: XdsEvent) -> None:
        if isinstance(happened, ResourceRefused) and happened.is_final:
            event(
                "a resource was refused, the last good one is kept",
                logging.ERROR,
                node=happened.node_id,
                type=happened.type_url.label,
                resources=list(happened.names),
                version=happened.version,
                refusal=happened.text,
            )

    def _on_envoy(self, happened: AgentEvent) -> None:
        if isinstance(happened, EnvoyStarted):
            # What the process before it refused may have been for its own reasons (a port in use).
            if self._envoy is not None:
                self._ads.forget_refusals(self._envoy.node_id)
        elif isinstance(happened, EnvoyAdopted):
            event("Envoy of an earlier run adopted", pid=happened.pid)
        elif isinstance(happened, EnvoyReady):
            event("Envoy serves", after_ms=happened.after_ms)
        elif isinstance(happened, EnvoyDied):
            self._live.metrics.envoy_restarted()
            event("Envoy died", logging.ERROR, exit=happened.exit_text, log_tail=happened.log_tail)
        elif isinstance(happened, EnvoyRestarting):
            event("Envoy is started again", in_ms=happened.in_ms)
        elif isinstance(happened, PredecessorFound):
            event("Envoy of an earlier run is replaced", pid=happened.pid, changed=list(happened.reasons))
        elif isinstance(happened, PredecessorEnded):
            event("Envoy of an earlier run drained and ended", pid=happened.pid, cut_requests=happened.cut_requests)

    # ---- what the admin server asks (admin.AdminSource)

    def health(self) -> Json:
        """Return `status` (starting, ready, degraded or draining) and the reasons."""
        reasons = [problem.render() for problem in self._live.problems]
        refused = [
            f"Envoy refused {refusal.type_url.label} {refusal.name}: {refusal.text}"
            for node in self._ads.status()
            if node.is_connected and node.group == DEFAULT_GROUP  # not one that was replaced, and Envoy's only
            for kind in node.types
            for refusal in kind.refused
        ]
        if self._is_ready and not self._is_draining and self._envoy is not None and not self._envoy.is_serving:
            reasons.append("Envoy is not serving; it is being restarted")
        status = "degraded" if reasons or refused else "ready"
        if self._is_draining or not self._is_ready:
            status = "draining" if self._is_draining else "starting"
        view: Json = {
            "status": status,
            "version": self._live.in_force.snapshot.version,
            "bodies": "read" if self._scanner_problem is None else f"not read (header mode): {self._scanner_problem}",
        }
        if reasons or refused:
            view["degraded"] = [*reasons, *refused]
        if self._live.warnings:
            view["warnings"] = [problem.render() for problem in self._live.warnings]
        if self._live.pending:
            view["nextStart"] = list(self._live.pending)
        return view

    def metrics(self, accept: str | None) -> tuple[bytes, str]:
        """Return the metrics page and its content type."""
        return self._live.metrics.render(accept)

    def table(self) -> tuple[Table, str, bool]:
        """Return the table in force, its version, and whether bodies are read."""
        in_force = self._live.in_force
        return in_force.table, in_force.snapshot.version, self._scanner_problem is None

    def breakers(self) -> Json:
        """Return every breaker with its state, reason and counts."""
        return breakers_view(self._breakers.breakers, time.monotonic_ns() // 1_000_000, acts=self._breakers.acts)

    def rollouts(self) -> Json:
        """Return every rollout with its evidence and history."""
        return self._rollouts.view()

    def rollout_command(self, route: str, verb: Verb) -> Json:
        """Do what an operator asks; KeyError for an unknown route, RolloutRefused where it does not fit."""
        return self._rollouts.command(route, verb)

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Return the xDS nodes."""
        return self._ads.status()
