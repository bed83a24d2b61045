"""A Delta client that checks the server's protocol on every message and raises on a violation.

Decides whether what a server sent was allowed at that moment: names, versions, nonces, order, repetition (facts-xds,
the numbers stand in the messages). Three layers: ProtocolChecker is pure and makes the requests it then accounts for;
FakeEnvoy reacts as Envoy does; FakeDeltaClient puts either on a real connection. For tests, of this server and of
those of others; not for traffic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from types import TracebackType
from typing import TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from pointsman.xds import api
from pointsman.xds.references import NO_REFERENCES, References, ResourceMessage, read_references
from pointsman.xds.snapshot import TYPE_ORDER, Resource, ResourceType
from pointsman.xds.subscription import WILDCARD

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

_MAX_RESPONSE_BYTES = 4 * 1_024 * 1_024
"""gRPC's default receive limit, which some clients keep."""

CDS, EDS, LDS, RDS = TYPE_ORDER

Judge: TypeAlias = Callable[[ResourceType, str, ResourceMessage], str | None]
"""Says why a resource is to be refused, None to accept it."""


class ProtocolViolation(AssertionError):
    """The server sent what it must not; the text names the point of facts-xds."""

    def __init__(self, point: int, text: str) -> None:
        super().__init__(f"facts-xds {point}: {text}")
        self.point = point


@dataclass(frozen=True, slots=True)
class Received:
    """One checked response."""

    type_url: ResourceType
    version: str
    nonce: str
    resources: Mapping[str, ResourceMessage]
    versions: Mapping[str, str]
    removed: tuple[str, ...]


@dataclass(slots=True)
class _TypeState:
    is_started: bool = False
    is_answered: bool = False
    is_wildcard: bool = False
    names: set[str] = field(default_factory=set)
    versions: dict[str, str] = field(default_factory=dict)
    messages: dict[str, ResourceMessage] = field(default_factory=dict)
    references: dict[str, References] = field(default_factory=dict)
    may_repeat: set[str] = field(default_factory=set)
    told_absent: set[str] = field(default_factory=set)
    nonces: set[str] = field(default_factory=set)
    open: dict[str, Received] = field(default_factory=dict)

    def wants(self, name: str) -> bool:
        return self.is_wildcard or name in self.names

    def drop(self, name: str) -> None:
        self.versions.pop(name, None)
        self.messages.pop(name, None)
        self.references.pop(name, None)


