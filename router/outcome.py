"""What became of a try: success, failure, or neither (design section 7 "Outcomes", rule 8).

Failure: connect error, 5xx, reset, idle or first-byte time-out. A 429 is rejected and a client's abort cancelled:
neither counts for or against who was tried. Other 4xx are the caller's mistake, so the server did well.
"""

from __future__ import annotations

from enum import StrEnum

from pointsman.router.entry import RequestEntry, TryEntry

CLIENT_ABORT_FLAGS = frozenset({"DC", "DR"})
"""Envoy's short flags for a client that went away: connection terminated, stream reset by the client."""

FAILURE_FLAGS = frozenset({"UF", "UC", "UR", "UT", "UH", "UO", "UPE", "LR", "SI", "DPE", "NC", "NR"})
"""Envoy's short flags for what went wrong between it and the server, overflow and no-route included."""

TOO_MANY_REQUESTS = 429
SWITCHING_PROTOCOLS = 101


class TryOutcome(StrEnum):
    """What a try counts as."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


def outcome_of(entry: TryEntry) -> TryOutcome:
    """Return what the try counts as."""
    if entry.status == SWITCHING_PROTOCOLS:
        return TryOutcome.SUCCESS  # the talk began; how an upgraded connection ends is no failure of a request
    if CLIENT_ABORT_FLAGS.intersection(entry.flags):
        return TryOutcome.CANCELLED
    if entry.status >= 500 or entry.status == 0 or FAILURE_FLAGS.intersection(entry.flags):
        return TryOutcome.FAILURE
    return TryOutcome.REJECTED if entry.status == TOO_MANY_REQUESTS else TryOutcome.SUCCESS


def is_its_only_try(entry: RequestEntry) -> bool:
    """Tell whether the request's entry stands for its one, successful try.

    Envoy logs a try by itself only where it failed, was flagged, or came after another (xds/listeners.py): the entry of
    a request that went well at once says all that its try's would.
    """
    return entry.attempts == 1 and entry.target is not None and 0 < entry.status < 400 and not entry.flags
