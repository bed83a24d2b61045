"""How a simulated model server behaves right now, and how that is changed while it runs.

Decides what a change may hold (`changed`), when an answer is due (`Pace`) and which requests fail (`is_error_due`).
Refuses unknown keys, wrong types and values out of bounds, all of them at once, and then changes nothing.
Pure: called by the simulator's shell for POST /_control and for the command line's start values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches

MAX_DELAY_MS = 3_600_000.0
"""An hour: longer is a typing error, `hang` never answers."""

MAX_TOKENS_PER_SECOND = 1_000_000.0
MAX_SLOTS = 100_000
MAX_ENTROPY = 1_000.0
MAX_CHUNKS = 1_000_000

_ROUNDING = 1e-9
"""Error ratios are decimal fractions; this keeps 100 x 0.29 from counting 28."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What POST /_control sets. None means off; zero turns a delay off.

    `latency_ms` passes before the headers, `ttft_ms` before the first token, `tokens_per_second` paces the rest.
    `error_ratio` (0..1) of the requests get `error_status`. `reset_after_chunks` cuts the connection after so many
    server-sent events; 0 cuts before the headers, streaming or not.
    """

    latency_ms: float = 0.0
    ttft_ms: float = 0.0
    tokens_per_second: float = 0.0
    error_ratio: float = 0.0
    error_status: int = 503
    confidence: float | None = None
    entropy: float | None = None
    hang: bool = False
    reset_after_chunks: int | None = None
    slots: int = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one key takes: a kind of value between two limits, both included."""

    lowest: float
    highest: float
    is_whole: bool = False
    may_be_off: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.is_whole else "a number"
        off = ", or null for off" if self.may_be_off else ""
        return f"{kind} from {self.lowest:g} to {self.highest:g}{off}"


BOUNDS: Mapping[str, Bounds | None] = {
    "latencyMs": Bounds(0, MAX_DELAY_MS),
    "ttftMs": Bounds(0, MAX_DELAY_MS),
    "tokensPerSecond": Bounds(0, MAX_TOKENS_PER_SECOND),
    "errorRatio": Bounds(0, 1),
    "errorStatus": Bounds(400, 599, is_whole=True),
    "confidence": Bounds(0, 1, may_be_off=True),
    "entropy": Bounds(0, MAX_ENTROPY, may_be_off=True),
    "hang": None,
    "resetAfterChunks": Bounds(0, MAX_CHUNKS, is_whole=True, may_be_off=True),
    "slots": Bounds(1, MAX_SLOTS, is_whole=True),
}
"""Every key of /_control, in the order of Behaviour's fields; None stands for true or false."""

_FIELDS = dict(zip(BOUNDS, (field.name for field in fields(Behaviour)), strict=True))


class ChangeRefused(ValueError):
    """A change that was not made. `problems` name key, found and expected, one line each."""

    def __init__(self, problems: tuple[str, ...], keys: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.keys = keys


def changed(behaviour: Behaviour, change: Mapping[str, object]) -> Behaviour:
    """`behaviour` with the keys of `change` replaced; raises ChangeRefused with every problem, changing nothing."""
    problems: list[str] = []
    keys: list[str] = []
    accepted: dict[str, object] = {}
    for key, value in change.items():
        problem = _problem(key, value)
        if problem is None:
            accepted[_FIELDS[key]] = value
        else:
            problems.append(problem)
            keys.append(key)
    if problems:
        raise ChangeRefused(tuple(problems), tuple(keys))
    return replace(behaviour, **accepted)  # type: ignore[arg-type]  # _problem has checked every type


def rendered(behaviour: Behaviour) -> dict[str, object]:
    """The whole state under /_control's keys."""
    return {key: getattr(behaviour, name) for key, name in _FIELDS.items()}


def is_error_due(ordinal: int, ratio: float) -> bool:
    """Whether request number `ordinal` (from 1) fails, so that of any first n requests exactly floor(n x ratio) do."""
    return math.floor(ordinal * ratio + _ROUNDING) > math.floor((ordinal - 1) * ratio + _ROUNDING)


@dataclass(frozen=True, slots=True)
class Pace:
    """When the parts of one answer are due, in seconds. Zero means at once."""

    headers_after_s: float
    first_token_after_s: float
    token_every_s: float

    @property
    def is_immediate(self) -> bool:
        """No part of the answer waits, so a stream may go out in one piece."""
        return not self.first_token_after_s and not self.token_every_s

    def whole_s(self, tokens: int) -> float:
        """The time of an answer that is sent in one piece: headers, first token, and the other `tokens`."""
        return self.headers_after_s + self.first_token_after_s + self.token_every_s * max(0, tokens - 1)


def stretch(running: int, slots: int) -> float:
    """How much slower a server with `running` of `slots` busy is: 1 for one alone, near 2 when full."""
    return 1.0 + max(0, running - 1) / max(1, slots)


def pace(behaviour: Behaviour, running: int) -> Pace:
    """When the answer's parts are due with `running` requests in slots, this one among them."""
    factor = stretch(running, behaviour.slots)
    return Pace(
        headers_after_s=behaviour.latency_ms / 1000 * factor,
        first_token_after_s=behaviour.ttft_ms / 1000 * factor,
        token_every_s=factor / behaviour.tokens_per_second if behaviour.tokens_per_second else 0.0,
    )


def _problem(key: str, value: object) -> str | None:
    if key not in BOUNDS:
        near = get_close_matches(key, BOUNDS, n=1)
        advice = f"did you mean {near[0]}?" if near else f"known: {', '.join(BOUNDS)}"
        return f"unknown key {key[:64]!r}: {advice}"
    bounds = BOUNDS[key]
    if bounds is None:
        return None if isinstance(value, bool) else f"{key}: found {_kind(value)}, expected true or false"
    if value is None and bounds.may_be_off:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{key}: found {_kind(value)}, expected {bounds}"
    if bounds.is_whole and not isinstance(value, int):
        return f"{key}: found {value:g}, expected {bounds}"
    if not bounds.lowest <= value <= bounds.highest:
        # A JSON integer may have thousands of digits and is then too large for a float.
        found = f"{value:g}" if isinstance(value, float) or abs(value) < 10**15 else "a huge number"
        return f"{key}: found {found}, expected {bounds}"
    return None


def _kind(value: object) -> str:
    kinds: dict[type, str] = {str: "a text", bool: "a boolean", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), "a number")