class ProtocolChecker:
    """The client's side of one stream: makes requests, checks responses, holds what was acknowledged."""

    def __init__(
        self,
        node_id: str,
        *,
        static_clusters: Collection[str] = (),
        before: ProtocolChecker | None = None,
        is_order_checked: bool = True,
    ) -> None:
        """Make a client; `before` is its former stream, whose resources and refusals it still knows."""
        self._node_id = node_id
        self._static = frozenset(static_clusters)
        self._is_order_checked = is_order_checked
        self._is_introduced = False
        self._types = {kind: _TypeState() for kind in TYPE_ORDER}
        self._refused: set[tuple[ResourceType, str, str]] = set() if before is None else set(before._refused)
        self._contents: dict[tuple[ResourceType, str, str], bytes] = {} if before is None else before._contents
        self.responses = 0
        self.resources_received = 0
        if before is not None:
            for kind, state in before._types.items():
                mine = self._types[kind]
                mine.versions, mine.messages = dict(state.versions), dict(state.messages)
                mine.references = dict(state.references)

    # ---- requests

    def subscribe(self, kind: ResourceType, *names: str) -> api.DeltaDiscoveryRequest:
        """Return a request for the names; without names on a first CDS or LDS request it means all."""
        state = self._types[kind]
        request = self._request(kind)
        request.resource_names_subscribe.extend(names)
        if not state.is_started:
            request.initial_resource_versions.update(state.versions)
            state.is_wildcard = not names and kind in (CDS, LDS)
        elif WILDCARD in names and state.is_wildcard:
            state.may_repeat.update(state.versions)
        for name in names:
            if name == WILDCARD:
                state.is_wildcard = True
                continue
            state.names.add(name)
            state.told_absent.discard(name)
            if state.is_started or name not in state.versions:
                state.may_repeat.add(name)
        state.is_started = True
        return request

    def unsubscribe(self, kind: ResourceType, *names: str) -> api.DeltaDiscoveryRequest:
        """Return a request that gives the names up."""
        state = self._types[kind]
        request = self._request(kind)
        request.resource_names_unsubscribe.extend(names)
        for name in names:
            if name == WILDCARD:
                state.is_wildcard = False
                for dropped in state.versions.keys() - state.names:
                    state.drop(dropped)
            elif name in state.names:
                state.names.discard(name)
                state.may_repeat.add(name)
                state.told_absent.discard(name)
                if not state.is_wildcard:
                    state.drop(name)
        return request

    def acknowledge(self, received: Received) -> api.DeltaDiscoveryRequest:
        """Return the ACK and hold what the response brought."""
        state = self._types[received.type_url]
        del state.open[received.nonce]
        for name, message in received.resources.items():
            # Other content was taken since: what was refused before may be tried once more.
            self._refused = {entry for entry in self._refused if entry[:2] != (received.type_url, name)}
            if state.wants(name):
                state.versions[name] = received.versions[name]
                state.messages[name] = message
                state.references[name] = read_references(message)
        for name in received.removed:
            state.drop(name)
        request = self._request(received.type_url)
        request.response_nonce = received.nonce
        return request

    def refuse(self, received: Received, text: str) -> api.DeltaDiscoveryRequest:
        """Return the NACK; a resource that came alone must not come again unchanged (8, 35)."""
        state = self._types[received.type_url]
        del state.open[received.nonce]
        if len(received.resources) + len(received.removed) == 1:
            self._refused.update((received.type_url, name, version) for name, version in received.versions.items())
        else:
            state.may_repeat.update(received.resources, received.removed)
            state.told_absent.difference_update(received.removed)
        request = self._request(received.type_url)
        request.response_nonce = received.nonce
        request.error_detail.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
        request.error_detail.message = text
        return request

    def _request(self, kind: ResourceType) -> api.DeltaDiscoveryRequest:
        request = api.DeltaDiscoveryRequest(type_url=kind.value)
        if not self._is_introduced:
            request.node.id = self._node_id
            self._is_introduced = True
        return request

    # ---- state

    def held(self, kind: ResourceType) -> Mapping[str, ResourceMessage]:
        """Return what was acknowledged, by name."""
        return self._types[kind].messages

    def versions(self, kind: ResourceType) -> Mapping[str, str]:
        """Return the versions of what was acknowledged."""
        return self._types[kind].versions

    def names(self, kind: ResourceType) -> frozenset[str]:
        """Return the names subscribed to explicitly."""
        return frozenset(self._types[kind].names)

    def needed(self, kind: ResourceType) -> frozenset[str]:
        """Return the names of EDS or RDS resources that the held clusters or listeners need."""
        user = CDS if kind is EDS else LDS
        found = self._types[user].references.values()
        return frozenset().union(*(entry.assignments if kind is EDS else entry.routes for entry in found))

    # ---- checks

    def check(self, response: api.DeltaDiscoveryResponse) -> Received:
        """Return the response if the server was allowed to send it now, or raise ProtocolViolation."""
        if response.ByteSize() > _MAX_RESPONSE_BYTES and len(response.resources) > 1:
            raise ProtocolViolation(41, f"{response.ByteSize()} bytes in one response of several resources")
        try:
            kind = ResourceType(response.type_url)
        except ValueError:
            raise ProtocolViolation(2, f"response of type {response.type_url!r}, which was not asked for") from None
        state = self._types[kind]
        if not state.is_started:
            raise ProtocolViolation(2, f"{kind.label} response, which was not asked for")
        if not response.nonce or response.nonce in state.nonces:
            raise ProtocolViolation(4, f"{kind.label} nonce {response.nonce!r} is empty or was used before")
        if not response.system_version_info:
            raise ProtocolViolation(5, f"{kind.label} response without system_version_info")
        if not response.resources and not response.removed_resources and state.is_answered:
            raise ProtocolViolation(7, f"{kind.label} response without content that is no first answer")
        names = [resource.name for resource in response.resources] + list(response.removed_resources)
        if len(set(names)) != len(names):
            raise ProtocolViolation(18, f"{kind.label} response has a name twice")
        messages = {resource.name: self._check_resource(kind, state, resource) for resource in response.resources}
        for name in response.removed_resources:
            self._check_removal(kind, state, name, leaving=frozenset(response.removed_resources))
        return self._accept(kind, state, response, messages)

    def _accept(
        self,
        kind: ResourceType,
        state: _TypeState,
        response: api.DeltaDiscoveryResponse,
        messages: Mapping[str, ResourceMessage],
    ) -> Received:
        versions = {resource.name: resource.version for resource in response.resources}
        removed = tuple(response.removed_resources)
        received = Received(kind, response.system_version_info, response.nonce, messages, versions, removed)
        state.nonces.add(received.nonce)
        state.open[received.nonce] = received
        state.is_answered = True
        state.may_repeat.difference_update(messages, removed)
        state.told_absent.difference_update(messages)
        state.told_absent.update(name for name in removed if name in state.names)
        for message in messages.values():
            found = read_references(message)
            self._types[EDS].may_repeat.update(found.assignments)
            self._types[RDS].may_repeat.update(found.routes)
        self.responses += 1
        self.resources_received += len(messages)
        return received

    def _check_resource(self, kind: ResourceType, state: _TypeState, entry: api.Resource) -> ResourceMessage:
        where = f"{kind.label} {entry.name!r}"
        if not entry.name or not entry.version:
            raise ProtocolViolation(34, f"{where} has no name or no version")
        if not state.wants(entry.name) and entry.name not in state.may_repeat:
            raise ProtocolViolation(34, f"{where} was not asked for")
        if entry.resource.type_url != kind.value:
            raise ProtocolViolation(2, f"{where} has a body of type {entry.resource.type_url}")
        try:
            resource = Resource(entry.name, kind, entry.resource.value, entry.version)
            message = resource.parse()
        except DecodeError:
            raise ProtocolViolation(34, f"{where} does not parse") from None
        own_name = message.cluster_name if isinstance(message, api.ClusterLoadAssignment) else message.name
        if own_name != entry.name:
            raise ProtocolViolation(34, f"{where} calls itself {own_name!r}")
        if self._contents.setdefault((kind, entry.name, entry.version), resource.body) != resource.body:
            raise ProtocolViolation(5, f"{where} has other content under version {entry.version} than before")
        if (kind, entry.name, entry.version) in self._refused:
            raise ProtocolViolation(35, f"{where} was refused in version {entry.version} and came again")
        if state.versions.get(entry.name) == entry.version and entry.name not in state.may_repeat:
            raise ProtocolViolation(34, f"{where} came again, unchanged and unasked")
        if self._is_order_checked:
            self._check_clusters_known(where, read_references(message) if kind in (LDS, RDS) else NO_REFERENCES)
        return message

    def _check_clusters_known(self, where: str, references: References) -> None:
        clusters, endpoints = self._types[CDS], self._types[EDS]
        if not clusters.is_wildcard:
            return
        for name in sorted(references.clusters - self._static):
            if name not in clusters.versions:
                raise ProtocolViolation(24, f"{where} names cluster {name!r}, which was not acknowledged")
            missing = clusters.references.get(name, NO_REFERENCES).assignments - endpoints.versions.keys()
            if missing and endpoints.is_started:
                raise ProtocolViolation(24, f"{where} names cluster {name!r}, which has no endpoints yet")

    def _check_removal(self, kind: ResourceType, state: _TypeState, name: str, *, leaving: frozenset[str]) -> None:
        where = f"removal of {kind.label} {name!r}"
        if name not in state.versions and name not in state.names and name not in state.may_repeat:
            raise ProtocolViolation(34, f"{where}, which was neither held nor asked for")
        if name in state.told_absent and name not in state.versions:
            raise ProtocolViolation(32, f"{where} was told before")
        if not self._is_order_checked:
            return
        for user in (CDS, LDS, RDS):
            for holder, found in self._possible(user):
                named = {CDS: found.clusters, EDS: found.assignments, LDS: frozenset[str](), RDS: found.routes}[kind]
                if name in named and name in state.versions and not (user is kind and holder in leaving):
                    raise ProtocolViolation(23, f"{where}, which {user.label} {holder!r} still names")

    def _possible(self, kind: ResourceType) -> Iterable[tuple[str, References]]:
        yield from self._types[kind].references.items()
        for received in self._types[kind].open.values():
            yield from ((name, read_references(message)) for name, message in received.resources.items())


