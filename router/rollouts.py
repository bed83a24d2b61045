"""All rollouts of one sidecar: at most one a route.

Holds plans, evidence and states; `rollout.step` and `rollout.command` alone move a state. The owner brings first tries,
commands and the time, and asks `look` for what moved. Evidence is forgotten where another share or another try begins.
What was aborted stays so for the same (route, version, spec), and the last version promoted is stable, whatever the
policy says in between, until an operator asks otherwise: `memory` is what must outlive the process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pointsman.router.policy import Policy
from pointsman.router.rollout import (
    ENDED,
    Cause,
    Phase,
    Plan,
    RolloutState,
    Verb,
    command,
    plan_of,
    share_of,
    started,
    step,
)
from pointsman.router.rollout_evidence import Evidence, FirstTry, Look

BLIND_MS = 5_000
"""One short window: so long after a gap in the log (or a restart) absence says nothing (design rule 14)."""

MAX_LATCHES = 1_000
"""A bound on what is remembered of specs that were aborted; the oldest is forgotten."""

_WINDOW_MS = 60_000
"""What is counted for a canary without limits: for the status alone."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A rollout that is under way, as it outlives the process."""

    route: str
    version: str
    spec: str
    phase: Phase
    step: int
    cause: Cause


Latch = tuple[str, str, str]
"""Route, version and spec of what was aborted."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What outlives the process. `promoted`: route and the last target (`model@version`) promoted on it."""

    kept: tuple[Kept, ...] = ()
    aborted: tuple[Latch, ...] = ()
    promoted: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutMoved:
    """A transition, on which evidence: requests and failures of the whole step, canary then stable."""

    route: str
    target: str
    before: Phase
    after: Phase
    step: int
    share_parts: int
    cause: Cause
    canary: tuple[int, int]
    stable: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Standing:
    """One rollout as it stands."""

    plan: Plan
    state: RolloutState
    share_parts: int
    next_look_ms: int | None
    """When the hold is over; None: time alone moves nothing."""

    look: Look


@dataclass(slots=True)
class _Watched:
    plan: Plan
    evidence: Evidence
    state: RolloutState


