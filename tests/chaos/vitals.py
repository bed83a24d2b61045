"""Memory and descriptors of agent and Envoy, sampled each second, one life of a process at a time.

Decides what a slope is: least squares over a life's samples after its warm-up. Refuses to judge a short life: memory
creeps to its peaks for minutes, and 1 MB an hour is 17 KiB a minute.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from product import Product

EVERY_S = 1.0
WARM_UP_S = 300.0
"""Until memory has been as full as this load makes it: every buffer's peak, every pool's size."""

STARTED_AFTER_S = 5.0
SHOWN_FROM_S = 60.0
"""A life of at least so many seconds is told by the minute; it has a slope when so many followed its warm-up."""

JUDGED_FROM_S = 900.0
MAX_SLOPE_MB_PER_H = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process."""

    at_s: float
    rss_bytes: int
    descriptors: int


@dataclass
class Life:
    """One process's samples, from its first second on."""

    role: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    @property
    def begun(self) -> Sample | None:
        """The first sample after its start, when everything that it always holds is open."""
        return next((one for one in self.samples if one.at_s - self.samples[0].at_s >= STARTED_AFTER_S), None)

    @property
    def warm(self) -> list[Sample]:
        """Samples after the warm-up."""
        return [sample for sample in self.samples if sample.at_s - self.samples[0].at_s >= WARM_UP_S]

    @property
    def is_told(self) -> bool:
        """Whether it lived long enough to be told."""
        return self.samples[-1].at_s - self.samples[0].at_s >= SHOWN_FROM_S

    @property
    def warm_s(self) -> float:
        """How long it lived after the warm-up."""
        warm = self.warm
        return warm[-1].at_s - warm[0].at_s if warm else 0.0

    @property
    def slope_mb_per_h(self) -> float | None:
        """The slope after the warm-up; None for a life that is too short for one."""
        warm = self.warm
        if self.warm_s < SHOWN_FROM_S:
            return None
        middle_s = sum(sample.at_s for sample in warm) / len(warm)
        middle_bytes = sum(sample.rss_bytes for sample in warm) / len(warm)
        spread = sum((sample.at_s - middle_s) ** 2 for sample in warm)
        shared = sum((sample.at_s - middle_s) * (sample.rss_bytes - middle_bytes) for sample in warm)
        return shared / spread * 3_600 / 1e6

    @property
    def is_growing(self) -> bool:
        """Whether it lived long enough to say so, and grows faster than it may."""
        slope = self.slope_mb_per_h
        return slope is not None and self.warm_s >= JUDGED_FROM_S and slope >= MAX_SLOPE_MB_PER_H

    def line(self) -> str:
        """Return the life in words."""
        slope, last = self.slope_mb_per_h, self.samples[-1]
        lived_s = last.at_s - self.samples[0].at_s
        told = "too short for a slope" if slope is None else f"{slope:+.2f} MB/h over {self.warm_s:.0f} s after warm-up"
        if slope is not None and self.warm_s < JUDGED_FROM_S:
            told += f" (not judged: under {JUDGED_FROM_S:.0f} s)"
        minutes = [*self.samples[::60], last]  # one sample a second
        rss = ", ".join(f"{sample.rss_bytes / 1e6:.1f}" for sample in minutes) + " MB by the minute"
        fds = f"{self.samples[0].descriptors} to {last.descriptors} descriptors"
        return f"{self.role} {self.pid}: lived {lived_s:.0f} s, {rss}, {fds}; {told}"


def look(pid: int) -> Sample | None:
    """Return the process as it is now; None when it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return Sample(time.monotonic(), pages * _PAGE_BYTES, len(os.listdir(f"/proc/{pid}/fd")))
    except (OSError, IndexError):
        return None


class Vitals:
    """All lives of one run."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self.lives: dict[tuple[str, int], Life] = {}

    async def watch(self) -> None:
        """Sample for ever."""
        while True:
            self.sample()
            await asyncio.sleep(EVERY_S)

    def sample(self) -> None:
        """Look once at everything that lives."""
        pids = [("envoy", envoy.pid) for envoy in self._product.envoys()]
        if self._product.agent_pid is not None:
            pids.append(("agent", self._product.agent_pid))
        for role, pid in pids:
            found = look(pid)
            if found is not None and found.rss_bytes:
                self.lives.setdefault((role, pid), Life(role, pid)).samples.append(found)
