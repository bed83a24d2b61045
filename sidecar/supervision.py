"""The supervisor of one Envoy as a state machine: events and the clock in, commands out. It owns every transition.

    STOPPED ─StartAsked▶ STARTING ─BecameReady▶ SERVING ─StopAsked▶ DRAINING ─Drained▶ ENDING ─Died▶ GONE
       │                  ▲ ▲ │Died              │ ▲ │Died                               │TimePassed: Kill
       │                  │ │ ▼                  │ │ ▼
       │                  │ └─ (CHECKING ▶) BACKING_OFF
       └─AdoptAsked▶ ADOPTING ─BecameReady─────────┘
               TimePassed: Disown, Launch

Decides when Envoy is launched again, how long that waits, when that stops, and how an end goes on when nobody answers;
and whether an Envoy that an earlier agent left is adopted (it says that it is ready) or disowned and replaced.
Refuses to loop hot: deaths before readiness in a row end it, as does a bootstrap that Envoy itself calls invalid. No
clock, no I/O: envoy_process.py performs the commands, tests are scripts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, unique


@unique
class Phase(Enum):
    """Where the supervisor is."""

    STOPPED = "stopped"
    ADOPTING = "adopting"
    STARTING = "starting"
    SERVING = "serving"
    CHECKING = "checking"
    BACKING_OFF = "backing_off"
    DRAINING = "draining"
    ENDING = "ending"
    GONE = "gone"


@unique
class Cause(Enum):
    """Why there is no Envoy any more and none will come."""

    STOPPED = "stopped"
    CRASHING = "crashing"
    BOOTSTRAP_REFUSED = "bootstrap_refused"


@dataclass(frozen=True, slots=True)
class Timing:
    """The supervisor's delays and limits."""

    ready_ms: int = 60_000
    """From launch to ready. Envoy waits 15 s each for clusters and listeners that nobody sends, then goes without."""

    adopt_ms: int = 1_000
    """From the look at a living Envoy to its answer that it is ready; later it is replaced."""

    back_off_ms: int = 100
    back_off_max_ms: int = 5_000
    healthy_ms: int = 30_000
    """Serving for this long forgets earlier deaths."""

    early_deaths: int = 5
    """Deaths before readiness, in a row, after which no further launch is tried."""

    check_ms: int = 5_000
    drain_ms: int = 30_000
    """What requests in flight may take to finish; zero cuts them."""

    drain_margin_ms: int = 2_000
    """Beyond `drain_ms`: what the drain's own calls may take."""

    end_ms: int = 5_000
    """From SIGTERM to SIGKILL."""


# Events that the agent is told -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnvoyStarted:
    """A process was launched; it does not serve yet."""

    pid: int


@dataclass(frozen=True, slots=True)
class EnvoyAdopted:
    """A process of an earlier agent is supervised by this one. It serves, with the table that it had."""

    pid: int


@dataclass(frozen=True, slots=True)
class EnvoyReady:
    """Envoy serves."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class EnvoyDied:
    """Envoy ended without being asked. `log_tail` is what it said last, without configuration."""

    exit_text: str
    log_tail: str


@dataclass(frozen=True, slots=True)
class EnvoyRestarting:
    """The next launch comes in so long."""

    in_ms: int


@dataclass(frozen=True, slots=True)
class EnvoyGone:
    """The end. `cut_requests` None: not known; `text` says what to do, empty after a stop."""

    cause: Cause
    text: str = ""
    is_clean: bool = False
    cut_requests: int | None = None


EnvoyEvent = EnvoyStarted | EnvoyAdopted | EnvoyReady | EnvoyDied | EnvoyRestarting | EnvoyGone


# What the machine is told ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAsked:
    """The agent wants an Envoy."""


@dataclass(frozen=True, slots=True)
class AdoptAsked:
    """The agent wants an Envoy, and one that fits is alive."""

    pid: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The agent wants it to end; asked again, without waiting for requests."""


@dataclass(frozen=True, slots=True)
class Launched:
    """The process exists."""

    pid: int


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The system would not start the process."""

    text: str


@dataclass(frozen=True, slots=True)
class BecameReady:
    """Envoy's admin interface says LIVE."""


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended."""

    exit_text: str
    log_tail: str


@dataclass(frozen=True, slots=True)
class BootstrapChecked:
    """Envoy's own verdict on the bootstrap; `problem` None: nothing wrong, or no verdict."""

    problem: str | None


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing is in flight any more, or so many requests are at the deadline. None: not known."""

    cut_requests: int | None


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The clock reached `wake_at_ms`."""


