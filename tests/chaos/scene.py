"""What a disturbance of a chaos run acts on: the product, the timeline, the disk, the clock, and the script's draws.

Decides how a policy reaches the timeline and when things are right again. Called by the disturbances and by trial.py.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from random import Random

from ask import Draw
from client import Client, Outcome
from clock import MovableClock
from ledger import Class, Verdict, judge
from product import Product
from state_disk import StateDisk
from timeline import Rule, Timeline
from variant import Variant, other_than

PROBES_IN_A_ROW = 5
"""Each on a connection of its own: more than Envoy has workers."""

TRAFFIC_WITHIN_S = 60.0
SETTLED_WITHIN_S = 60.0
"""Longer than a drain may take."""

_LOOK_EVERY_S = 0.05


class NotRecovered(Exception):
    """After a disturbance something did not become right again in time; the text says what."""


class Skipped(Exception):
    """The disturbance cannot be had here; the text says why."""


@dataclass
class Scene:
    """The state of one seed's run."""

    seed: int
    product: Product
    timeline: Timeline
    client: Client
    disk: StateDisk
    clock: MovableClock
    random: Random
    draw: Draw
    variant: Variant = field(default_factory=Variant)
    policy_text: str = ""
    harm_ended_s: float = 0.0
    probed: list[Outcome] = field(default_factory=list)
    """Probes for the ledger: they are requests like all others."""

    # ---- what disturbances do

    def write_policy(self, variant: Variant | None = None) -> None:
        """Write this policy, or another than the last one."""
        self.variant = variant or other_than(self.variant, self.random)
        now_s = time.monotonic()
        table, self.policy_text = self.product.write(self.variant)
        self.timeline.policy_written(table, self.policy_text, now_s)

    def fault_begins(self, rule: Rule) -> None:
        """Call it before the harm is done."""
        self.timeline.fault_began(rule, time.monotonic())

    def harm_ends(self) -> None:
        """From here on the time to recovery counts; without a call, from the disturbance's end."""
        self.harm_ended_s = time.monotonic()

    async def pause(self, least_s: float, most_s: float) -> float:
        """Let traffic go on for a drawn time, and return it."""
        drawn_s = self.random.uniform(least_s, most_s)
        await asyncio.sleep(drawn_s)
        return drawn_s

    async def until_status(self, status: str, within_s: float = 10.0) -> None:
        """Wait until /readyz says so."""
        await self._until(lambda: self._has_status((status,)), within_s, f"/readyz did not become {status}")

    # ---- recovery

    async def until_traffic_is_right(self) -> None:
        """Wait for probes that are answered as the policy says; then no fault excuses anything any more."""
        deadline_s, right, last = time.monotonic() + TRAFFIC_WITHIN_S, 0, "no probe"
        while right < PROBES_IN_A_ROW:
            verdict = await self._probe()
            right = right + 1 if verdict.kind in (Class.SUCCESS, Class.REFUSED) else 0
            last = f"{verdict.kind.value}: {verdict.why}"
            if time.monotonic() > deadline_s:
                raise NotRecovered(f"traffic not right within {TRAFFIC_WITHIN_S:.0f} s; last probe: {last}")
            await asyncio.sleep(0 if right else _LOOK_EVERY_S)
        self.timeline.faults_ended(time.monotonic())

    async def until_settled(self) -> None:
        """Wait until /readyz is good, Envoy has the policy written last, and only one Envoy lives."""
        await self._until(lambda: self._has_status(("ready", "degraded")), SETTLED_WITHIN_S, "/readyz is not ready")
        await self._until(self.product.has_table_in_force, SETTLED_WITHIN_S, "the policy is not in force")
        await self._until(self._has_one_envoy, SETTLED_WITHIN_S, "more or less than one Envoy")
        self.timeline.policy_settled(self.policy_text, time.monotonic())

    async def _probe(self) -> Verdict:
        outcome = await self.client.ask(self.draw.probe())
        self.probed.append(outcome)
        return judge(outcome, self.timeline)

    async def _has_status(self, wanted: tuple[str, ...]) -> bool:
        return (await self.product.page("/readyz")).get("status") in wanted

    async def _has_one_envoy(self) -> bool:
        return len(self.product.envoys()) == 1

    async def _until(self, holds, within_s: float, otherwise: str) -> None:  # type: ignore[no-untyped-def]
        deadline_s, last = time.monotonic() + within_s, ""
        while True:
            try:
                if await holds():
                    return
                last = ""
            except OSError as error:
                last = f" ({error})"
            if time.monotonic() > deadline_s:
                raise NotRecovered(f"{otherwise} within {within_s:.0f} s{last}")
            await asyncio.sleep(_LOOK_EVERY_S)
