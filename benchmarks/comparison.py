"""Bursts of interleaved rounds -> medians and paired ratios with their spread.

A ratio is taken within a round, between bursts that ran seconds apart, so what else the machine does touches both. The
interval holds the median with 90 % confidence or more, whatever the distribution: with few rounds it is their lowest
and highest, with nine their second lowest and second highest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from burst import Burst

CONFIDENCE = 0.9
"""Of the interval, by the sign test; five rounds reach it, three or four do not."""

Rounds = Mapping[str, Sequence[Burst]]
"""Bursts of each subject, one a round, in the order of the rounds."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of the rounds, with the interval's ends."""

    median: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        """Return `median (low–high)`."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of the rounds' values."""
    ordered = sorted(values)
    cut = _cut(len(ordered))
    return Spread(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def over(rounds: Rounds, subject: str, base: str) -> Spread:
    """Return the subject's processor time of Envoy divided by the base's."""
    return _paired(rounds, subject, base, lambda mine, its: mine / its)


def beyond(rounds: Rounds, subject: str, base: str) -> Spread:
    """Return the subject's processor time of Envoy less the base's, in microseconds a request."""
    return _paired(rounds, subject, base, lambda mine, its: mine - its)


def python_us(rounds: Rounds, subject: str) -> Spread:
    """Return Python's processor time a request."""
    return spread([burst.python_us for burst in rounds[subject] if burst.python_us is not None])


def _cut(count: int) -> int:
    """Return how many values may go at each end so that the rest still spans the median with CONFIDENCE."""
    cut, outside = 0, 2 / 2**count
    while cut + 1 < count / 2 and outside + 2 * math.comb(count, cut + 1) / 2**count <= 1 - CONFIDENCE:
        cut += 1
        outside += 2 * math.comb(count, cut) / 2**count
    return cut


def _paired(rounds: Rounds, subject: str, base: str, combine: Callable[[float, float], float]) -> Spread:
    pairs = zip(rounds[subject], rounds[base], strict=True)
    return spread([combine(mine.envoy_us or 0.0, its.envoy_us or 0.0) for mine, its in pairs])
