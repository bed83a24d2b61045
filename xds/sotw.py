"""The State-of-the-World wire: bytes of a DiscoveryRequest to values, values to the bytes of a DiscoveryResponse.

Decides nothing about subscriptions: a request's names are handed on whole and the core finds what changed. Refuses
bytes that do not parse and requests without a type. Called by nodes.py and ads.py, as delta.py is.
"""

from __future__ import annotations

from functools import lru_cache

from pointsman.xds import api
from pointsman.xds.snapshot import Resource, ResourceType
from pointsman.xds.subscription import Request, Response
from pointsman.xds.variant import STATE_OF_THE_WORLD
from pointsman.xds.wire import (
    SOTW_TTL_FEATURES,
    TTL_FEATURE,
    Incoming,
    Wire,
    make_entry,
    parse,
    read_identity,
    read_names,
    read_refusal,
    read_type,
)

_PAYLOADS_CACHED = 8
"""Encoded pushes that streams share: one a type, twice over."""


def decode(raw: bytes) -> Incoming:
    """Return what the bytes say, or raise RequestRefused."""
    message = parse(raw, api.DiscoveryRequest)
    kind = read_type(message.type_url)
    identity = read_identity(message.node)
    if kind is None:
        return Incoming(identity, None)
    # An answer is told by its nonce. The version says only that the client has something: what that is is not known,
    # since clients take parts of what they refuse; so every first request is answered (6).
    request = Request(
        kind,
        wanted=read_names(message.resource_names),
        holds_unknown=bool(message.version_info),
        nonce=message.response_nonce,
        error_text=read_refusal(message),
    )
    return Incoming(identity, request)


def encode(response: Response) -> bytes:
    """Return the response's bytes; streams that are sent the same content share all but the nonce.

    What is removed is what a response of the type leaves out; a type without that meaning has no removals.
    """
    payload = _payload(
        response.type_url,
        response.version,
        # In the order of names, so that streams which took the content in different steps share the bytes.
        tuple(sorted((*response.resources, *response.kept), key=_by_name)),
        response.confirmed,
        states_ttl=response.states_ttl,
    )
    return payload + api.DiscoveryResponse(nonce=response.nonce).SerializeToString()


def _by_name(resource: Resource) -> str:
    return resource.name


@lru_cache(maxsize=_PAYLOADS_CACHED)
def _payload(
    kind: ResourceType,
    version: str,
    resources: tuple[Resource, ...],
    confirmed: tuple[Resource, ...],
    *,
    states_ttl: bool,
) -> bytes:
    packed = [_pack(resource, states_ttl=states_ttl) for resource in resources]
    packed.extend(_confirm(resource, version) for resource in confirmed)
    return api.DiscoveryResponse(version_info=version, type_url=kind.value, resources=packed).SerializeToString()


def _pack(resource: Resource, *, states_ttl: bool) -> api.Any:
    if states_ttl and resource.ttl_s is not None:
        return api.pack(make_entry(resource, states_ttl=True))
    return api.Any(type_url=resource.type_url.value, value=resource.body)


def _confirm(resource: Resource, version: str) -> api.Any:
    # Clients compare with the version of the response that they took, not with a resource's own.
    entry = make_entry(resource, states_ttl=True, has_content=False)
    entry.version = version
    return api.pack(entry)


SOTW_WIRE = Wire(STATE_OF_THE_WORLD, decode, encode, ttl_features=(frozenset({TTL_FEATURE}), SOTW_TTL_FEATURES))
