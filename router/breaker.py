"""The circuit breaker: one state machine a target, all of its transitions in this file.

    closed --errors--> open --probe ok, open_for over--> ramping --steps without a trip--> closed
       |                 ^                                  |
       '--latency--> shed: open with admit > 0 -------------'  (a trip while ramping opens again)

Healthy = closed, Degraded = open (admit 0, or shed by lateness), Recovering = ramping. Decides `admit`, the ratio of
its share that a target gets; never moves what it does not own. Pure: the shell brings the time, the
windows' counts and what its probes found, and performs nothing but a new table. Unknown evidence moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pointsman.router.policy import FULL_SHARE, Breaker
from pointsman.router.wilson import lower_bound
from pointsman.router.window import Counts

SHED_STEP = 0.25
"""Lateness takes a quarter of the traffic away at a time: a lighter model that gets all at once is late too."""

SHED_FLOOR = 0.25
"""What lateness alone never takes away."""


class Phase(StrEnum):
    """Where the machine is; the words of `/breakers`."""

    CLOSED = "closed"
    OPEN = "open"
    RAMPING = "ramping"


class Cause(StrEnum):
    """Why it got there: a closed list, also the metric's label."""

    STARTED = "started"
    ERRORS = "errors"
    LATENCY = "latency"
    PROBE_SUCCEEDED = "probe_succeeded"
    PROBE_FAILED = "probe_failed"
    RAMP_STEP = "ramp_step"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class BreakerState:
    """One target's state. `act_at_ms`: when time alone moves it next; None: only evidence does."""

    phase: Phase = Phase.CLOSED
    admit: float = 1.0
    cause: Cause = Cause.STARTED
    since_ms: int = 0
    act_at_ms: int | None = None

    @property
    def wants_probe(self) -> bool:
        """Whether the prober should find out if the target answers: no traffic tells while nothing is admitted."""
        return self.phase is Phase.OPEN and self.admit == 0


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """A transition: what was, what is, on which evidence. `qos` None: the target's breaker for errors."""

    target: str
    qos: str | None
    before: BreakerState
    after: BreakerState
    evidence: tuple[Counts, ...]


def trip_of(windows: Sequence[Counts], settings: Breaker) -> Cause | None:
    """Return what any of the windows shows beyond doubt: errors before lateness; None for neither."""
    if any(_exceeds(counts.failures, counts.total, settings.error_ratio, settings) for counts in windows):
        return Cause.ERRORS
    if any(_exceeds(counts.late, counts.total, settings.late_ratio, settings) for counts in windows):
        return Cause.LATENCY
    return None


def _exceeds(events: int, total: int, limit: float, settings: Breaker) -> bool:
    return events >= settings.min_failures and lower_bound(events, total) > limit


def step(
    state: BreakerState, windows: Sequence[Counts], probe: bool | None, now_ms: int, settings: Breaker
) -> BreakerState:
    """Return the state after this look. `windows`: tries since the state began; `probe`: the last one's result, if any.

    A returned state that is not `state` is a transition; its owner clears the windows then.
    """
    trip = trip_of(windows, settings)
    if state.phase is Phase.CLOSED:
        return _tripped(state, trip, now_ms, settings) if trip else state
    if state.phase is Phase.RAMPING:
        return _ramping(state, trip, now_ms, settings)
    return _open(state, trip, probe, now_ms, settings)


def _tripped(state: BreakerState, trip: Cause, now_ms: int, settings: Breaker) -> BreakerState:
    shed = max(SHED_FLOOR, state.admit - SHED_STEP) if trip is Cause.LATENCY else 0.0
    return BreakerState(Phase.OPEN, min(shed, state.admit), trip, now_ms, now_ms + settings.open_for_ms)


def _open(state: BreakerState, trip: Cause | None, probe: bool | None, now_ms: int, settings: Breaker) -> BreakerState:
    if state.admit > 0 and trip is not None and (trip is Cause.ERRORS or state.admit > SHED_FLOOR):
        return _tripped(state, trip, now_ms, settings)
    if state.act_at_ms is None or now_ms < state.act_at_ms:
        return state
    if state.admit > 0:  # shed: what still comes is evidence enough
        return _risen(state, Cause.RAMP_STEP, now_ms, settings)
    if probe is None:
        return state
    if not probe:
        return replace(state, cause=Cause.PROBE_FAILED, since_ms=now_ms, act_at_ms=now_ms + settings.open_for_ms)
    return _risen(state, Cause.PROBE_SUCCEEDED, now_ms, settings)


def _ramping(state: BreakerState, trip: Cause | None, now_ms: int, settings: Breaker) -> BreakerState:
    if trip is not None:
        return _tripped(state, trip, now_ms, settings)
    if state.act_at_ms is None or now_ms < state.act_at_ms:
        return state
    return _risen(state, Cause.RAMP_STEP, now_ms, settings)


def _risen(state: BreakerState, cause: Cause, now_ms: int, settings: Breaker) -> BreakerState:
    admit = min(1.0, round(state.admit + settings.recover_step_parts / FULL_SHARE, 6))
    if admit >= 1.0:
        return BreakerState(Phase.CLOSED, 1.0, Cause.RECOVERED, now_ms)
    return BreakerState(Phase.RAMPING, admit, cause, now_ms, now_ms + settings.recover_every_ms)
