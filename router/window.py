"""Sliding windows of try outcomes: how many, how many failed, how many were very late, in the last milliseconds.

Counts in slices of a twentieth of the window, so memory does not grow with traffic and the window's edge is at most 5 %
off. Pinned tries count for at most a fifth of a window (design rule 5): they are a person's experiment, not traffic.
The owner gives the time; nothing here reads a clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SLICES = 20
PINNED_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Counts:
    """What a window holds."""

    total: int = 0
    failures: int = 0
    late: int = 0


@dataclass(slots=True)
class _Slice:
    start_ms: int
    total: int = 0
    failures: int = 0
    late: int = 0
    pinned: int = 0


class Window:
    """Outcomes of the last `width_ms`."""

    __slots__ = ("_slice_ms", "_slices", "width_ms")

    def __init__(self, width_ms: int) -> None:
        """Empty."""
        self.width_ms = width_ms
        self._slice_ms = max(1, width_ms // SLICES)
        self._slices: deque[_Slice] = deque()

    def add(self, now_ms: int, *, failed: bool, late: bool, pinned: bool = False) -> None:
        """Count one try that ended now."""
        self._forget(now_ms)
        start = now_ms - now_ms % self._slice_ms
        if not self._slices or self._slices[-1].start_ms < start:
            self._slices.append(_Slice(start))
        if pinned:
            counted = sum(piece.pinned for piece in self._slices)
            if counted + 1 > PINNED_SHARE * (sum(piece.total for piece in self._slices) + 1) and self._has_others():
                return
        last = self._slices[-1]
        last.total += 1
        last.failures += failed
        last.late += late
        last.pinned += pinned

    def counts(self, now_ms: int) -> Counts:
        """Return what the window holds now."""
        self._forget(now_ms)
        return Counts(
            sum(piece.total for piece in self._slices),
            sum(piece.failures for piece in self._slices),
            sum(piece.late for piece in self._slices),
        )

    def clear(self) -> None:
        """Forget everything: another phase begins, old evidence does not count for it."""
        self._slices.clear()

    def _has_others(self) -> bool:
        """Whether anything but pinned tries is in the window; a target that only pins reach is judged by them."""
        return any(piece.total > piece.pinned for piece in self._slices)

    def _forget(self, now_ms: int) -> None:
        oldest = now_ms - self.width_ms
        while self._slices and self._slices[0].start_ms + self._slice_ms <= oldest:
            self._slices.popleft()
