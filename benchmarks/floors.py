"""The floors of the project's speed issue, and whether what was measured meets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import workload
from comparison import Rounds, Spread, beyond, over, python_us
from measured import BARE, BODY, HEADERS, LARGE_TABLE, ONE_ROW, TRACED, TRIES


@dataclass(frozen=True, slots=True)
class Floor:
    """One demand: what is measured with which workload may be at most `limit`."""

    name: str
    workload: str
    subjects: tuple[str, ...]
    limit: float
    unit: str
    measure: Callable[[Rounds], Spread]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A floor with what was found; the median decides."""

    floor: Floor
    found: Spread

    @property
    def is_met(self) -> bool:
        """Whether the median is within the limit."""
        return self.found.median <= self.floor.limit


def judge(results: Mapping[str, Rounds]) -> list[Verdict]:
    """Return the verdict on every floor whose workload and subjects were measured."""
    return [
        Verdict(floor, floor.measure(results[floor.workload]))
        for floor in FLOORS
        if floor.workload in results and all(subject in results[floor.workload] for subject in floor.subjects)
    ]


def _ratio(name: str, size: workload.Workload, subject: str, limit: float) -> Floor:
    return Floor(name, size.name, (subject, BARE), limit, "x", lambda rounds: over(rounds, subject, BARE))


def _python(name: str, subject: str, limit: float) -> Floor:
    return Floor(name, workload.SMALL.name, (subject,), limit, "us", lambda rounds: python_us(rounds, subject))


FLOORS = (
    _ratio("header routing, request log", workload.SMALL, HEADERS, 1.35),
    _ratio("body routing, answer tokens", workload.SMALL, BODY, 1.65),
    _ratio("with the per-try log", workload.SMALL, TRIES, 1.7),
    _ratio("every request traced", workload.SMALL, TRACED, 2.2),
    _ratio("220 KB, plain", workload.LARGE, BODY, 1.35),
    _ratio("220 KB, full of escapes", workload.LARGE_ESCAPED, BODY, 1.8),
    Floor(
        "large table over one row",
        workload.SMALL.name,
        (LARGE_TABLE, ONE_ROW),
        10.0,
        "us",
        lambda rounds: beyond(rounds, LARGE_TABLE, ONE_ROW),
    ),
    _python("Python, untraced", TRIES, 40.0),
    _python("Python, traced", TRACED, 75.0),
)