Event = (
    StartAsked
    | AdoptAsked
    | StopAsked
    | Launched
    | LaunchFailed
    | BecameReady
    | Died
    | BootstrapChecked
    | Drained
    | TimePassed
)


# What the shell has to do ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process, then say Launched or LaunchFailed, BecameReady, Died."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Say BecameReady when the living Envoy is ready; do not watch it yet."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Say Died when the adopted process ends, or if it has ended."""


@dataclass(frozen=True, slots=True)
class Disown:
    """Treat the living Envoy as one that is to be replaced."""


@dataclass(frozen=True, slots=True)
class CheckBootstrap:
    """Ask Envoy whether the bootstrap is valid, then say BootstrapChecked."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Let requests finish for so long, then say Drained."""

    within_ms: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Pass the event on to the agent."""

    event: EnvoyEvent


Command = Launch | Adopt | Watch | Disown | CheckBootstrap | Drain | Terminate | Kill | Tell


@dataclass(frozen=True, slots=True)
class Supervision:
    """The machine's state. `wake_at_ms` None: it waits for an event alone."""

    phase: Phase = Phase.STOPPED
    wake_at_ms: int | None = None
    back_off_ms: int = 0
    """What the next restart waits; zero: the first one, `Timing.back_off_ms`."""

    early_deaths: int = 0
    launched_at_ms: int = 0
    cut_requests: int | None = None
    was_killed: bool = False
    adopting_pid: int = 0
    """Of the Envoy that may be adopted; zero: none."""


Step = tuple[Supervision, tuple[Command, ...]]


def step(state: Supervision, event: Event, *, now_ms: int, timing: Timing) -> Step:
    """Return the next state and what to do now. Events that mean nothing in a phase change nothing."""
    match state.phase:
        case Phase.STOPPED:
            return _stopped(state, event, now_ms, timing)
        case Phase.ADOPTING:
            return _adopting(state, event, now_ms, timing)
        case Phase.STARTING | Phase.SERVING:
            return _running(state, event, now_ms, timing)
        case Phase.CHECKING | Phase.BACKING_OFF:
            return _waiting(state, event, now_ms, timing)
        case Phase.DRAINING | Phase.ENDING:
            return _ending(state, event, now_ms, timing)
        case Phase.GONE:
            return state, ()


def _stopped(state: Supervision, event: Event, now_ms: int, timing: Timing) -> Step:
    match event:
        case StartAsked():
            return _launch(state, now_ms, timing)
        case AdoptAsked(pid):
            wake_at_ms = now_ms + timing.adopt_ms
            return replace(state, phase=Phase.ADOPTING, wake_at_ms=wake_at_ms, adopting_pid=pid), (Adopt(),)
        case StopAsked():
            return _gone(state, EnvoyGone(Cause.STOPPED, is_clean=True, cut_requests=0))
        case _:
            return state, ()


def _adopting(state: Supervision, event: Event, now_ms: int, timing: Timing) -> Step:
    """A process of an earlier agent is there. Its end is watched from the moment on in which it is ours."""
    match event:
        case BecameReady():
            serving = replace(state, phase=Phase.SERVING, wake_at_ms=now_ms + timing.healthy_ms)
            return serving, (Watch(), Tell(EnvoyAdopted(state.adopting_pid)))
        case TimePassed():
            launching, commands = _launch(state, now_ms, timing)
            return launching, (Disown(), *commands)
        case StopAsked():
            # It may be serving clients, ready or not.
            draining, commands = _drain(state, now_ms, timing)
            return draining, (Watch(), *commands)
        case _:
            return state, ()


def _running(state: Supervision, event: Event, now_ms: int, timing: Timing) -> Step:
    is_starting = state.phase is Phase.STARTING
    match event:
        case Launched(pid):
            return state, (Tell(EnvoyStarted(pid)),)
        case LaunchFailed(text):
            return _after_early_death(state, EnvoyDied("not started", text), now_ms, timing)
        case BecameReady() if is_starting:
            serving = replace(state, phase=Phase.SERVING, wake_at_ms=now_ms + timing.healthy_ms, early_deaths=0)
            return serving, (Tell(EnvoyReady(now_ms - state.launched_at_ms)),)
        case Died(exit_text, log_tail) if is_starting:
            return _after_early_death(state, EnvoyDied(exit_text, log_tail), now_ms, timing)
        case Died(exit_text, log_tail):
            return _back_off(state, (Tell(EnvoyDied(exit_text, log_tail)),), now_ms, timing)
        case TimePassed() if is_starting:
            # Not ready in time: its death is then an early one.
            return replace(state, wake_at_ms=None), (Kill(),)
        case TimePassed():
            return replace(state, wake_at_ms=None, back_off_ms=0), ()
        case StopAsked() if is_starting:
            return _terminate(replace(state, cut_requests=0), now_ms, timing)
        case StopAsked():
            return _drain(state, now_ms, timing)
        case _:
            return state, ()