class Rollouts:
    """Rollouts of the policy's canaries."""

    def __init__(self, memory: Memory = Memory(), now_ms: int = 0) -> None:
        """Start from what an earlier process knew; without a policy there is nothing to watch."""
        self._watched: dict[str, _Watched] = {}
        self._restored = {kept.route: kept for kept in memory.kept}
        self._aborted: dict[Latch, None] = dict.fromkeys(memory.aborted)
        self._promoted: dict[str, str] = dict(memory.promoted)
        self._blind_until_ms = now_ms + BLIND_MS if memory.kept else now_ms

    @property
    def promoted(self) -> dict[str, str]:
        """The last target promoted (`model@version`), by route."""
        return dict(self._promoted)

    def memory(self) -> Memory:
        """Return what must outlive the process."""
        kept = tuple(
            Kept(route, w.plan.version, w.plan.spec, w.state.phase, w.state.step, w.state.cause)
            for route, w in self._watched.items()
        )
        return Memory(kept, tuple(self._aborted), tuple(self._promoted.items()))

    def adopt(self, policy: Policy, now_ms: int) -> tuple[RolloutMoved, ...]:
        """Take the canaries of a policy; one whose spec did not change goes on. Return what began."""
        before, self._watched = self._watched, {}
        began: list[RolloutMoved] = []
        for route in policy.routes:
            plan = plan_of(policy, route, self._promoted.get(route.name))
            if plan is None:
                continue
            known = before.get(route.name)
            if known is not None and (known.plan.version, known.plan.spec) == (plan.version, plan.spec):
                known.plan = plan
                self._watched[route.name] = known
                continue
            evidence = Evidence(plan.analysis.window_ms if plan.analysis else _WINDOW_MS)
            watched = _Watched(plan, evidence, self._first_state(plan, now_ms))
            self._watched[route.name] = watched
            if watched.state.phase in ENDED and self._is_restored(plan):
                continue  # it ended in an earlier process, which told so
            began.append(_moved(watched, watched.state, evidence.look(now_ms)))
        self._restored = {}
        return tuple(began)

    def _is_restored(self, plan: Plan) -> bool:
        kept = self._restored.get(plan.route)
        return kept is not None and (kept.version, kept.spec) == (plan.version, plan.spec)

    def _first_state(self, plan: Plan, now_ms: int) -> RolloutState:
        kept = self._restored.get(plan.route) if self._is_restored(plan) else None
        if (plan.route, plan.version, plan.spec) in self._aborted:
            cause = kept.cause if kept is not None and kept.phase is Phase.ABORTED else Cause.ABORTED_BEFORE
            return RolloutState(Phase.ABORTED, 0, cause, now_ms, now_ms)
        if self._promoted.get(plan.route) == plan.target and not plan.is_fixed:
            cause = kept.cause if kept is not None and kept.phase is Phase.PROMOTED else Cause.PROMOTED_BEFORE
            return RolloutState(Phase.PROMOTED, len(plan.steps) - 1, cause, now_ms, now_ms)
        if kept is None or kept.step >= len(plan.steps):
            return started(now_ms)
        if kept.phase in (Phase.PROGRESSING, Phase.EXTENDED):
            # The evidence is gone, so its hold begins again: nothing is promoted on what nobody remembers.
            return RolloutState(Phase.PROGRESSING, kept.step, Cause.RESTARTED, now_ms, now_ms)
        if kept.phase is Phase.PAUSED:
            return RolloutState(Phase.PAUSED, kept.step, kept.cause, now_ms, now_ms)
        return RolloutState(Phase.WAITING, kept.step, Cause.RESTARTED, now_ms, now_ms)

    def record(self, route: str, tried: FirstTry, now_ms: int) -> None:
        """Count a first try of a split row of the route."""
        watched = self._watched.get(route)
        if watched is not None:
            watched.evidence.add(tried, now_ms)

    def go_blind(self, now_ms: int) -> None:
        """Take note that entries may be missing."""
        self._blind_until_ms = now_ms + BLIND_MS

    def look(self, now_ms: int, withheld: Collection[str] = ()) -> tuple[RolloutMoved, ...]:
        """Move every state that evidence or time moves. `withheld`: targets that a breaker does not admit whole."""
        moved: list[RolloutMoved] = []
        for watched in self._watched.values():
            look, plan = watched.evidence.look(now_ms), watched.plan
            is_blind = now_ms < self._blind_until_ms or plan.target in withheld
            after = step(watched.state, plan, look, now_ms, is_blind=is_blind)
            moved += self._move(watched, after, look)
        return tuple(moved)

    def command(self, route: str, verb: Verb, now_ms: int) -> tuple[RolloutMoved, ...]:
        """Do what an operator asks; KeyError for a route without a rollout, RolloutRefused where it does not fit."""
        watched = self._watched[route]
        after = command(watched.state, watched.plan, verb, now_ms)
        return self._move(watched, after, watched.evidence.look(now_ms))

    def _move(self, watched: _Watched, after: RolloutState, look: Look) -> tuple[RolloutMoved, ...]:
        before, watched.state, plan = watched.state, after, watched.plan
        if not after.has_moved(before):
            return ()
        moved = _moved(watched, before, look)
        is_resumed = before.phase is Phase.PAUSED and after.phase is Phase.PROGRESSING
        if after.step != before.step or is_resumed or after.cause is Cause.RETRIED:
            watched.evidence.clear()
        latch = (plan.route, plan.version, plan.spec)
        if after.phase is Phase.ABORTED:
            self._aborted[latch] = None
            if self._promoted.get(plan.route) == plan.target:
                del self._promoted[plan.route]
            while len(self._aborted) > MAX_LATCHES:
                del self._aborted[next(iter(self._aborted))]
        else:
            self._aborted.pop(latch, None)
        if after.phase is Phase.PROMOTED:
            self._promoted[plan.route] = plan.target
        return (moved,)

    def shares(self) -> dict[str, int]:
        """Return every rollout's share in parts of 10,000, by route."""
        return {route: share_of(watched.state, watched.plan) for route, watched in self._watched.items()}

    def shares_under(self, policy: Policy) -> dict[str, int]:
        """Return the shares as they will be once the policy is adopted; adopts nothing."""
        shares: dict[str, int] = {}
        for route in policy.routes:
            plan = plan_of(policy, route, self._promoted.get(route.name))
            if plan is not None:
                known = self._watched.get(route.name)
                is_same = known is not None and (known.plan.version, known.plan.spec) == (plan.version, plan.spec)
                shares[route.name] = share_of(known.state if known and is_same else self._first_state(plan, 0), plan)
        return shares

    def routes(self) -> tuple[str, ...]:
        """Return the routes that have a rollout."""
        return tuple(self._watched)

    def standings(self, now_ms: int) -> Iterator[Standing]:
        """Yield every rollout as it stands."""
        for watched in self._watched.values():
            plan, state = watched.plan, watched.state
            is_moving = state.phase in (Phase.PROGRESSING, Phase.EXTENDED)
            hold_ms = plan.hold_ms(state.step) if is_moving else None
            next_look_ms = state.hold_began_ms + hold_ms if hold_ms is not None else None
            yield Standing(plan, state, share_of(state, plan), next_look_ms, watched.evidence.look(now_ms))


def _moved(watched: _Watched, before: RolloutState, look: Look) -> RolloutMoved:
    plan, after, whole = watched.plan, watched.state, look.whole
    return RolloutMoved(
        route=plan.route,
        target=plan.target,
        before=before.phase,
        after=after.phase,
        step=after.step,
        share_parts=share_of(after, plan),
        cause=after.cause,
        canary=(whole.canary.requests, whole.canary.failures),
        stable=(whole.stable.requests, whole.stable.failures),
    )
