"""The Delta wire: bytes of a DeltaDiscoveryRequest to values, values to the bytes of a DeltaDiscoveryResponse.

Decides nothing about subscriptions. Refuses bytes that do not parse and requests without a type. Called by ads.py for
each message; a State-of-the-World wire would stand beside this file and make the same values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from google.protobuf.message import DecodeError
from pointsman.xds import api
from pointsman.xds.snapshot import Resource, ResourceType
from pointsman.xds.status import EndReason, NodeIdentity, reason_text
from pointsman.xds.subscription import Request, Response

_PAYLOADS_CACHED = 8
"""Encoded pushes that streams share: one a type, twice over; 24 MB at worst (8 of the largest response)."""


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


def decode(raw: bytes) -> Incoming:
    """Return what the bytes say, or raise RequestRefused."""
    try:
        message = api.DeltaDiscoveryRequest.FromString(raw)
    except DecodeError:
        text = f"{len(raw)} bytes do not parse as DeltaDiscoveryRequest; send envoy.service.discovery.v3 messages"
        raise RequestRefused(EndReason.MALFORMED, text) from None
    if not message.type_url:
        raise RequestRefused(EndReason.TYPE_MISSING, "type_url is empty; an aggregated stream needs it in each request")
    try:
        kind = ResourceType(message.type_url)
    except ValueError:
        return Incoming(_identity(message), None)
    request = Request(
        kind,
        subscribe=tuple(message.resource_names_subscribe),
        unsubscribe=tuple(message.resource_names_unsubscribe),
        initial_versions=dict(message.initial_resource_versions),
        nonce=message.response_nonce,
        error_text=_error_text(message),
    )
    return Incoming(_identity(message), request)


def _identity(message: api.DeltaDiscoveryRequest) -> NodeIdentity | None:
    node = message.node
    return NodeIdentity(node.id, node.cluster, node.user_agent_name) if node.id else None


def _error_text(message: api.DeltaDiscoveryRequest) -> str | None:
    # The presence of error_detail alone makes a NACK, whatever its code and text (facts-xds 8).
    if not message.HasField("error_detail"):
        return None
    return reason_text(message.error_detail.message) or f"code {message.error_detail.code} without a text"


def encode(response: Response) -> bytes:
    """Return the response's bytes; streams that are sent the same content share all but the nonce."""
    # Messages merge when their bytes are put one behind the other, so the nonce may come last.
    payload = _payload(response.type_url, response.version, response.resources, response.removed)
    return payload + api.DeltaDiscoveryResponse(nonce=response.nonce).SerializeToString()


@lru_cache(maxsize=_PAYLOADS_CACHED)
def _payload(kind: ResourceType, version: str, resources: tuple[Resource, ...], removed: tuple[str, ...]) -> bytes:
    entries = [
        api.Resource(
            name=resource.name, version=resource.version, resource=api.Any(type_url=kind.value, value=resource.body)
        )
        for resource in resources
    ]
    return api.DeltaDiscoveryResponse(
        system_version_info=version, type_url=kind.value, resources=entries, removed_resources=removed
    ).SerializeToString()
