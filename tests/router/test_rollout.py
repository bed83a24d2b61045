"""The rollout's machine as scripts in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pointsman.router.admission import admit_table
from pointsman.router.build import build_table
from pointsman.router.policy import Analysis, Canary, Step
from pointsman.router.rollout import (
    Cause,
    Phase,
    Plan,
    RolloutRefused,
    RolloutState,
    Verb,
    command,
    plan_of,
    share_of,
    share_table,
    started,
    step,
)
from pointsman.router.rollout_evidence import Look, Pair, Tally
from pointsman.router.table import Reason
from sample_policies import SUPPORT_POLICY, with_route

HOLD = 10_000
LIMITS = Analysis(window_ms=5_000, min_requests=200, max_error_ratio=0.01)
STEPS = (Step(500, HOLD), Step(2_500, HOLD), Step(10_000, HOLD))


def plan(**changes: object) -> Plan:
    canary = Canary("support-chat", "v2.3-beta", steps=STEPS, analysis=LIMITS)
    policy = with_route(canary=replace(canary, **changes))  # type: ignore[arg-type]
    made = plan_of(policy, policy.routes[0])
    assert made is not None
    return made


PLAN = plan()


def look(canary: tuple[int, int] = (0, 0), stable: tuple[int, int] = (0, 0)) -> Look:
    pair = Pair(Tally(*canary), Tally(*stable))
    return Look(pair, pair)


def timed(canary_ms: float, stable_ms: float, count: int = 300) -> Look:
    pair = Pair(Tally(count), Tally(count))
    for _ in range(count):
        pair.canary.durations.add(canary_ms)
        pair.stable.durations.add(stable_ms)
    return Look(pair, pair)


GOOD = look((2_000, 0), (10_000, 20))
FEW = look((50, 0), (900, 1))
FAILING = look((200, 30), (1_000, 2))
ALL_FAILING = look((200, 30), (1_000, 150))
DOUBTFUL = look((200, 4), (1_000, 5))
NOTHING = look()
PROGRESSING = RolloutState(Phase.PROGRESSING, 0, Cause.FIRST_REQUEST)


def test_it_waits_for_the_canarys_first_request() -> None:
    state = started(0)
    assert step(state, PLAN, look((0, 0), (500, 0)), 999_999, is_blind=False) is state
    went = step(state, PLAN, FEW, 5_000)
    assert (Phase.PROGRESSING, Cause.FIRST_REQUEST, 5_000) == (went.phase, went.cause, went.hold_began_ms)


def test_a_plan_goes_through_all_steps_and_is_promoted() -> None:
    state, now = step(started(0), PLAN, FEW, 0), 0
    shares = [share_of(state, PLAN)]
    while state.phase is Phase.PROGRESSING:
        assert step(state, PLAN, GOOD, now + HOLD - 1) == state
        now += HOLD
        state = step(state, PLAN, GOOD, now)
        shares.append(share_of(state, PLAN))
    assert [500, 2_500, 10_000, 10_000] == shares
    assert (Phase.PROMOTED, Cause.UNDER_LIMIT) == (state.phase, state.cause)


def test_errors_beyond_doubt_abort_before_the_hold_is_over() -> None:
    aborted = step(PROGRESSING, PLAN, FAILING, 1_000)
    assert (Phase.ABORTED, Cause.ERRORS, 0) == (aborted.phase, aborted.cause, share_of(aborted, PLAN))


def test_a_canary_that_is_no_worse_than_stable_is_not_aborted() -> None:
    assert step(PROGRESSING, PLAN, ALL_FAILING, 1_000) == PROGRESSING


def test_without_enough_of_stable_the_limit_alone_decides() -> None:
    assert Phase.ABORTED is step(PROGRESSING, PLAN, look((200, 30), (199, 199)), 1_000).phase


def test_four_failures_abort_nothing() -> None:
    assert step(PROGRESSING, PLAN, look((4, 4)), 1_000) == PROGRESSING
    assert Phase.ABORTED is step(PROGRESSING, PLAN, look((5, 5)), 1_000).phase


def test_the_last_window_alone_is_enough_to_abort() -> None:
    late_fault = Look(FAILING.recent, look((20_000, 30), (100_000, 90)).whole)
    assert Phase.ABORTED is step(PROGRESSING, PLAN, late_fault, 1_000).phase


@pytest.mark.parametrize("evidence", [NOTHING, FEW, DOUBTFUL])
def test_doubt_extends_by_another_hold(evidence: Look) -> None:
    extended = step(PROGRESSING, PLAN, evidence, HOLD)
    assert (Phase.EXTENDED, Cause.INCONCLUSIVE, 0, HOLD) == (
        extended.phase, extended.cause, extended.step, extended.hold_began_ms)  # fmt: skip
    assert step(extended, PLAN, evidence, 2 * HOLD - 1) == extended


@pytest.mark.parametrize("evidence", [NOTHING, FEW])
def test_three_holds_without_contrary_evidence_go_on_and_say_so(evidence: Look) -> None:
    state = PROGRESSING
    for holds in (1, 2, 3):
        state = step(state, PLAN, evidence, holds * HOLD)
    assert (Phase.PROGRESSING, 1, Cause.WITHOUT_EVIDENCE) == (state.phase, state.step, state.cause)


def test_contrary_evidence_extends_for_as_long_as_it_lasts() -> None:
    state = PROGRESSING
    for holds in range(1, 10):
        state = step(state, PLAN, DOUBTFUL, holds * HOLD)
    assert (Phase.EXTENDED, 0) == (state.phase, state.step)


def test_blind_promotes_nothing_and_aborts_only_on_what_is_seen() -> None:
    assert step(PROGRESSING, PLAN, GOOD, 9 * HOLD, is_blind=True) == PROGRESSING
    assert step(PROGRESSING, PLAN, look((200, 30), (199, 0)), 1_000, is_blind=True) == PROGRESSING
    assert Phase.ABORTED is step(PROGRESSING, PLAN, FAILING, 1_000, is_blind=True).phase


def test_lateness_aborts_after_a_window_of_looks() -> None:
    slow = plan(analysis=replace(LIMITS, max_latency_ratio=1.2))
    first = step(PROGRESSING, slow, timed(130, 100), 1_000)
    assert (Phase.PROGRESSING, 1_000) == (first.phase, first.late_since_ms)
    assert step(first, slow, timed(130, 100), 5_999) == first
    aborted = step(first, slow, timed(130, 100), 6_000)
    assert (Phase.ABORTED, Cause.LATENCY) == (aborted.phase, aborted.cause)


def test_one_look_in_time_forgets_lateness() -> None:
    slow = plan(analysis=replace(LIMITS, max_latency_ratio=1.2))
    first = step(PROGRESSING, slow, timed(130, 100), 1_000)
    assert step(first, slow, timed(110, 100), 2_000).late_since_ms is None


@pytest.mark.parametrize("evidence", [timed(130, 100, count=199), timed(110, 100)])
def test_few_or_fast_answers_are_not_late(evidence: Look) -> None:
    slow = plan(analysis=replace(LIMITS, max_latency_ratio=1.2))
    assert step(PROGRESSING, slow, evidence, 1_000).late_since_ms is None


def test_first_tokens_have_a_limit_of_their_own() -> None:
    slow = plan(analysis=replace(LIMITS, max_ttft_ratio=1.2))
    assert step(PROGRESSING, slow, timed(130, 100), 1_000).late_since_ms is None
    pair = Pair(Tally(300), Tally(300))
    for _ in range(300):
        pair.canary.first_tokens.add(130)
        pair.stable.first_tokens.add(100)
    assert 1_000 == step(PROGRESSING, slow, Look(pair, pair), 1_000).late_since_ms


def test_a_late_canary_does_not_go_on() -> None:
    slow = plan(analysis=replace(LIMITS, max_latency_ratio=1.2, window_ms=60_000))
    late = replace(PROGRESSING, late_since_ms=0)
    assert Phase.EXTENDED is step(late, slow, timed(130, 100, count=2_000), HOLD).phase


def test_validation_holds_right_after_a_change_and_not_later() -> None:
    strict = plan(validation=Analysis(window_ms=3_000, min_requests=1_000, max_error_ratio=0.001))
    evidence = look((2_000, 15), (9_000, 5))
    assert Cause.VALIDATION is step(PROGRESSING, strict, evidence, 2_000).cause
    assert step(PROGRESSING, strict, evidence, 3_001) == PROGRESSING
    assert step(PROGRESSING, strict, look((900, 15), (9_000, 5)), 2_000) == PROGRESSING


def test_a_fixed_weight_goes_nowhere_but_aborts_where_limits_are_stated() -> None:
    fixed = plan(steps=(), weight_parts=500)
    assert step(PROGRESSING, fixed, GOOD, 999_999) == PROGRESSING
    assert Phase.ABORTED is step(PROGRESSING, fixed, FAILING, 1_000).phase
    unlimited = plan(steps=(), weight_parts=500, analysis=None)
    assert step(PROGRESSING, unlimited, FAILING, 1_000) == PROGRESSING


def test_last_step_of_all_traffic_without_a_hold_is_held_for_a_window() -> None:
    assert [HOLD, 5_000] == [plan(steps=(Step(500, HOLD), Step(10_000))).hold_ms(number) for number in (0, 1)]


def test_what_the_plan_does_not_say_is_not_promoted() -> None:
    assert plan(steps=(Step(500, HOLD), Step(2_500, HOLD))).hold_ms(1) is None
    assert plan(steps=(Step(500), Step(2_500, HOLD))).hold_ms(0) is None


def test_pause_keeps_the_share_and_still_aborts() -> None:
    paused = command(PROGRESSING, PLAN, Verb.PAUSE, 500)
    assert 500 == share_of(paused, PLAN)
    assert step(paused, PLAN, GOOD, 99 * HOLD) == paused
    assert Phase.ABORTED is step(paused, PLAN, FAILING, 1_000).phase
    resumed = command(paused, PLAN, Verb.RESUME, 70_000)
    assert (Phase.PROGRESSING, 70_000) == (resumed.phase, resumed.hold_began_ms)


def test_an_abort_holds_until_retry() -> None:
    aborted = command(PROGRESSING, PLAN, Verb.ABORT, 500)
    assert step(aborted, PLAN, GOOD, 99 * HOLD) is aborted
    retried = command(aborted, PLAN, Verb.RETRY, 900)
    assert (Phase.WAITING, Cause.RETRIED, 500) == (retried.phase, retried.cause, share_of(retried, PLAN))


def test_promote_takes_all_traffic_at_once_and_abort_takes_it_back() -> None:
    promoted = command(PROGRESSING, PLAN, Verb.PROMOTE, 500)
    assert 10_000 == share_of(promoted, PLAN)
    assert 0 == share_of(command(promoted, PLAN, Verb.ABORT, 600), PLAN)


@pytest.mark.parametrize(
    ("phase", "verb"),
    [
        (Phase.PROGRESSING, Verb.RETRY),
        (Phase.PROGRESSING, Verb.RESUME),
        (Phase.PAUSED, Verb.PAUSE),
        (Phase.ABORTED, Verb.PROMOTE),
        (Phase.ABORTED, Verb.ABORT),
        (Phase.PROMOTED, Verb.PROMOTE),
        (Phase.PROMOTED, Verb.PAUSE),
    ],
)
def test_a_command_that_does_not_fit_is_refused_and_says_what_does(phase: Phase, verb: Verb) -> None:
    with pytest.raises(
        RolloutRefused, match=rf"support .*is {phase.value}: {verb.value} does not apply; .* (do|does)$"
    ):
        command(RolloutState(phase), PLAN, verb, 0)


def test_a_fixed_weight_takes_no_commands_but_abort_and_retry() -> None:
    fixed = plan(steps=(), weight_parts=500)
    with pytest.raises(RolloutRefused, match="change `weight` in the policy"):
        command(PROGRESSING, fixed, Verb.PROMOTE, 0)
    assert Phase.ABORTED is command(PROGRESSING, fixed, Verb.ABORT, 0).phase


def test_the_spec_names_everything_that_the_canary_asks_for() -> None:
    assert PLAN.spec == plan().spec
    others = [plan(steps=STEPS[:2]), plan(analysis=None), plan(stick_by=()), plan(version="v2.2")]
    assert 5 == len({PLAN.spec, *(other.spec for other in others)})


def test_a_canary_that_only_pins_reach_has_no_plan() -> None:
    policy = with_route(canary=Canary("support-chat", "v2.3-beta"))
    assert plan_of(policy, policy.routes[0]) is None


def test_shares_become_bases_of_split_rows_only() -> None:
    table = build_table(SUPPORT_POLICY)
    shared = share_table(table, {"support": 2_500})
    for before, after in zip(table.rows(), shared.rows(), strict=True):
        if before.arms[0].reason is Reason.CANARY:
            assert [2_500, 7_500] == [arm.base for arm in after.arms]
            assert [arm.ladder for arm in before.arms] == [arm.ladder for arm in after.arms]
        else:
            assert before == after


@pytest.mark.parametrize("share", [0, 10_000])
def test_known_bug_30_nothing_and_everything_are_shares_too(share: int) -> None:
    shared = share_table(build_table(SUPPORT_POLICY), {"support": share})
    split = [row for row in shared.rows() if row.arms[0].reason is Reason.CANARY]
    assert split
    assert {(share, 10_000 - share)} == {tuple(arm.base for arm in row.arms) for row in split}


def test_a_share_that_is_already_there_changes_nothing() -> None:
    table = build_table(SUPPORT_POLICY)
    assert table == share_table(table, {"support": 500, "gone": 1})
    assert table is share_table(table, {})


def test_the_breakers_admit_and_the_share_do_not_touch_each_other() -> None:
    table = build_table(SUPPORT_POLICY)
    admits = {("support-chat@v2.3-beta", None): 0.5}
    shares = {"support": 2_500}
    assert admit_table(share_table(table, shares), admits) == share_table(admit_table(table, admits), shares)
