"""How often a rollout is right: seeded traffic in virtual time, canary at 200 requests a window, stable at 1,000."""

from __future__ import annotations

import math
import random
from itertools import accumulate

from pointsman.router.policy import Analysis, Canary, Step
from pointsman.router.rollout import Phase, RolloutState, plan_of, step
from pointsman.router.rollout_evidence import Look, Pair, Tally
from sample_policies import with_route

LOOKS = 10
"""A window in looks of one second."""

LIMIT = 0.01
CANARY_A_LOOK, STABLE_A_LOOK = 20, 100
POLICY = with_route(
    canary=Canary(
        "support-chat",
        "v2.3-beta",
        steps=(Step(1_600, 3_600_000), Step(10_000)),
        analysis=Analysis(window_ms=LOOKS * 1_000, min_requests=200, max_error_ratio=LIMIT),
    )
)
PLAN = plan_of(POLICY, POLICY.routes[0])


def failures(chance: random.Random, requests: int, ratio: float, looks: int) -> list[int]:
    """Failures of so many requests at the ratio, look by look, summed up from the start."""
    odds = [math.comb(requests, n) * ratio**n * (1 - ratio) ** (requests - n) for n in range(requests + 1)]
    return [0, *accumulate(chance.choices(range(requests + 1), odds, k=looks))]


def is_aborted(windows: int, *, canary: float, stable: float, seed: int) -> bool:
    """Look once a second for so many windows, and tell whether it was aborted."""
    assert PLAN is not None
    chance = random.Random(seed)
    canary_failures = failures(chance, CANARY_A_LOOK, canary, windows * LOOKS)
    stable_failures = failures(chance, STABLE_A_LOOK, stable, windows * LOOKS)
    state = RolloutState(Phase.PROGRESSING)
    for now in range(1, windows * LOOKS + 1):
        spans = []
        for since in (max(0, now - LOOKS), 0):
            bad = canary_failures[now] - canary_failures[since]
            bad_stable = stable_failures[now] - stable_failures[since]
            sides = Tally(CANARY_A_LOOK * (now - since), bad), Tally(STABLE_A_LOOK * (now - since), bad_stable)
            spans.append(Pair(*sides))
        state = step(state, PLAN, Look(*spans), now * 1_000)
        if state.phase is Phase.ABORTED:
            return True
    return False


def test_five_times_the_limit_is_aborted_within_two_windows() -> None:
    runs = 400
    assert sum(is_aborted(2, canary=5 * LIMIT, stable=LIMIT / 2, seed=n) for n in range(runs)) >= 0.95 * runs


def test_half_the_limit_is_hardly_ever_aborted_in_a_hundred_windows() -> None:
    runs = 200
    assert sum(is_aborted(100, canary=LIMIT / 2, stable=LIMIT / 2, seed=n) for n in range(runs)) <= 0.01 * runs
