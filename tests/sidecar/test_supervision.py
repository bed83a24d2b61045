"""The supervisor's machine as scripts: at a time, an event in, commands out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pointsman.sidecar.supervision import (
    Adopt,
    AdoptAsked,
    BecameReady,
    BootstrapChecked,
    Cause,
    CheckBootstrap,
    Command,
    Died,
    Disown,
    Drain,
    Drained,
    EnvoyAdopted,
    EnvoyDied,
    EnvoyGone,
    EnvoyReady,
    EnvoyRestarting,
    EnvoyStarted,
    Event,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    Phase,
    StartAsked,
    StopAsked,
    Supervision,
    Tell,
    Terminate,
    TimePassed,
    Timing,
    Watch,
    step,
)

TIMING = Timing()
CRASH = Died("signal SIGSEGV", "")
CRASHED = Tell(EnvoyDied("signal SIGSEGV", ""))


@dataclass(slots=True)
class Script:
    """A machine and its clock."""

    state: Supervision
    now_ms: int = 1_000

    def says(self, event: Event, *, after_ms: int = 0) -> tuple[Command, ...]:
        self.now_ms += after_ms
        self.state, commands = step(self.state, event, now_ms=self.now_ms, timing=TIMING)
        return commands

    def wakes(self) -> tuple[Command, ...]:
        """Let the time come for which the machine asked."""
        assert self.state.wake_at_ms is not None
        self.now_ms = self.state.wake_at_ms
        return self.says(TimePassed())

    @property
    def waits_ms(self) -> int | None:
        return None if self.state.wake_at_ms is None else self.state.wake_at_ms - self.now_ms


def serving() -> Script:
    script = Script(Supervision())
    assert script.says(StartAsked()) == (Launch(),)
    assert script.says(Launched(7)) == (Tell(EnvoyStarted(7)),)
    assert script.says(BecameReady(), after_ms=54) == (Tell(EnvoyReady(54)),)
    assert script.state.phase is Phase.SERVING
    return script


def test_start_launches_and_readiness_serves() -> None:
    serving()


def test_death_while_serving_restarts_after_100_ms() -> None:
    script = serving()

    assert script.says(CRASH) == (CRASHED, Tell(EnvoyRestarting(100)))
    assert script.waits_ms == 100
    assert script.wakes() == (Launch(),)
    assert script.state.phase is Phase.STARTING


def test_back_off_doubles_up_to_5_s() -> None:
    script = serving()
    waits = []

    for _ in range(8):
        script.says(CRASH)
        waits.append(script.waits_ms)
        script.wakes()
        script.says(BecameReady())

    assert waits == [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]


def test_back_off_starts_anew_after_30_s_of_serving() -> None:
    script = serving()
    for _ in range(3):
        script.says(CRASH)
        script.wakes()
        script.says(BecameReady())

    assert script.waits_ms == 30_000
    assert script.wakes() == ()
    script.says(CRASH)

    assert script.waits_ms == 100


def test_crashes_while_serving_never_end_the_restarts() -> None:
    script = serving()

    for _ in range(50):
        assert script.says(CRASH)[0] == CRASHED
        assert script.wakes() == (Launch(),)
        script.says(BecameReady())

    assert script.state.phase is Phase.SERVING


def test_first_early_death_has_the_bootstrap_checked() -> None:
    script = Script(Supervision())
    script.says(StartAsked())

    assert script.says(CRASH) == (CRASHED, CheckBootstrap())
    assert script.says(BootstrapChecked(None)) == (Tell(EnvoyRestarting(100)),)
    assert script.wakes() == (Launch(),)


def test_refused_bootstrap_ends_it_at_once() -> None:
    script = Script(Supervision())
    script.says(StartAsked())
    script.says(CRASH)

    (command,) = script.says(BootstrapChecked("node id is missing"))

    assert isinstance(command, Tell)
    assert isinstance(command.event, EnvoyGone)
    assert command.event.cause is Cause.BOOTSTRAP_REFUSED
    assert "node id is missing" in command.event.text


def test_check_without_a_verdict_does_not_hold_up_the_restart() -> None:
    script = Script(Supervision())
    script.says(StartAsked())
    script.says(CRASH)

    assert script.waits_ms == 5_000
    assert script.wakes() == (Tell(EnvoyRestarting(100)),)


def test_five_early_deaths_in_a_row_end_it_with_the_last_words() -> None:
    script = Script(Supervision())
    script.says(StartAsked())
    script.says(CRASH)
    script.says(BootstrapChecked(None))
    for _ in range(3):
        script.wakes()
        script.says(CRASH)
    script.wakes()

    died, gone = script.says(Died("exit code 1", "cannot bind"))

    assert died == Tell(EnvoyDied("exit code 1", "cannot bind"))
    assert isinstance(gone, Tell)
    assert isinstance(gone.event, EnvoyGone)
    assert gone.event.cause is Cause.CRASHING
    assert "5 times" in gone.event.text
    assert "exit code 1: cannot bind" in gone.event.text
    assert script.state.wake_at_ms is None


def test_readiness_forgets_early_deaths() -> None:
    script = Script(Supervision())
    script.says(StartAsked())
    for _ in range(10):
        script.says(CRASH)
        if script.state.phase is Phase.CHECKING:
            script.says(BootstrapChecked(None))
        script.wakes()
        script.says(BecameReady())
        script.says(CRASH)
        script.wakes()

    assert script.state.phase is Phase.STARTING


def test_failed_launches_count_as_early_deaths() -> None:
    script = Script(Supervision())
    script.says(StartAsked())
    script.says(LaunchFailed("no such file"))
    script.says(BootstrapChecked(None))
    for _ in range(4):
        script.wakes()
        script.says(LaunchFailed("no such file"))

    assert script.state.phase is Phase.GONE


def test_not_ready_in_time_is_killed_and_counts_as_an_early_death() -> None:
    script = Script(Supervision())
    script.says(StartAsked())

    assert script.waits_ms == 60_000
    assert script.wakes() == (Kill(),)
    assert script.waits_ms is None
    assert script.says(Died("signal SIGKILL", ""))[-1] == CheckBootstrap()


def test_stop_drains_then_terminates_then_is_gone() -> None:
    script = serving()

    assert script.says(StopAsked()) == (Drain(30_000),)
    assert script.says(Drained(0), after_ms=1_500) == (Terminate(),)
    assert script.says(Died("exit code 0", "")) == (Tell(EnvoyGone(Cause.STOPPED, "", is_clean=True, cut_requests=0)),)
    assert script.says(TimePassed()) == ()


def test_requests_left_at_the_deadline_are_reported() -> None:
    script = serving()
    script.says(StopAsked())
    script.says(Drained(3), after_ms=30_000)

    assert script.says(Died("exit code 0", "")) == (Tell(EnvoyGone(Cause.STOPPED, "", is_clean=False, cut_requests=3)),)


def test_drain_without_an_answer_ends_by_the_clock_and_is_not_clean() -> None:
    script = serving()
    script.says(StopAsked())

    assert script.waits_ms == 32_000
    assert script.wakes() == (Terminate(),)
    assert script.says(Died("exit code 0", "")) == (
        Tell(EnvoyGone(Cause.STOPPED, "", is_clean=False, cut_requests=None)),
    )


def test_envoy_that_ignores_sigterm_is_killed_after_5_s() -> None:
    script = serving()
    script.says(StopAsked())
    script.says(Drained(0))

    assert script.waits_ms == 5_000
    assert script.wakes() == (Kill(),)
    assert script.says(Died("signal SIGKILL", "")) == (
        Tell(EnvoyGone(Cause.STOPPED, "", is_clean=False, cut_requests=0)),
    )


def test_second_stop_does_not_wait_for_requests() -> None:
    script = serving()
    script.says(StopAsked())

    assert script.says(StopAsked()) == (Terminate(),)


def test_death_while_draining_is_not_followed_by_a_restart() -> None:
    script = serving()
    script.says(StopAsked())

    assert script.says(CRASH) == (CRASHED, Tell(EnvoyGone(Cause.STOPPED)))


@pytest.mark.parametrize("crashes", [0, 1])
def test_stop_before_readiness_terminates_without_a_drain(crashes: int) -> None:
    script = Script(Supervision())
    script.says(StartAsked())
    for _ in range(crashes):
        script.says(CRASH)
        script.says(BootstrapChecked(None))
        script.wakes()

    assert script.says(StopAsked()) == (Terminate(),)
    assert script.says(Died("exit code 0", ""))[-1] == Tell(EnvoyGone(Cause.STOPPED, is_clean=True, cut_requests=0))


def test_stop_while_waiting_to_restart_ends_at_once() -> None:
    script = serving()
    script.says(CRASH)

    assert script.says(StopAsked()) == (Tell(EnvoyGone(Cause.STOPPED, is_clean=True, cut_requests=0)),)


def adopting() -> Script:
    script = Script(Supervision())
    assert script.says(AdoptAsked(7)) == (Adopt(),)
    return script


def test_living_envoy_that_is_ready_is_adopted_without_a_launch() -> None:
    script = adopting()

    assert script.says(BecameReady(), after_ms=3) == (Watch(), Tell(EnvoyAdopted(7)))
    assert script.state.phase is Phase.SERVING


def test_living_envoy_that_is_not_ready_within_1_s_is_disowned_and_replaced() -> None:
    script = adopting()

    assert script.waits_ms == 1_000
    assert script.wakes() == (Disown(), Launch())
    assert script.state.phase is Phase.STARTING
    assert script.waits_ms == 60_000


def test_death_of_an_adopted_envoy_restarts_it_after_100_ms() -> None:
    script = adopting()
    script.says(BecameReady())

    assert script.says(CRASH) == (CRASHED, Tell(EnvoyRestarting(100)))
    assert script.wakes() == (Launch(),)


def test_adopted_envoy_is_drained_and_ended_like_any_other() -> None:
    script = adopting()
    script.says(BecameReady())

    assert script.says(StopAsked()) == (Drain(30_000),)
    assert script.says(Drained(0)) == (Terminate(),)
    assert script.says(CRASH)[-1] == Tell(EnvoyGone(Cause.STOPPED, "", is_clean=True, cut_requests=0))


def test_stop_before_the_adoption_drains_the_living_envoy() -> None:
    script = adopting()

    assert script.says(StopAsked()) == (Watch(), Drain(30_000))
    assert script.says(BecameReady()) == ()
    assert script.says(Drained(0)) == (Terminate(),)


@pytest.mark.parametrize(
    "late", [BecameReady(), Drained(0), BootstrapChecked("too late"), TimePassed(), StartAsked(), StopAsked(), CRASH]
)
def test_nothing_moves_the_machine_once_it_is_gone(late: Event) -> None:
    script = serving()
    script.says(CRASH)
    script.says(StopAsked())
    before = script.state

    assert script.says(late) == ()
    assert script.state == before