class FakeEnvoy:
    """Reacts as Envoy does: all clusters and listeners, then the endpoints and routes that these name."""

    def __init__(self, checker: ProtocolChecker, *, judge: Judge = lambda _kind, _name, _message: None) -> None:
        self.checker = checker
        self.nacks = 0
        self._judge = judge
        self._is_listening = False

    def start(self) -> list[api.DeltaDiscoveryRequest]:
        """Return the first requests; a reconnecting Envoy asks for everything that it has."""
        requests = [self.checker.subscribe(CDS)]
        for kind in (EDS, LDS, RDS):
            names = self.checker.needed(kind) if kind is not LDS else frozenset()
            if names or (kind is LDS and self.checker.versions(LDS)):
                requests.append(self.checker.subscribe(kind, *sorted(names)))
                self._is_listening = self._is_listening or kind is LDS
        return requests

    def react(self, response: api.DeltaDiscoveryResponse) -> list[api.DeltaDiscoveryRequest]:
        """Check the response and return the answer to it, with the changes of names that follow."""
        received = self.checker.check(response)
        kind = received.type_url
        reasons = [self._judge(kind, name, message) for name, message in received.resources.items()]
        text = "; ".join(reason for reason in reasons if reason is not None)
        if text:
            self.nacks += 1
            requests = [self.checker.refuse(received, text)]
        else:
            requests = [self.checker.acknowledge(received)]
        for other in (EDS, RDS):
            wanted, asked = self.checker.needed(other), self.checker.names(other)
            if wanted - asked:
                requests.append(self.checker.subscribe(other, *sorted(wanted - asked)))
            if asked - wanted:
                requests.append(self.checker.unsubscribe(other, *sorted(asked - wanted)))
        if kind is CDS and not self._is_listening:
            self._is_listening = True
            requests.append(self.checker.subscribe(LDS))
        return requests


