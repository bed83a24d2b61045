"""The script of a chaos run: which disturbance comes next, drawn from the seed, and how each is seen to its end.

Every disturbance comes once before any comes again. After each one traffic has to be right and everything settled, by
deadlines, before the next: faults must not hide each other.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random

import kills
import surroundings
from product import StartFailed
from scene import NotRecovered, Scene, Skipped

CATALOGUE: dict[str, Callable[[Scene], Awaitable[str]]] = {
    "kill agent": kills.kill_agent,
    "kill agent again": kills.kill_agent_again,
    "start with bad policy": kills.start_with_bad_policy,
    "kill envoy": kills.kill_envoy,
    "kill both": kills.kill_both,
    "stop and start": kills.stop_and_start,
    "freeze agent": kills.freeze_agent,
    "change policy": surroundings.change_policy,
    "bad policy": surroundings.bad_policy,
    "flood xds": surroundings.flood_xds,
    "fill disk": surroundings.fill_disk,
    "move clock": surroundings.move_clock,
}


@dataclass(frozen=True, slots=True)
class Deed:
    """One disturbance that was done. `recovered_s` and `settled_s` count from the end of the harm; None: never."""

    name: str
    at_s: float
    detail: str
    recovered_s: float | None = None
    settled_s: float | None = None
    was_skipped: bool = False
    ended_at_s: float = 0.0

    def line(self) -> str:
        """Return it for the log, with its offset."""
        if self.was_skipped:
            return f"{self.at_s:7.1f} s  {self.name}: skipped, {self.detail}"
        if self.recovered_s is None or self.settled_s is None:
            return f"{self.at_s:7.1f} s  {self.name}: NOT RECOVERED, {self.detail}"
        times = f"traffic right after {self.recovered_s:.2f} s, settled after {self.settled_s:.2f} s"
        return f"{self.at_s:7.1f} s  {self.name}: {self.detail}; {times}"


def series(random: Random, names: tuple[str, ...]) -> Iterator[str]:
    """Yield names for ever: each round is a new order of all."""
    while True:
        yield from random.sample(names, len(names))


async def do(scene: Scene, name: str, began_s: float) -> Deed:
    """Do one disturbance and see it to its end. A failed recovery is the deed's, and ends the run."""
    at_s = time.monotonic()
    scene.harm_ended_s = 0.0
    try:
        detail = await CATALOGUE[name](scene)
        harm_ended_s = scene.harm_ended_s or time.monotonic()
        await scene.until_traffic_is_right()
        recovered_s = time.monotonic() - harm_ended_s
        await scene.until_settled()
    except Skipped as skipped:
        return Deed(name, at_s - began_s, str(skipped), was_skipped=True)
    except (NotRecovered, StartFailed, TimeoutError) as failed:
        return Deed(name, at_s - began_s, str(failed) or type(failed).__name__)
    now_s = time.monotonic()
    settled_s = now_s - harm_ended_s
    return Deed(name, at_s - began_s, detail, recovered_s, settled_s, ended_at_s=now_s - began_s)
