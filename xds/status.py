"""What the xDS server knows of its nodes, as values: states for a status page, events for logs and metrics.

Decides nothing. Made by stream.py and ads.py, read by the agent (`/xds`, metrics, readiness). The text of a refusal is
Envoy's own, cut to its end, because Envoy puts the reason last.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from pointsman.xds.snapshot import ResourceType
from pointsman.xds.variant import VariantName

_REASON_CHARS = 1_024
"""How much of a refusal's end is kept: the reason is a line or two, what stands before it is a dump of the resource."""


class Outcome(StrEnum):
    """Where a node stands with the latest snapshot."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"


class EndReason(StrEnum):
    """Why a stream ended; also a metric label."""

    CLOSED_BY_CLIENT = "closed_by_client"
    SERVER_STOPPED = "server_stopped"
    MALFORMED = "malformed"
    NODE_MISSING = "node_missing"
    TYPE_MISSING = "type_missing"
    TOO_MANY_REQUESTS = "too_many_requests"
    TOO_MANY_NAMES = "too_many_names"
    NEVER_ACKNOWLEDGED = "never_acknowledged"
    NOT_READING = "not_reading"


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who opened a stream, from the first request's node."""

    node_id: str
    cluster: str = ""
    agent: str = ""
    features: frozenset[str] = frozenset()
    """The client features that the server acts on."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One resource that a node refused; version "" stands for its removal."""

    type_url: ResourceType
    name: str
    version: str
    text: str


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """One type of one node; versions are those of the type in the snapshot, None before the first."""

    type_url: ResourceType
    is_subscribed: bool
    sent_version: str | None
    acknowledged_version: str | None
    resources_held: int
    responses_sent: int
    acknowledgements: int
    nacks: int
    refused: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node; counts run since it was first seen."""

    identity: NodeIdentity
    group: str
    is_connected: bool
    open_streams: int
    snapshot_version: str | None
    """The snapshot meant for the node; None before its group has one."""
    acknowledged_snapshot: str | None
    """The last snapshot of which the node holds all it asked for."""
    outcome: Outcome
    types: tuple[TypeStatus, ...]
    last_refusal: str | None
    """The end of the latest NACK's text, also after it was repaired."""
    ignored_requests: int
    """Requests for types that are not served here."""
    stale_requests: int
    """Answers to nonces that are not outstanding."""
    variant: VariantName | None = None
    """How the newest stream speaks; None before the first."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """How the connected nodes of a group took a snapshot."""

    version: str
    acknowledged: tuple[str, ...]
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeConnected:
    """A node opened a stream."""

    identity: NodeIdentity
    group: str


@dataclass(frozen=True, slots=True)
class NodeDisconnected:
    """A node's stream ended."""

    identity: NodeIdentity
    reason: EndReason
    is_last: bool
    """False while another stream of the same node is open."""


@dataclass(frozen=True, slots=True)
class ResourceAcked:
    """A node took one response; `names` may be empty (nothing had changed), `removed` went with it."""

    node_id: str
    type_url: ResourceType
    version: str
    names: tuple[str, ...]
    removed: tuple[str, ...]
    round_trip_ms: float


@dataclass(frozen=True, slots=True)
class ResourceRefused:
    """A node refused one response. With several names each is sent again alone, to find out which is to blame."""

    node_id: str
    type_url: ResourceType
    version: str
    names: tuple[str, ...]
    text: str
    is_final: bool
    """True when the named content is not sent to the node again until it changes."""


XdsEvent: TypeAlias = NodeConnected | NodeDisconnected | ResourceAcked | ResourceRefused


def reason_text(message: str) -> str:
    """Return the end of a NACK's text in one line; the dump of the resource before it is dropped."""
    line = " ".join(message.split())
    return line if len(line) <= _REASON_CHARS else "…" + line[-_REASON_CHARS:]
