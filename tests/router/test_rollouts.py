"""All rollouts together: what is remembered, what is forgotten, what a policy change and a restart keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pointsman.router.policy import Analysis, Canary, Policy, Step
from pointsman.router.rollout import Cause, Phase, RolloutState, Verb
from pointsman.router.rollout_evidence import FirstTry
from pointsman.router.rollouts import BLIND_MS, Memory, Rollouts
from sample_policies import SUPPORT_CHAT, version, with_route

HOLD = 10_000
CANARY = Canary(
    "support-chat",
    "v2.3-beta",
    steps=(Step(500, HOLD), Step(10_000, HOLD)),
    analysis=Analysis(window_ms=5_000, min_requests=100, max_error_ratio=0.02),
)
POLICY = with_route(canary=CANARY)
EMPTY = Memory()
OTHER = with_route(canary=replace(CANARY, steps=(Step(700, HOLD), Step(10_000, HOLD))))


def make(memory: Memory = EMPTY, policy: Policy = POLICY, now_ms: int = 0) -> Rollouts:
    rollouts = Rollouts(memory, now_ms)
    rollouts.adopt(policy, now_ms)
    return rollouts


def feed(rollouts: Rollouts, now_ms: int, *, good: int = 0, bad: int = 0, stable: int = 0) -> None:
    tries = (
        (FirstTry(is_canary=True, failed=False), good),
        (FirstTry(is_canary=True, failed=True), bad),
        (FirstTry(is_canary=False, failed=False), stable),
    )
    for tried, count in tries:
        for _ in range(count):
            rollouts.record("support", tried, now_ms)


def state(rollouts: Rollouts) -> RolloutState:
    return next(iter(rollouts.standings(0))).state


def at_second_step() -> Rollouts:
    rollouts = make()
    feed(rollouts, 0, good=1_000, stable=5_000)
    rollouts.look(0)
    assert [1] == [moved.step for moved in rollouts.look(HOLD)]
    return rollouts


def aborted() -> Rollouts:
    rollouts = make()
    feed(rollouts, 0, bad=100, stable=1_000)
    rollouts.look(0)
    rollouts.look(1_000)
    assert {"support": 0} == rollouts.shares()
    return rollouts


def test_a_transition_tells_on_which_evidence() -> None:
    rollouts = make()
    feed(rollouts, 0, good=3, bad=97, stable=1_000)
    rollouts.look(0)
    (moved,) = rollouts.look(1_000)
    assert ("support", "support-chat@v2.3-beta", Phase.PROGRESSING, Phase.ABORTED, 0, Cause.ERRORS) == (
        moved.route, moved.target, moved.before, moved.after, moved.share_parts, moved.cause)  # fmt: skip
    assert ((100, 97), (1_000, 0)) == (moved.canary, moved.stable)


def test_each_step_begins_without_evidence() -> None:
    standing = next(iter(at_second_step().standings(HOLD)))
    assert (0, 0) == (standing.look.whole.canary.requests, standing.look.recent.stable.requests)
    assert 2 * HOLD == standing.next_look_ms


def test_another_hold_of_the_same_step_is_told_once() -> None:
    rollouts = make()
    feed(rollouts, 0, good=10)
    rollouts.look(0)
    assert [1, 0] == [len(rollouts.look(holds * HOLD)) for holds in (1, 2)]


def test_a_change_elsewhere_in_the_policy_keeps_the_rollout() -> None:
    rollouts = at_second_step()
    assert () == rollouts.adopt(replace(POLICY, routes=POLICY.routes[:1]), HOLD)
    assert {"support": 10_000} == rollouts.shares()


def test_another_spec_begins_again() -> None:
    rollouts = at_second_step()
    (moved,) = rollouts.adopt(OTHER, HOLD)
    assert (700, Cause.STARTED) == (moved.share_parts, moved.cause)


def test_an_abort_is_latched_for_its_spec_alone() -> None:
    rollouts = aborted()
    rollouts.adopt(OTHER, 5_000)
    assert {"support": 700} == rollouts.shares()
    rollouts.adopt(POLICY, 6_000)
    assert ({"support": 0}, Cause.ABORTED_BEFORE) == (rollouts.shares(), state(rollouts).cause)
    rollouts.command("support", Verb.RETRY, 7_000)
    rollouts.adopt(OTHER, 8_000)
    rollouts.adopt(POLICY, 9_000)
    assert {"support": 500} == rollouts.shares()


def test_retry_begins_without_the_evidence_that_aborted_it() -> None:
    rollouts = aborted()
    rollouts.command("support", Verb.RETRY, 2_000)
    feed(rollouts, 2_000, good=1)
    assert [Phase.PROGRESSING] == [moved.after for moved in rollouts.look(2_000)]
    assert () == rollouts.look(3_000)


def test_a_pause_keeps_the_evidence_and_resuming_begins_anew() -> None:
    rollouts = make()
    feed(rollouts, 0, good=7)
    rollouts.look(0)
    seen = []
    for verb in (Verb.PAUSE, Verb.RESUME):
        rollouts.command("support", verb, 1_000)
        seen.append(next(iter(rollouts.standings(1_000))).look.whole.canary.requests)
    assert [7, 0] == seen


def test_a_gap_in_the_log_promotes_nothing_for_a_short_window() -> None:
    rollouts = make()
    feed(rollouts, 0, good=1_000, stable=5_000)
    rollouts.look(0)
    rollouts.go_blind(HOLD - 1)
    assert () == rollouts.look(HOLD)
    assert 1 == len(rollouts.look(HOLD - 1 + BLIND_MS))


def test_silence_of_a_target_that_a_breaker_holds_back_promotes_nothing() -> None:
    rollouts = make()
    feed(rollouts, 0, good=1)
    rollouts.look(0)
    for holds in range(1, 6):
        assert () == rollouts.look(holds * HOLD, withheld={"support-chat@v2.3-beta"})


def test_a_restart_keeps_the_step_and_begins_its_hold_again() -> None:
    memory = at_second_step().memory()
    rollouts = make(memory, now_ms=500)
    after = state(rollouts)
    assert (Phase.PROGRESSING, 1, Cause.RESTARTED, 500) == (after.phase, after.step, after.cause, after.hold_began_ms)


def test_a_restart_keeps_a_pause() -> None:
    rollouts = at_second_step()
    rollouts.command("support", Verb.PAUSE, HOLD)
    assert Phase.PAUSED is state(make(rollouts.memory())).phase


def test_a_restart_keeps_an_abort_and_its_reason_and_does_not_tell_it_again() -> None:
    rollouts = Rollouts(aborted().memory())
    assert () == rollouts.adopt(POLICY, 0)
    assert ({"support": 0}, Cause.ERRORS) == (rollouts.shares(), state(rollouts).cause)


def test_what_was_promoted_stays_so_whatever_the_spec_says_later() -> None:
    rollouts = at_second_step()
    rollouts.command("support", Verb.PROMOTE, HOLD)
    assert {"support": "support-chat@v2.3-beta"} == rollouts.promoted
    rollouts.adopt(OTHER, HOLD)
    assert ({"support": 10_000}, Cause.PROMOTED_BEFORE) == (rollouts.shares(), state(rollouts).cause)
    assert {"support": 10_000} == make(rollouts.memory(), OTHER).shares()
    rollouts.command("support", Verb.ABORT, HOLD)
    assert ({}, {"support": 0}) == (rollouts.promoted, rollouts.shares())


def test_the_version_promoted_last_is_stable_for_the_next_canary() -> None:
    memory = Memory(promoted=(("support", "support-chat@v2.1"),))
    versions = (*SUPPORT_CHAT.versions, version("v2.1", 9_009, "support-chat"))
    policy = replace(POLICY, models=(replace(SUPPORT_CHAT, versions=versions),))
    assert ["v2.1"] == [standing.plan.stable for standing in make(memory, policy).standings(0)]
    assert ["v2.2"] == [standing.plan.stable for standing in make(EMPTY, policy).standings(0)]


def test_a_step_that_the_plan_does_not_have_begins_again() -> None:
    memory = at_second_step().memory()
    rollouts = make(replace(memory, kept=(replace(memory.kept[0], step=7),)))
    assert {"support": 500} == rollouts.shares()


def test_an_unknown_route_is_not_counted_and_takes_no_command() -> None:
    rollouts = make()
    rollouts.record("embed", FirstTry(is_canary=True, failed=True), 0)
    with pytest.raises(KeyError):
        rollouts.command("embed", Verb.ABORT, 0)


def test_latches_are_bounded() -> None:
    latches = tuple(("support", "v2.3-beta", f"{number:016}") for number in range(1_000))
    rollouts = make(Memory(aborted=latches))
    rollouts.command("support", Verb.ABORT, 0)
    assert 1_000 == len(rollouts.memory().aborted)
    assert latches[0] not in rollouts.memory().aborted
