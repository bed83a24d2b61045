"""The two variants of the protocol, as what one of them can say and the other cannot.

Decides nothing; stream.py and subscription.py ask these claims and never for a variant's name, so that both variants
run through one core. The bytes are in delta.py and sotw.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pointsman.xds.snapshot import TYPE_ORDER, ResourceType


class VariantName(StrEnum):
    """The variant's name in status and metrics."""

    DELTA = "delta"
    STATE_OF_THE_WORLD = "sotw"


@dataclass(frozen=True, slots=True)
class Variant:
    """What a variant can say."""

    name: VariantName
    whole_types: frozenset[ResourceType]
    """Types whose response states all that the client is to hold: what is left out is removed (xDS point 15)."""
    removable_types: frozenset[ResourceType]
    """Types of which the server can say that a name does not exist; of the others the client lets go by itself."""
    max_in_flight: int | None
    """Unanswered responses of one type; None leaves it to the stream's limit."""
    repeats_nonces: bool
    """Whether requests that only change names carry the nonce of the last response (xDS point 12)."""


DELTA = Variant(
    VariantName.DELTA,
    whole_types=frozenset(),
    removable_types=frozenset(TYPE_ORDER),
    max_in_flight=None,
    repeats_nonces=False,
)

STATE_OF_THE_WORLD = Variant(
    VariantName.STATE_OF_THE_WORLD,
    whole_types=frozenset({ResourceType.CLUSTER, ResourceType.LISTENER}),
    removable_types=frozenset({ResourceType.CLUSTER, ResourceType.LISTENER}),
    # A newer response makes the answer to an older one stale; one at a time, every answer means something (20).
    max_in_flight=1,
    repeats_nonces=True,
)
