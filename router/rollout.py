"""The rollout of a canary by steps: one state machine a route, all of its transitions in this file.

    waiting --first request--> progressing --hold over--> next step … 100 % held --> promoted
                                 |    ^  '--not sure yet--> extended --sure, or hold x 3--> next step
                               pause  resume
                                 v    |
                                 paused          any of these --limit broken beyond doubt, or abort--> aborted
    aborted --retry--> waiting

Decides c, the canary's share of a route's keys; never touches what it does not own (design section 6). Pure: the shell
brings time, evidence and commands, and performs nothing but a new table. Absence of evidence aborts nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from pointsman.router.build import stable_version
from pointsman.router.policy import FULL_SHARE, Analysis, Policy, Route, Step
from pointsman.router.rollout_evidence import P90, Histogram, Look, Pair, Tally, is_split
from pointsman.router.table import (
    Branch,
    Branches,
    Candidate,
    ClassChoice,
    Leaf,
    ModelNode,
    Outcome,
    Row,
    Table,
)
from pointsman.router.wilson import lower_bound, upper_bound

MIN_FAILURES = 5
"""Fewer failures abort nothing, however few tries there were: the breaker's default, and for its reason."""

HOLDS_WITHOUT_EVIDENCE = 3
"""So many holds without contrary evidence, and a step is over although nothing is proven."""


class Phase(StrEnum):
    """Where the rollout is; the words of `/rollouts`."""

    WAITING = "waiting"
    PROGRESSING = "progressing"
    PAUSED = "paused"
    EXTENDED = "extended"
    PROMOTED = "promoted"
    ABORTED = "aborted"


ENDED = frozenset({Phase.PROMOTED, Phase.ABORTED})


class Cause(StrEnum):
    """Why it got there: a closed list."""

    STARTED = "started"
    FIRST_REQUEST = "first_request"
    UNDER_LIMIT = "under_limit"
    WITHOUT_EVIDENCE = "without_evidence"
    INCONCLUSIVE = "inconclusive"
    ERRORS = "errors"
    VALIDATION = "validation"
    LATENCY = "latency"
    OPERATOR = "operator"
    RETRIED = "retried"
    RESTARTED = "restarted"
    ABORTED_BEFORE = "aborted_before"
    PROMOTED_BEFORE = "promoted_before"


class Verb(StrEnum):
    """What an operator can ask for."""

    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    ABORT = "abort"
    RETRY = "retry"


class RolloutRefused(Exception):
    """The command does not fit the state; the text says why and what to do."""

    code = "rollout_refused"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a route's canary asks for. `spec`: hash of the canary's spec. `is_fixed`: a weight, not steps."""

    route: str
    model: str
    version: str
    stable: str
    steps: tuple[Step, ...]
    analysis: Analysis | None
    validation: Analysis | None
    spec: str
    is_fixed: bool

    @property
    def target(self) -> str:
        """The canary, `model@version`."""
        return f"{self.model}@{self.version}"

    def hold_ms(self, step: int) -> int | None:
        """Return how long the step is held before it is judged; None: without end.

        A last step of 100 % without a hold is held for one analysis window. A last step below 100 % has no end: what
        the plan does not say is not promoted.
        """
        planned, is_last = self.steps[step], step == len(self.steps) - 1
        if self.is_fixed or (is_last and planned.weight_parts < FULL_SHARE):
            return None
        if is_last and planned.hold_ms is None:
            return (self.analysis or Analysis()).window_ms
        return planned.hold_ms


@dataclass(frozen=True, slots=True)
class RolloutState:
    """One rollout's state. `late_since_ms`: since when every look found the canary too slow."""

    phase: Phase = Phase.WAITING
    step: int = 0
    cause: Cause = Cause.STARTED
    step_began_ms: int = 0
    hold_began_ms: int = 0
    late_since_ms: int | None = None

    def has_moved(self, before: RolloutState) -> bool:
        """Tell whether this is another state for who looks from outside; another hold of the same step is not."""
        return (self.phase, self.step, self.cause) != (before.phase, before.step, before.cause)


def plan_of(policy: Policy, route: Route, promoted: str | None = None) -> Plan | None:
    """Return the route's plan, or None where only pins reach the canary. `promoted`: the last target promoted there."""
    canary = route.canary
    model = policy.model(canary.model) if canary else None
    if canary is None or model is None or (canary.weight_parts is None and not canary.steps):
        return None
    is_fixed = canary.weight_parts is not None
    steps = (Step(canary.weight_parts),) if canary.weight_parts is not None else canary.steps
    stated = {name: value for name, value in asdict(canary).items() if value not in (None, ())}
    return Plan(
        route=route.name,
        model=canary.model,
        version=canary.version,
        stable=stable_version(model, route, promoted).name,
        steps=steps,
        analysis=canary.analysis or (None if is_fixed else Analysis()),
        validation=canary.validation,
        spec=hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()[:16],
        is_fixed=is_fixed,
    )