class FakeDeltaClient:
    """One Delta stream to a server on a unix socket; use with `async with`."""

    def __init__(self, socket_path: str | PathLike[str], checker: ProtocolChecker) -> None:
        self.checker = checker
        self._target = f"unix:{fspath(socket_path)}"
        self._channel: aio.Channel | None = None
        self._call: aio.StreamStreamCall[bytes, bytes] | None = None

    async def __aenter__(self) -> FakeDeltaClient:
        self._channel = aio.insecure_channel(self._target, options=(("grpc.max_receive_message_length", -1),))
        self._call = self._channel.stream_stream(METHOD)()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream().cancel()
        if self._channel is not None:
            await self._channel.close()

    def _stream(self) -> aio.StreamStreamCall[bytes, bytes]:
        if self._call is None:
            raise RuntimeError("the client is not connected; use it with `async with`")
        return self._call

    async def send(self, *requests: api.DeltaDiscoveryRequest) -> None:
        """Send requests that the checker made."""
        for request in requests:
            await self._stream().write(request.SerializeToString())

    async def send_raw(self, raw: bytes) -> None:
        """Send bytes that no checker accounts for."""
        await self._stream().write(raw)

    async def receive_raw(self, timeout_s: float = 5.0) -> api.DeltaDiscoveryResponse | None:
        """Return the next response unchecked; None when the server ended the stream without an error."""
        async with asyncio.timeout(timeout_s):
            raw = await self._stream().read()
        return api.DeltaDiscoveryResponse.FromString(raw) if isinstance(raw, bytes) else None

    async def receive(self, timeout_s: float = 5.0) -> Received:
        """Return the next response, checked; ConnectionError when the stream has ended."""
        response = await self.receive_raw(timeout_s)
        if response is None:
            raise ConnectionError("the server ended the stream")
        return self.checker.check(response)

    async def half_close(self) -> None:
        """Say that no more requests will come."""
        await self._stream().done_writing()

    async def end_status(self, timeout_s: float = 5.0) -> tuple[grpc.StatusCode, str]:
        """Wait for the end of the stream and return its status."""
        async with asyncio.timeout(timeout_s):
            return await self._stream().code(), await self._stream().details() or ""

    async def follow(self, envoy: FakeEnvoy, *, until: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Let the fake Envoy answer what arrives until the condition holds."""
        async with asyncio.timeout(timeout_s):
            while not until():
                response = await self.receive_raw(timeout_s)
                if response is None:
                    raise ConnectionError("the server ended the stream")
                await self.send(*envoy.react(response))
