"""What both variants' bytes have in common: who asks, why a request ends its stream, how a refusal is read.

Decides which requests are too strange to be taken: no type, a node or name so long that keeping it would be the
attack. Called by delta.py and sotw.py; nodes.py holds a stream's Wire and asks nothing about its variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from pointsman.xds import api
from pointsman.xds.api import M
from pointsman.xds.snapshot import Resource, ResourceType
from pointsman.xds.status import EndReason, NodeIdentity, reason_text
from pointsman.xds.subscription import Request, Response
from pointsman.xds.variant import Variant

MAX_NODE_ID_CHARS = 1_024
MAX_NAME_CHARS = 4_096
"""A stream's names are kept as long as it lives, a node's id longer; ours have at most some hundred characters."""

MAX_LABEL_CHARS = 256
"""What is kept of a node's cluster and agent, which are shown and decide the group."""

TTL_FEATURE = "xds.config.supports-resource-ttl"
SOTW_TTL_FEATURES = frozenset({"xds.config.supports-resource-in-sotw", "xds.config.resource-in-sotw"})
"""Client features that we act on; the last has two spellings, of Envoy's documents and of gRPC's clients."""


class RequestRefused(Exception):
    """A request that ends its stream; the text may be shown to the client."""

    def __init__(self, reason: EndReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Incoming:
    """One decoded request; `request` is None for a type that is not served, `identity` for one without a node."""

    identity: NodeIdentity | None
    request: Request | None


@dataclass(frozen=True, slots=True)
class Wire:
    """One variant's bytes: to values, and back."""

    variant: Variant
    decode: Callable[[bytes], Incoming]
    encode: Callable[[Response], bytes]
    ttl_features: tuple[frozenset[str], ...]
    """Of each set a client must announce one, to be sent lifetimes (xDS point 36)."""

    def states_ttl(self, identity: NodeIdentity) -> bool:
        """Return whether the client knows lifetimes in this variant."""
        return all(alternatives & identity.features for alternatives in self.ttl_features)


def parse(raw: bytes, message_type: type[M]) -> M:
    """Return the message, or raise RequestRefused when the bytes are none."""
    try:
        return message_type.FromString(raw)
    except DecodeError:
        name = message_type.DESCRIPTOR.name
        text = f"{len(raw)} bytes do not parse as {name}; send envoy.service.discovery.v3 messages"
        raise RequestRefused(EndReason.MALFORMED, text) from None


def read_type(url: str) -> ResourceType | None:
    """Return the type; None for one that is not served. RequestRefused when it is not stated (xDS point 2)."""
    if not url:
        raise RequestRefused(EndReason.TYPE_MISSING, "type_url is empty; an aggregated stream needs it in each request")
    try:
        return ResourceType(url)
    except ValueError:
        return None


def read_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, or raise RequestRefused when one is too long to be kept."""
    found = tuple(names)
    longest = max(map(len, found), default=0)
    if longest > MAX_NAME_CHARS:
        text = f"a resource name has {longest} characters; at most {MAX_NAME_CHARS} are taken"
        raise RequestRefused(EndReason.MALFORMED, text)
    return found


def read_identity(node: api.Node) -> NodeIdentity | None:
    """Return who asks; None when no id is stated."""
    if not node.id:
        return None
    if len(node.id) > MAX_NODE_ID_CHARS:
        text = f"node.id has {len(node.id)} characters; at most {MAX_NODE_ID_CHARS} are taken"
        raise RequestRefused(EndReason.MALFORMED, text)
    known = SOTW_TTL_FEATURES | {TTL_FEATURE}
    return NodeIdentity(
        node.id,
        node.cluster[:MAX_LABEL_CHARS],
        node.user_agent_name[:MAX_LABEL_CHARS],
        frozenset(feature for feature in node.client_features if feature in known),
    )


def read_refusal(message: api.DeltaDiscoveryRequest | api.DiscoveryRequest) -> str | None:
    """Return a NACK's text; None for an acknowledgement."""
    # The presence of error_detail alone makes a NACK, whatever its code and text (xDS point 8).
    if not message.HasField("error_detail"):
        return None
    return reason_text(message.error_detail.message) or f"code {message.error_detail.code} without a text"


def make_entry(resource: Resource, *, states_ttl: bool, has_content: bool = True) -> api.Resource:
    """Return the resource as it travels; without content it only confirms the lifetime."""
    entry = api.Resource(name=resource.name, version=resource.version)
    if has_content:
        entry.resource.type_url = resource.type_url.value
        entry.resource.value = resource.body
    if states_ttl and resource.ttl_s is not None:
        entry.ttl.FromNanoseconds(round(resource.ttl_s * 1e9))
    return entry