def share_of(state: RolloutState, plan: Plan) -> int:
    """Return the canary's share in parts of 10,000."""
    if state.phase is Phase.ABORTED:
        return 0
    return FULL_SHARE if state.phase is Phase.PROMOTED else plan.steps[state.step].weight_parts


def started(now_ms: int, cause: Cause = Cause.STARTED) -> RolloutState:
    """Return the state in which a plan begins."""
    return RolloutState(Phase.WAITING, 0, cause, now_ms, now_ms)


def step(state: RolloutState, plan: Plan, look: Look, now_ms: int, *, is_blind: bool = False) -> RolloutState:
    """Return the state after this look. `is_blind`: absence says nothing (a gap in the log, a breaker that holds back).

    Nothing is promoted then, and only what is seen aborts.
    """
    if state.phase in ENDED:
        return state
    if state.phase is Phase.WAITING and (look.whole.canary.requests or plan.steps[state.step].weight_parts == 0):
        return replace(
            state,
            phase=Phase.PROGRESSING,
            cause=Cause.FIRST_REQUEST,
            step_began_ms=now_ms,
            hold_began_ms=now_ms,
        )
    broken = _broken_errors(state, plan, look, now_ms, is_blind=is_blind)
    if broken is not None:
        return replace(state, phase=Phase.ABORTED, cause=broken, late_since_ms=None)
    if plan.analysis is not None:
        state = _timed(state, plan.analysis, look, now_ms)
        if state.phase is Phase.ABORTED:
            return state
    hold_ms = plan.hold_ms(state.step)
    is_held = hold_ms is not None and now_ms - state.hold_began_ms >= hold_ms
    if not is_held or is_blind or state.phase in (Phase.PAUSED, Phase.WAITING) or plan.analysis is None:
        return state
    assert hold_ms is not None
    return _held(state, plan, look.whole.canary, now_ms, hold_ms=hold_ms)


def _broken_errors(state: RolloutState, plan: Plan, look: Look, now_ms: int, *, is_blind: bool) -> Cause | None:
    """Which limit of errors the canary breaks beyond doubt, in the last window or in the whole step; None for none."""
    if plan.analysis is not None and any(
        _exceeds(pair, plan.analysis, is_blind=is_blind) for pair in (look.recent, look.whole)
    ):
        return Cause.ERRORS
    first = plan.validation
    if first is None or now_ms - state.step_began_ms > first.window_ms:
        return None
    has_enough = look.whole.canary.requests >= first.min_requests
    return Cause.VALIDATION if has_enough and _exceeds(look.whole, first, is_blind=is_blind) else None


def _exceeds(pair: Pair, limits: Analysis, *, is_blind: bool) -> bool:
    canary, stable = pair.canary, pair.stable
    least = lower_bound(canary.failures, canary.requests)
    if canary.failures < MIN_FAILURES or least <= limits.max_error_ratio:
        return False
    if stable.requests < limits.min_requests:
        return not is_blind
    return least > upper_bound(stable.failures, stable.requests)


def _timed(state: RolloutState, limits: Analysis, look: Look, now_ms: int) -> RolloutState:
    """Note since when the canary is too slow; abort once each look of a whole window found it so."""
    if not is_late(look.recent, limits):
        return state if state.late_since_ms is None else replace(state, late_since_ms=None)
    if state.late_since_ms is None:
        return replace(state, late_since_ms=now_ms)
    if now_ms - state.late_since_ms < limits.window_ms:
        return state
    return replace(state, phase=Phase.ABORTED, cause=Cause.LATENCY, late_since_ms=None)


def is_late(pair: Pair, limits: Analysis) -> bool:
    """Tell whether the canary's P90 is over its limit; both sides need enough requests with a known time."""
    compared = (
        (pair.canary.durations, pair.stable.durations, limits.max_latency_ratio),
        (pair.canary.first_tokens, pair.stable.first_tokens, limits.max_ttft_ratio),
    )
    return any(
        ratio is not None and _is_slower(canary, stable, ratio, limits.min_requests)
        for canary, stable, ratio in compared
    )


def _is_slower(canary: Histogram, stable: Histogram, ratio: float, least: int) -> bool:
    if min(canary.total, stable.total) < least:
        return False
    mine, other = canary.quantile(P90), stable.quantile(P90)
    return mine is not None and other is not None and mine > ratio * other


