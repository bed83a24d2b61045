"""The breaker's machine as scripts in virtual time."""

import random

import pytest
from pointsman.router.breaker import SHED_FLOOR, BreakerState, Cause, Phase, step, trip_of
from pointsman.router.policy import Breaker
from pointsman.router.window import Counts

SETTINGS = Breaker(windows_ms=(5_000, 60_000))
QUIET = (Counts(200), Counts(2_000))
FAILING = (Counts(100, failures=50), Counts(1_000, failures=50))
ANSWERED, SILENT = True, False
LATE = (Counts(100, late=50), Counts(1_000, late=50))


def test_errors_open_fully() -> None:
    opened = step(BreakerState(), FAILING, None, 1_000, SETTINGS)
    assert (Phase.OPEN, 0.0, Cause.ERRORS, 6_000) == (opened.phase, opened.admit, opened.cause, opened.act_at_ms)


@pytest.mark.parametrize(
    "counts", [Counts(4, failures=4), Counts(100, failures=12), Counts(0), Counts(1_000, failures=120)]
)
def test_doubt_keeps_it_closed(counts: Counts) -> None:
    state = BreakerState()
    assert step(state, (counts,), None, 1_000, SETTINGS) is state


def test_one_window_is_enough() -> None:
    assert trip_of((Counts(10_000), Counts(100, failures=50)), SETTINGS) is Cause.ERRORS


def test_errors_count_before_lateness() -> None:
    assert trip_of((Counts(100, failures=50, late=90),), SETTINGS) is Cause.ERRORS


def test_it_stays_open_without_a_probe_and_while_open_for_runs() -> None:
    opened = step(BreakerState(), FAILING, None, 0, SETTINGS)
    assert step(opened, QUIET, ANSWERED, 4_999, SETTINGS) is opened
    assert step(opened, QUIET, None, 60_000, SETTINGS) is opened


def test_a_failed_probe_keeps_it_open_for_another_while() -> None:
    opened = step(BreakerState(), FAILING, None, 0, SETTINGS)
    still = step(opened, (), SILENT, 5_000, SETTINGS)
    assert (Phase.OPEN, Cause.PROBE_FAILED, 10_000) == (still.phase, still.cause, still.act_at_ms)


def test_it_ramps_in_five_percent_steps_and_closes() -> None:
    state = step(step(BreakerState(), FAILING, None, 0, SETTINGS), (), ANSWERED, 5_000, SETTINGS)
    admits = [state.admit]
    now = 5_000
    while state.phase is Phase.RAMPING:
        assert step(state, QUIET, None, now + 1_999, SETTINGS) is state
        now += 2_000
        state = step(state, QUIET, None, now, SETTINGS)
        admits.append(state.admit)
    assert [round(0.05 * n, 2) for n in range(1, 21)] == [round(admit, 2) for admit in admits]
    assert (Phase.CLOSED, Cause.RECOVERED, 43_000) == (state.phase, state.cause, now)


def test_a_trip_while_ramping_opens_again() -> None:
    ramping = BreakerState(Phase.RAMPING, 0.4, Cause.RAMP_STEP, 0, 2_000)
    opened = step(ramping, FAILING, None, 100, SETTINGS)
    assert (Phase.OPEN, 0.0) == (opened.phase, opened.admit)


def test_lateness_sheds_a_quarter_a_step_down_to_the_floor() -> None:
    state, admits = BreakerState(), []
    for now in range(0, 50_000, 10_000):
        state = step(state, LATE, None, now, SETTINGS)
        admits.append(state.admit)
    assert [0.75, 0.5, SHED_FLOOR] == admits[:3]
    assert min(admits) == SHED_FLOOR


def test_what_was_shed_comes_back_without_a_probe() -> None:
    shed = step(BreakerState(), LATE, None, 0, SETTINGS)
    risen = step(shed, QUIET, None, 5_000, SETTINGS)
    assert (Phase.RAMPING, 0.8) == (risen.phase, risen.admit)


def test_errors_while_shed_open_fully() -> None:
    shed = step(BreakerState(), LATE, None, 0, SETTINGS)
    assert step(shed, FAILING, None, 100, SETTINGS).admit == 0.0


def test_false_opens_are_rare_at_a_healthy_error_ratio() -> None:
    source = random.Random(20261130)
    opened = 0
    for _ in range(20_000):
        total = source.randint(5, 600)
        failures = sum(source.random() < 0.03 for _ in range(total))
        opened += trip_of((Counts(total, failures=failures),), SETTINGS) is not None
    assert opened <= 2
