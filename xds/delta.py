"""The Delta wire: bytes of a DeltaDiscoveryRequest to values, values to the bytes of a DeltaDiscoveryResponse.

Decides nothing about subscriptions. Refuses bytes that do not parse and requests without a type. Called by nodes.py
for each request and by ads.py for each response; sotw.py stands beside this file and makes the same values.
"""

from __future__ import annotations

from functools import lru_cache

from pointsman.xds import api
from pointsman.xds.snapshot import Resource, ResourceType
from pointsman.xds.subscription import Request, Response
from pointsman.xds.variant import DELTA
from pointsman.xds.wire import (
    TTL_FEATURE,
    Incoming,
    RequestRefused,
    Wire,
    make_entry,
    parse,
    read_identity,
    read_names,
    read_refusal,
    read_type,
)

_PAYLOADS_CACHED = 8
"""Encoded pushes that streams share: one a type, twice over; 24 MB at worst (8 of the largest response)."""


def decode(raw: bytes) -> Incoming:
    """Return what the bytes say, or raise RequestRefused."""
    message = parse(raw, api.DeltaDiscoveryRequest)
    kind = read_type(message.type_url)
    identity = read_identity(message.node)
    if kind is None:
        return Incoming(identity, None)
    read_names(message.initial_resource_versions)
    request = Request(
        kind,
        subscribe=read_names(message.resource_names_subscribe),
        unsubscribe=read_names(message.resource_names_unsubscribe),
        initial_versions=dict(message.initial_resource_versions),
        nonce=message.response_nonce,
        error_text=read_refusal(message),
    )
    return Incoming(identity, request)


def encode(response: Response) -> bytes:
    """Return the response's bytes; streams that are sent the same content share all but the nonce."""
    # Messages merge when their bytes are put one behind the other, so the nonce may come last.
    payload = _payload(
        response.type_url,
        response.version,
        response.resources,
        response.removed,
        response.confirmed,
        states_ttl=response.states_ttl,
    )
    return payload + api.DeltaDiscoveryResponse(nonce=response.nonce).SerializeToString()


@lru_cache(maxsize=_PAYLOADS_CACHED)
def _payload(
    kind: ResourceType,
    version: str,
    resources: tuple[Resource, ...],
    removed: tuple[str, ...],
    confirmed: tuple[Resource, ...],
    *,
    states_ttl: bool,
) -> bytes:
    entries = [make_entry(resource, states_ttl=states_ttl) for resource in resources]
    entries.extend(make_entry(resource, states_ttl=True, has_content=False) for resource in confirmed)
    return api.DeltaDiscoveryResponse(
        system_version_info=version, type_url=kind.value, resources=entries, removed_resources=removed
    ).SerializeToString()


DELTA_WIRE = Wire(DELTA, decode, encode, ttl_features=(frozenset({TTL_FEATURE}),))

__all__ = ["DELTA_WIRE", "Incoming", "RequestRefused", "decode", "encode"]
