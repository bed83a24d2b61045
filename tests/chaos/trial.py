"""One seed of a chaos run: product, servers, load and script together, and the account at the end.

Decides what makes a run fail: a request unaccounted for, one worked on twice, a recovery that did not come, memory
that grows, something held open or left behind, an agent that logged a traceback. Ends everything that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ask import Draw
from client import Client
from clock import MovableClock
from ledger import BUSY, SMALL, Ledger, Verdict, executed_twice, judge
from pointsman.otel.trace_receiver import TraceReceiver
from product import Product, StartFailed
from scene import NotRecovered, Scene
from script import CATALOGUE, Deed, do, series
from server import ModelServer
from state_disk import StateDisk
from timeline import Timeline
from traffic import Traffic
from vitals import Vitals, look

SERVERS = {
    "STABLE": "support-chat@v2.2",
    "CANARY": "support-chat@v2.3-beta",
    "THIRD_PORT": "support-chat@v3",
    "SMALL": SMALL,
    "STORE": "store@v1",
    "BUSY": BUSY,
}
CALM_S = (1.0, 3.0)
"""Between two disturbances."""

SHOWN = 10
"""Unaccounted requests that are told after one disturbance; the rest is counted."""

QUIET_WITHIN_S = 15.0
MORE_DESCRIPTORS = 12
"""What a process may hold more at the end, without a request, than when its life began: kept connections to servers."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    seed: int
    seconds: float
    per_s: int
    names: tuple[str, ...] = tuple(CATALOGUE)