def _waiting(state: Supervision, event: Event, now_ms: int, timing: Timing) -> Step:
    """No process exists: the bootstrap is being judged, or the next launch is due at `wake_at_ms`."""
    match event:
        case BootstrapChecked(str(problem)):
            text = f"Envoy refuses its bootstrap: {problem}; report this with the Envoy version"
            return _gone(state, EnvoyGone(Cause.BOOTSTRAP_REFUSED, text, cut_requests=0))
        case BootstrapChecked(None) | TimePassed() if state.phase is Phase.CHECKING:
            return _back_off(state, (), now_ms, timing)
        case TimePassed():
            return _launch(state, now_ms, timing)
        case StopAsked():
            return _gone(state, EnvoyGone(Cause.STOPPED, is_clean=True, cut_requests=0))
        case _:
            return state, ()


def _ending(state: Supervision, event: Event, now_ms: int, timing: Timing) -> Step:
    is_draining = state.phase is Phase.DRAINING
    match event:
        case Drained(cut_requests) if is_draining:
            return _terminate(replace(state, cut_requests=cut_requests), now_ms, timing)
        case TimePassed() | StopAsked() if is_draining:
            return _terminate(state, now_ms, timing)
        case TimePassed():
            return replace(state, wake_at_ms=None, was_killed=True), (Kill(),)
        case Died(exit_text, log_tail) if is_draining:
            # It crashed: what was in flight is lost, and nobody counted it.
            gone = EnvoyGone(Cause.STOPPED)
            return _gone(state, gone, Tell(EnvoyDied(exit_text, log_tail)))
        case Died():
            is_clean = state.cut_requests == 0 and not state.was_killed
            return _gone(state, EnvoyGone(Cause.STOPPED, "", is_clean, state.cut_requests))
        case Launched(pid):
            return state, (Tell(EnvoyStarted(pid)),)
        case LaunchFailed():
            return _gone(state, EnvoyGone(Cause.STOPPED, is_clean=True, cut_requests=0))
        case _:
            return state, ()


def _launch(state: Supervision, now_ms: int, timing: Timing) -> Step:
    wake_at_ms = now_ms + timing.ready_ms
    return replace(state, phase=Phase.STARTING, wake_at_ms=wake_at_ms, launched_at_ms=now_ms), (Launch(),)


def _drain(state: Supervision, now_ms: int, timing: Timing) -> Step:
    wake_at_ms = now_ms + timing.drain_ms + timing.drain_margin_ms
    return replace(state, phase=Phase.DRAINING, wake_at_ms=wake_at_ms), (Drain(timing.drain_ms),)


def _terminate(state: Supervision, now_ms: int, timing: Timing) -> Step:
    return replace(state, phase=Phase.ENDING, wake_at_ms=now_ms + timing.end_ms), (Terminate(),)


def _after_early_death(state: Supervision, died: EnvoyDied, now_ms: int, timing: Timing) -> Step:
    """Give up after too many in a row; after the first one ask Envoy whether the bootstrap is to blame."""
    state = replace(state, early_deaths=state.early_deaths + 1)
    tell = Tell(died)
    if state.early_deaths >= timing.early_deaths:
        text = (
            f"Envoy ended {state.early_deaths} times in a row before it was ready, last with {died.exit_text}:"
            f" {died.log_tail or 'its log says nothing'}; start it by hand with the bootstrap in the state directory"
        )
        return _gone(state, EnvoyGone(Cause.CRASHING, text, cut_requests=0), tell)
    if state.early_deaths == 1:
        return replace(state, phase=Phase.CHECKING, wake_at_ms=now_ms + timing.check_ms), (tell, CheckBootstrap())
    return _back_off(state, (tell,), now_ms, timing)


def _back_off(state: Supervision, commands: tuple[Command, ...], now_ms: int, timing: Timing) -> Step:
    in_ms = state.back_off_ms or timing.back_off_ms
    following_ms = min(in_ms * 2, timing.back_off_max_ms)
    waiting = replace(state, phase=Phase.BACKING_OFF, wake_at_ms=now_ms + in_ms, back_off_ms=following_ms)
    return waiting, (*commands, Tell(EnvoyRestarting(in_ms)))


def _gone(state: Supervision, gone: EnvoyGone, *before: Command) -> Step:
    return replace(state, phase=Phase.GONE, wake_at_ms=None), (*before, Tell(gone))
