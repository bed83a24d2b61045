"""What a rollout is judged by: first tries of split rows, canary beside stable, in the same spans of time.

Counts the last analysis window in slices, and the whole step; latencies in sparse log-linear histograms, so that memory
grows with neither traffic nor time. Pinned rows, 429 and cancelled tries never count (design rules 5 and 8). Decides
nothing: rollout.py does. The owner gives the time; nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from pointsman.router.entry import RequestEntry, TryEntry
from pointsman.router.outcome import TryOutcome, is_its_only_try, outcome_of
from pointsman.router.table import Reason, Row

SLICES = 20
"""The window's edge is at most 5 % off."""

P50, P90 = 0.5, 0.9

_PARTS = 16
"""Linear parts of each power of two: a quantile is at most 3.2 % off."""

_LEAST, _MOST = 1 / 16, 2.0**40
"""Milliseconds that have buckets of their own: 63 µs to 35 years, so at most 720 buckets."""


class Histogram:
    """Sparse log-linear histogram: each power of two in sixteen equal parts; equal edges everywhere, so they add up."""

    __slots__ = ("_buckets", "total")

    def __init__(self) -> None:
        """Empty."""
        self._buckets: dict[int, int] = {}
        self.total = 0

    def add(self, value: float) -> None:
        """Count one value."""
        mantissa, exponent = math.frexp(min(max(value, _LEAST), _MOST))
        bucket = exponent * _PARTS + int((mantissa - 0.5) * 2 * _PARTS)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.total += 1

    def merge(self, other: Histogram) -> None:
        """Count all that the other one counted."""
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.total += other.total

    def quantile(self, ratio: float) -> float | None:
        """Return the middle of the bucket that holds the quantile; None when nothing was counted."""
        rank, passed = math.ceil(ratio * self.total), 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if passed >= rank:
                exponent, part = divmod(bucket, _PARTS)
                return math.ldexp(0.5 + (part + 0.5) / (2 * _PARTS), exponent)
        return None


@dataclass(frozen=True, slots=True)
class FirstTry:
    """A first try that counts. Times are those of a request that went well at once; None: not known."""

    is_canary: bool
    failed: bool
    duration_ms: float | None = None
    first_token_ms: float | None = None
    output_tokens: int | None = None


@dataclass(slots=True)
class Tally:
    """One version's first tries in a span."""

    requests: int = 0
    failures: int = 0
    durations: Histogram = field(default_factory=Histogram)
    first_tokens: Histogram = field(default_factory=Histogram)
    output_tokens: int = 0
    generating_ms: float = 0.0

    @property
    def error_ratio(self) -> float | None:
        """Failures of all; None when nothing was seen."""
        return self.failures / self.requests if self.requests else None

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens over the time after the first one (the whole time where that is not known)."""
        return self.output_tokens / self.generating_ms * 1_000 if self.generating_ms > 0 else None

    def add(self, tried: FirstTry) -> None:
        """Count one."""
        self.requests += 1
        self.failures += tried.failed
        if tried.duration_ms is None:
            return
        self.durations.add(tried.duration_ms)
        if tried.first_token_ms is not None:
            self.first_tokens.add(tried.first_token_ms)
        if tried.output_tokens:
            self.output_tokens += tried.output_tokens
            self.generating_ms += max(0.0, tried.duration_ms - (tried.first_token_ms or 0.0))

    def merge(self, other: Tally) -> None:
        """Count all that the other one counted."""
        self.requests += other.requests
        self.failures += other.failures
        self.durations.merge(other.durations)
        self.first_tokens.merge(other.first_tokens)
        self.output_tokens += other.output_tokens
        self.generating_ms += other.generating_ms


@dataclass(frozen=True, slots=True)
class Pair:
    """Both versions in the same span."""

    canary: Tally = field(default_factory=Tally)
    stable: Tally = field(default_factory=Tally)

    def side(self, *, is_canary: bool) -> Tally:
        """Return the canary's or the stable one's."""
        return self.canary if is_canary else self.stable


@dataclass(frozen=True, slots=True)
class Look:
    """What is known at one moment: the last analysis window, and everything since the step began."""

    recent: Pair = field(default_factory=Pair)
    whole: Pair = field(default_factory=Pair)


class Evidence:
    """First tries of one rollout's step."""

    __slots__ = ("_slice_ms", "_slices", "_whole", "window_ms")

    def __init__(self, window_ms: int) -> None:
        """Empty; `window_ms` is the analysis window."""
        self.window_ms = window_ms
        self._slice_ms = max(1, window_ms // SLICES)
        self._slices: deque[tuple[int, Pair]] = deque()
        self._whole = Pair()

    def add(self, tried: FirstTry, now_ms: int) -> None:
        """Count a first try that ended now."""
        self._forget(now_ms)
        start = now_ms - now_ms % self._slice_ms
        if not self._slices or self._slices[-1][0] < start:
            self._slices.append((start, Pair()))
        self._slices[-1][1].side(is_canary=tried.is_canary).add(tried)
        self._whole.side(is_canary=tried.is_canary).add(tried)

    def look(self, now_ms: int) -> Look:
        """Return what is known now."""
        self._forget(now_ms)
        recent = Pair()
        for _, piece in self._slices:
            recent.canary.merge(piece.canary)
            recent.stable.merge(piece.stable)
        return Look(recent, self._whole)

    def clear(self) -> None:
        """Forget everything: at another share the same version may do otherwise."""
        self._slices.clear()
        self._whole = Pair()

    def _forget(self, now_ms: int) -> None:
        oldest = now_ms - self.window_ms
        while self._slices and self._slices[0][0] + self._slice_ms <= oldest:
            self._slices.popleft()


def first_try_of(entry: RequestEntry | TryEntry, row: Row) -> FirstTry | None:
    """Return what the entry says of a first try at one of a split row's two versions; None where it says nothing.

    Envoy logs a try by itself only where it did not go well at once; of the others the request's entry tells.
    """
    if not is_split(row) or entry.target is None:
        return None
    targets = [str(arm.ladder.first_target) for arm in row.arms]
    if entry.target not in targets:
        return None
    is_canary = entry.target == targets[0]
    if isinstance(entry, RequestEntry):
        if not is_its_only_try(entry):
            return None
        return FirstTry(
            is_canary,
            failed=False,
            duration_ms=entry.duration_ms,
            first_token_ms=entry.first_chunk_ms,
            output_tokens=entry.output_tokens,
        )
    outcome = outcome_of(entry)
    if entry.attempt != 1 or outcome in (TryOutcome.CANCELLED, TryOutcome.REJECTED):
        return None
    return FirstTry(is_canary, failed=outcome is TryOutcome.FAILURE)


def is_split(row: Row) -> bool:
    """Tell whether the row divides its keys between a canary and a stable version."""
    return len(row.arms) == 2 and row.arms[0].reason is Reason.CANARY