@dataclass
class Trial:
    """What came of one seed. `failures` is empty when all is well."""

    plan: Plan
    ledger: Ledger = field(default_factory=Ledger)
    deeds: list[Deed] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    vitals: Vitals | None = None
    asked: int = 0
    began_s: float = 0.0
    is_whole: bool = False
    """Whether it came to its end: an interrupted run has no account."""

    async def run(self, say: Callable[[str], None]) -> None:
        """Run it; afterwards the fields hold the account. The folder stays when something failed, for a look."""
        folder = Path(tempfile.mkdtemp(prefix="pm-chaos-"))
        try:
            async with contextlib.AsyncExitStack() as held:
                await self._run(folder, held, say)
        finally:
            if self.failures:
                say(f"          the agent's log and last policy are kept in {folder}")
            else:
                shutil.rmtree(folder)

    async def _run(self, folder: Path, held: contextlib.AsyncExitStack, say: Callable[[str], None]) -> None:
        plan = self.plan
        receiver = await held.enter_async_context(TraceReceiver())
        servers = {key: ModelServer(name, 503 if name == BUSY else 200) for key, name in SERVERS.items()}
        for server in servers.values():
            await held.enter_async_context(server.serving())
        places: dict[str, object] = {key: server.port for key, server in servers.items()}
        places |= {"DEAD": held.enter_context(_refusing_port()), "OTLP": receiver.port, "STATE": folder / "s"}
        places |= {"LISTEN": _free_port(), "ADMIN": _free_port()}
        disk = held.enter_context(StateDisk(folder / "s"))
        clock = MovableClock(folder)
        product = Product(folder, places, clock.environ)
        held.push_async_callback(self._end, product)
        client = Client(product.listen)
        held.push_async_callback(client.close)
        draw = Draw(plan.seed)
        script = Random(f"script {plan.seed}")
        scene = Scene(plan.seed, product, Timeline(), client, disk, clock, script, draw)
        scene.write_policy(scene.variant)
        await product.start()
        self.vitals = Vitals(product)
        watching = asyncio.create_task(self.vitals.watch())
        held.callback(watching.cancel)
        self.began_s = time.monotonic()
        await scene.until_settled()
        async with Traffic(client, draw, per_s=plan.per_s) as traffic:
            await self._disturb(scene, traffic, say)
            await traffic.end()
            self._judge(scene, traffic)
            self.asked = traffic.asked
        await client.close()
        await self._look_for_leftovers(scene, list(servers.values()))
        for ask_id, count in executed_twice(servers.values()).items():
            self.failures.append(f"request {ask_id} was executed {count} times")
        self.failures += [f"memory grows: {life.line()}" for life in self.vitals.lives.values() if life.is_growing]
        self.is_whole = True

    async def _disturb(self, scene: Scene, traffic: Traffic, say: Callable[[str], None]) -> None:
        names = series(scene.random, self.plan.names)
        while time.monotonic() - self.began_s < self.plan.seconds:
            await scene.pause(*CALM_S)
            deed = await do(scene, next(names), self.began_s)
            self.deeds.append(deed)
            say(deed.line())
            found = self._judge(scene, traffic)
            for verdict in found[:SHOWN]:
                say(self._told(verdict))
            if len(found) > SHOWN:
                say(f"          and {len(found) - SHOWN} more")
            if deed.recovered_s is None and not deed.was_skipped:
                self.failures.append(f"{deed.name} at {deed.at_s:.1f} s: {deed.detail}")
                break

    def _judge(self, scene: Scene, traffic: Traffic) -> list[Verdict]:
        """Judge what ended; return those that nothing accounts for."""
        known = len(self.ledger.unaccounted)
        probed, scene.probed = scene.probed, []
        for outcome in (*traffic.take(), *probed):
            self.ledger.add(judge(outcome, scene.timeline))
        found = self.ledger.unaccounted[known:]
        self.failures += [self._told(verdict) for verdict in found]
        return found

    def _told(self, verdict: Verdict) -> str:
        """Say which request, when, what was found, and what the script did then."""
        outcome = verdict.outcome
        from_s, until_s = outcome.started_s - self.began_s, outcome.ended_s - self.began_s
        near = [deed for deed in self.deeds if deed.at_s <= until_s and (deed.ended_at_s or until_s) >= from_s]
        then = ", ".join(f"{deed.name} (+{from_s - deed.at_s:.2f} s)" for deed in near) or "nothing"
        way = "new connection" if outcome.ask.on_new_connection else "kept connection"
        return (
            f"          UNACCOUNTED {outcome.ask.id} {outcome.ask.kind.value} ({way}) from {from_s:.2f} to"
            f" {until_s:.2f} s: {verdict.why}; script then: {then}"
        )

    async def _look_for_leftovers(self, scene: Scene, servers: list[ModelServer]) -> None:
        """In flight is nothing, and descriptors are back."""
        deadline_s = time.monotonic() + QUIET_WITHIN_S
        while held := await self._held(scene, servers):
            if time.monotonic() > deadline_s:
                self.failures += [f"still held {QUIET_WITHIN_S:.0f} s after the last request: {what}" for what in held]
                return
            await asyncio.sleep(0.1)

    async def _held(self, scene: Scene, servers: list[ModelServer]) -> list[str]:
        try:
            gauges = await scene.product.gauges()
        except OSError as error:
            return [str(error)]
        held = [f"Envoy {name} = {value}" for name, value in gauges.items() if value]
        held += [f"server {server.name} works on {server.open_requests}" for server in servers if server.open_requests]
        for life in self.vitals.lives.values() if self.vitals else ():
            before, now = life.begun, look(life.pid)
            if before and now and now.rss_bytes and now.descriptors > before.descriptors + MORE_DESCRIPTORS:
                held.append(f"{life.role} {life.pid} has {now.descriptors} descriptors, {before.descriptors} before")
        return held

    async def _end(self, product: Product) -> None:
        """Stop the product: with nothing in flight that is exit 0, and no Envoy stays."""
        was_running, was_well = product.agent_pid is not None, self.is_whole and not self.failures
        left = await product.end_all()
        if product.process is None:
            return
        if was_running and was_well and product.process.returncode != 0:
            self.failures.append(f"the last stop ended with {product.process.returncode}: {product.log_tail()}")
        if left and was_well:
            self.failures.append(f"Envoys left behind by an agent that stopped: {left}")
        for entry in product.log_entries():
            text = str(entry.get("not_json", entry.get("exception", "")))
            is_foreign = entry.get("level") == "error" and entry.get("logger") != "pointsman"
            if "Traceback" in text or "exception" in entry or is_foreign:
                self.failures.append(f"the agent logged: {str(entry)[:600]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _refusing_port() -> Iterator[int]:
    """A port that is ours and refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


UNWELL = (StartFailed, NotRecovered)
"""What a run that cannot even begin raises."""
