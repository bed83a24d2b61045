"""A State-of-the-World client that checks the server's protocol on every message; beside fake_client.py's Delta one.

Decides what a response of this variant states: of clusters and listeners the whole, so that what is left out is
removed; of the other types what has changed. For tests, not for traffic.
"""

from __future__ import annotations

import hashlib

import grpc
from google.protobuf.message import DecodeError
from pointsman.xds import api
from pointsman.xds.fake_checker import CDS, LDS, Ask, Checker, ProtocolViolation, Statement
from pointsman.xds.fake_client import FakeClient
from pointsman.xds.snapshot import Resource, ResourceType
from pointsman.xds.subscription import WILDCARD

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"

_WRAPPER_URL = api.type_url(api.Resource)


class SotwChecker(Checker[api.DiscoveryRequest, api.DiscoveryResponse]):
    """The State-of-the-World variant of the checker; a resource's version is the hash of what came."""

    METHOD = METHOD
    WHOLE_TYPES = frozenset({CDS, LDS})
    MAX_OPEN = 1
    STATES_VERSIONS = False

    def write(self, ask: Ask, node: api.Node | None) -> api.DiscoveryRequest:
        """Return the request; it states all names, and the nonce of the last response that was taken."""
        state = self._types[ask.type_url]
        names = sorted(state.names)
        if state.is_wildcard and state.was_named:
            names.append(WILDCARD)
        request = api.DiscoveryRequest(
            node=node,
            type_url=ask.type_url.value,
            resource_names=names,
            version_info=state.last_version,
            response_nonce=state.last_nonce,
        )
        if ask.error_text is not None:
            request.error_detail.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
            request.error_detail.message = ask.error_text
        return request

    def read(self, response: api.DiscoveryResponse) -> Statement:
        """Return what the response states."""
        entries = tuple(_entry(response.type_url, packed) for packed in response.resources)
        return Statement(response.type_url, response.version_info, response.nonce, entries, (), response.ByteSize())

    def parse(self, raw: bytes) -> api.DiscoveryResponse:
        """Return the response that the bytes are."""
        return api.DiscoveryResponse.FromString(raw)


def _entry(url: str, packed: api.Any) -> api.Resource:
    """Return the resource with its own name and the hash of its content; one without content comes as it is."""
    entry = api.Resource(resource=packed)
    if packed.type_url == _WRAPPER_URL:
        entry = api.unpack(packed, api.Resource)
        if not entry.HasField("resource"):
            return entry
    try:
        message = Resource("", ResourceType(url), entry.resource.value, "").parse()
    except (DecodeError, ValueError):
        raise ProtocolViolation(2, f"a resource in a response of type {url!r} does not parse as such") from None
    entry.name = message.cluster_name if isinstance(message, api.ClusterLoadAssignment) else message.name
    entry.version = hashlib.blake2b(entry.resource.value + str(entry.ttl).encode(), digest_size=8).hexdigest()
    return entry


FakeSotwClient = FakeClient[api.DiscoveryRequest, api.DiscoveryResponse]

__all__ = ["METHOD", "FakeSotwClient", "SotwChecker"]