def _held(state: RolloutState, plan: Plan, canary: Tally, now_ms: int, *, hold_ms: int) -> RolloutState:
    """The hold is over and no limit is broken beyond doubt: go on, or wait for one more hold."""
    limits = plan.analysis or Analysis()
    is_slow = state.late_since_ms is not None
    has_enough = canary.requests >= limits.min_requests
    if has_enough and not is_slow and upper_bound(canary.failures, canary.requests) < limits.max_error_ratio:
        return _onward(state, plan, Cause.UNDER_LIMIT, now_ms)
    is_contrary = is_slow or (canary.error_ratio or 0.0) > limits.max_error_ratio
    if now_ms - state.step_began_ms >= HOLDS_WITHOUT_EVIDENCE * hold_ms and not is_contrary:
        return _onward(state, plan, Cause.WITHOUT_EVIDENCE, now_ms)
    return replace(state, phase=Phase.EXTENDED, cause=Cause.INCONCLUSIVE, hold_began_ms=now_ms)


def _onward(state: RolloutState, plan: Plan, cause: Cause, now_ms: int) -> RolloutState:
    if state.step == len(plan.steps) - 1:
        return replace(state, phase=Phase.PROMOTED, cause=cause, late_since_ms=None)
    return RolloutState(Phase.PROGRESSING, state.step + 1, cause, now_ms, now_ms)


def command(state: RolloutState, plan: Plan, verb: Verb, now_ms: int) -> RolloutState:
    """Return the state after an operator's word, or raise RolloutRefused when it does not fit."""
    phase, name = state.phase, f"rollout {plan.route} ({plan.target})"
    if verb is Verb.ABORT and phase is not Phase.ABORTED:
        return replace(state, phase=Phase.ABORTED, cause=Cause.OPERATOR, late_since_ms=None)
    if verb is Verb.RETRY and phase is Phase.ABORTED:
        return started(now_ms, Cause.RETRIED)
    if plan.is_fixed and verb in (Verb.PAUSE, Verb.RESUME, Verb.PROMOTE):
        raise RolloutRefused(f"{name} has a fixed weight and no steps; change `weight` in the policy instead")
    if verb is Verb.PROMOTE and phase not in ENDED:
        return replace(state, phase=Phase.PROMOTED, cause=Cause.OPERATOR, late_since_ms=None)
    if verb is Verb.PAUSE and phase not in (*ENDED, Phase.PAUSED):
        return replace(state, phase=Phase.PAUSED, cause=Cause.OPERATOR)
    if verb is Verb.RESUME and phase is Phase.PAUSED:
        return RolloutState(Phase.PROGRESSING, state.step, Cause.OPERATOR, now_ms, now_ms)
    raise RolloutRefused(f"{name} is {phase.value}: {verb.value} does not apply; {_FITS[phase]}")


_FITS = {
    Phase.WAITING: "pause, promote and abort do",
    Phase.PROGRESSING: "pause, promote and abort do",
    Phase.EXTENDED: "pause, promote and abort do",
    Phase.PAUSED: "resume, promote and abort do",
    Phase.PROMOTED: "abort does",
    Phase.ABORTED: "retry does",
}


def share_table(table: Table, shares: Mapping[str, int]) -> Table:
    """Return the table with the rollouts' shares (parts of 10,000 by route) as bases of its split rows."""
    if not shares:
        return table
    return replace(table, nodes=tuple(_node(node, shares) for node in table.nodes))


def _node(node: ModelNode, shares: Mapping[str, int]) -> ModelNode:
    return replace(
        node,
        pins=tuple((version, _branches(branches, shares)) for version, branches in node.pins),
        unpinned=_branches(node.unpinned, shares),
    )


def _branches(branches: Branches, shares: Mapping[str, int]) -> Branches:
    changed: tuple[Branch, ...] = tuple(
        replace(branch, outcome=_outcome(branch.outcome, shares)) for branch in branches.branches
    )
    return replace(branches, branches=changed)


def _outcome(outcome: Outcome, shares: Mapping[str, int]) -> Outcome:
    if not isinstance(outcome, ClassChoice):
        return _leaf(outcome, shares)
    return ClassChoice(
        named=tuple((name, _leaf(leaf, shares)) for name, leaf in outcome.named),
        default=_leaf(outcome.default, shares),
        unknown=_leaf(outcome.unknown, shares),
        numeric=tuple((qos, _leaf(leaf, shares)) for qos, leaf in outcome.numeric),
        unreadable=_leaf(outcome.unreadable, shares),
        unmet=_leaf(outcome.unmet, shares),
    )


def _leaf(leaf: Leaf, shares: Mapping[str, int]) -> Leaf:
    if not isinstance(leaf, Row) or not is_split(leaf) or leaf.route not in shares:
        return leaf
    share, (canary, stable) = shares[leaf.route], leaf.arms
    if share == canary.base:
        return leaf
    arms = (replace(canary, base=share), replace(stable, base=FULL_SHARE - share))
    candidates = tuple(
        Candidate(candidate.target, candidate.is_taken, f"canary: {share / 100:g} % of keys, by its rollout")
        if candidate.is_taken and candidate.target == canary.ladder.first_target
        else candidate
        for candidate in leaf.candidates
    )
    return replace(leaf, arms=arms, candidates=candidates)
