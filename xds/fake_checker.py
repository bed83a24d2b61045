"""The client's side of one stream, whatever the variant: makes requests, checks responses, raises on a violation.

Decides whether what a server sent was allowed at that moment: names, versions, nonces, order, repetition (docs/xds.md,
the numbers stand in the messages). Pure. The two variants are in fake_client.py (Delta) and fake_sotw.py; they say how
a request is written and what a response states. For tests, of this server and of those of others; not for traffic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from pointsman.xds import api
from pointsman.xds.references import NO_REFERENCES, References, ResourceMessage, read_references
from pointsman.xds.snapshot import TYPE_ORDER, Resource, ResourceType
from pointsman.xds.subscription import WILDCARD

_MAX_RESPONSE_BYTES = 4 * 1_024 * 1_024
"""gRPC's default receive limit, which some clients keep."""

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

CDS, EDS, LDS, RDS = TYPE_ORDER

Judge: TypeAlias = Callable[[ResourceType, str, ResourceMessage], str | None]
"""Says why a resource is to be refused, None to accept it."""


class ProtocolViolation(AssertionError):
    """The server sent what it must not; the text names the point of docs/xds.md."""

    def __init__(self, point: int, text: str) -> None:
        super().__init__(f"docs/xds.md {point}: {text}")
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
    kept: tuple[str, ...] = ()
    """Names that were repeated, unchanged, because a response of the type states the whole."""
    confirmed: tuple[str, ...] = ()
    """Names whose lifetime begins anew."""
    ttls_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statement:
    """What one response states, before it is checked: the variant's reading of it."""

    type_url: str
    version: str
    nonce: str
    entries: tuple[api.Resource, ...]
    removed: tuple[str, ...]
    byte_count: int


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request says, before it is written."""

    type_url: ResourceType
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = field(default_factory=dict)
    nonce: str = ""
    error_text: str | None = None


@dataclass(slots=True)
class TypeState:
    """What a client knows of one type."""

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
    was_named: bool = False
    is_unsure: bool = False
    """Whether the server cannot know what is held: on a new stream, until a whole was acknowledged (SotW)."""
    last_nonce: str = ""
    last_version: str = ""

    def wants(self, name: str) -> bool:
        return self.is_wildcard or name in self.names

    def drop(self, name: str) -> None:
        self.versions.pop(name, None)
        self.messages.pop(name, None)
        self.references.pop(name, None)


class Checker(ABC, Generic[RequestT, ResponseT]):
    """The client's side of one stream: makes requests, checks responses, holds what was acknowledged."""

    METHOD: ClassVar[str]
    WHOLE_TYPES: ClassVar[frozenset[ResourceType]] = frozenset()
    """Types whose response states all; the variant leaves the unchanged out of the statement's entries."""
    MAX_OPEN: ClassVar[int | None] = None
    """Unanswered responses of one type that a server may have outstanding."""
    STATES_VERSIONS: ClassVar[bool] = True
    """Whether a first request says what the client has, so that it is not sent again."""

    def __init__(
        self,
        node_id: str,
        *,
        static_clusters: Collection[str] = (),
        before: Checker[RequestT, ResponseT] | None = None,
        is_order_checked: bool = True,
        agent: str = "",
        features: Collection[str] = (),
    ) -> None:
        """Make a client; `before` is its former stream, whose resources and refusals it still knows."""
        self._static = frozenset(static_clusters)
        self._is_order_checked = is_order_checked
        self._node = api.Node(id=node_id, user_agent_name=agent, client_features=sorted(features))
        self._is_introduced = False
        self._types = {kind: TypeState() for kind in TYPE_ORDER}
        self._refused: set[tuple[ResourceType, str, str]] = set() if before is None else set(before._refused)
        self._contents: dict[tuple[ResourceType, str, str], bytes] = {} if before is None else before._contents
        self.responses = 0
        self.resources_received = 0
        if before is not None:
            for kind, state in before._types.items():
                mine = self._types[kind]
                mine.versions, mine.messages = dict(state.versions), dict(state.messages)
                mine.references = dict(state.references)
                mine.last_version = state.last_version
                mine.is_unsure = kind in self.WHOLE_TYPES and bool(state.last_version)

    # ---- requests

    @abstractmethod
    def write(self, ask: Ask, node: api.Node | None) -> RequestT:
        """Return the request; `node` is None but for the stream's first."""

    @abstractmethod
    def read(self, response: ResponseT) -> Statement:
        """Return what the response states."""

    @abstractmethod
    def parse(self, raw: bytes) -> ResponseT:
        """Return the response that the bytes are."""

    def subscribe(self, kind: ResourceType, *names: str) -> RequestT:
        """Return a request for the names; without names on a first CDS or LDS request it means all."""
        state = self._types[kind]
        is_first = not state.is_started
        if is_first:
            state.is_wildcard = not names and kind in (CDS, LDS)
        elif WILDCARD in names and state.is_wildcard:
            state.may_repeat.update(state.versions)
        state.was_named = state.was_named or bool(names)
        for name in names:
            if name == WILDCARD:
                state.is_wildcard = True
                continue
            state.names.add(name)
            state.told_absent.discard(name)
            if not (is_first and self.STATES_VERSIONS and name in state.versions):
                state.may_repeat.add(name)
        state.is_started = True
        return self._request(Ask(kind, subscribe=names, initial_versions=dict(state.versions) if is_first else {}))

    def unsubscribe(self, kind: ResourceType, *names: str) -> RequestT:
        """Return a request that gives the names up."""
        state = self._types[kind]
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
        return self._request(Ask(kind, unsubscribe=names))

    def acknowledge(self, received: Received) -> RequestT:
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
        state.last_nonce, state.last_version = received.nonce, received.version
        state.is_unsure = False
        return self._request(Ask(received.type_url, nonce=received.nonce))

    def refuse(self, received: Received, text: str) -> RequestT:
        """Return the NACK; a resource that came alone must not come again unchanged (8, 35)."""
        state = self._types[received.type_url]
        del state.open[received.nonce]
        if len(received.resources) + len(received.removed) == 1:
            self._refused.update((received.type_url, name, version) for name, version in received.versions.items())
        else:
            state.may_repeat.update(received.resources, received.removed)
            state.told_absent.difference_update(received.removed)
        state.last_nonce = received.nonce
        return self._request(Ask(received.type_url, nonce=received.nonce, error_text=text))

    def _request(self, ask: Ask) -> RequestT:
        node = None if self._is_introduced else self._node
        self._is_introduced = True
        return self.write(ask, node)

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

    def check(self, response: ResponseT) -> Received:
        """Return the response if the server was allowed to send it now, or raise ProtocolViolation."""
        said = self.read(response)
        try:
            kind = ResourceType(said.type_url)
        except ValueError:
            raise ProtocolViolation(2, f"response of type {said.type_url!r}, which was not asked for") from None
        state = self._types[kind]
        if said.byte_count > _MAX_RESPONSE_BYTES and len(said.entries) > 1 and kind not in self.WHOLE_TYPES:
            raise ProtocolViolation(41, f"{said.byte_count} bytes in one response of several resources")
        if not state.is_started:
            raise ProtocolViolation(2, f"{kind.label} response, which was not asked for")
        if not said.nonce or said.nonce in state.nonces:
            raise ProtocolViolation(4, f"{kind.label} nonce {said.nonce!r} is empty or was used before")
        if not said.version:
            raise ProtocolViolation(5, f"{kind.label} response without a version")
        if self.MAX_OPEN is not None and len(state.open) >= self.MAX_OPEN:
            raise ProtocolViolation(20, f"{kind.label} response while {len(state.open)} are unanswered")
        return self._take(kind, state, said)

    def _take(self, kind: ResourceType, state: TypeState, said: Statement) -> Received:
        names = [entry.name for entry in said.entries] + list(said.removed)
        if len(set(names)) != len(names):
            raise ProtocolViolation(18, f"{kind.label} response has a name twice")
        confirmed = tuple(entry.name for entry in said.entries if not entry.HasField("resource"))
        for entry in said.entries:
            if entry.name in confirmed:
                self._check_confirmation(kind, state, entry, said.version)
        stated = {entry.name: entry for entry in said.entries if entry.name not in confirmed}
        kept: tuple[str, ...] = ()
        removed = said.removed
        if kind in self.WHOLE_TYPES and not confirmed:
            kept = tuple(name for name, entry in stated.items() if state.versions.get(name) == entry.version)
            removed = tuple(sorted(state.versions.keys() - stated.keys()))
            if not removed and len(kept) == len(stated):
                confirmed = tuple(name for name in kept if stated[name].HasField("ttl"))
        changed = {name: entry for name, entry in stated.items() if name not in kept}
        self._check_has_content(kind, state, is_empty=not (changed or removed or confirmed))
        messages = {name: self._check_resource(kind, state, entry) for name, entry in changed.items()}
        for name in removed:
            self._check_removal(kind, state, name, leaving=frozenset(removed))
        received = Received(
            kind,
            said.version,
            said.nonce,
            messages,
            {name: entry.version for name, entry in changed.items()},
            removed,
            kept,
            confirmed,
            {entry.name: entry.ttl.ToNanoseconds() / 1e9 for entry in said.entries if entry.HasField("ttl")},
        )
        self._accept(kind, state, received)
        return received

    def _check_has_content(self, kind: ResourceType, state: TypeState, *, is_empty: bool) -> None:
        # Asked for once more, or a name that does not exist: the whole may be stated without a change.
        is_asked = state.is_unsure or (bool(self.WHOLE_TYPES) and bool(state.may_repeat))
        if is_empty and state.is_answered and not is_asked:
            raise ProtocolViolation(7, f"{kind.label} response without content that is no first answer")
        if is_empty and self.WHOLE_TYPES and kind not in self.WHOLE_TYPES:
            raise ProtocolViolation(15, f"{kind.label} response without content, which says nothing")

    def _check_confirmation(self, kind: ResourceType, state: TypeState, entry: api.Resource, version: str) -> None:
        where = f"{kind.label} {entry.name!r}"
        if entry.name not in state.versions:
            raise ProtocolViolation(36, f"{where} has no content and was never held")
        expected = state.versions[entry.name] if self.STATES_VERSIONS else state.last_version
        if entry.version != expected or (not self.STATES_VERSIONS and version != expected):
            raise ProtocolViolation(36, f"{where} has no content and version {entry.version}, expected {expected}")
        if not entry.HasField("ttl"):
            raise ProtocolViolation(36, f"{where} has neither content nor a lifetime")

    def _accept(self, kind: ResourceType, state: TypeState, received: Received) -> None:
        messages, removed = received.resources, received.removed
        state.nonces.add(received.nonce)
        state.open[received.nonce] = received
        state.is_answered = True
        state.may_repeat.difference_update(messages, removed)
        if kind in self.WHOLE_TYPES:
            state.may_repeat.clear()
        state.told_absent.difference_update(messages)
        state.told_absent.update(name for name in removed if name in state.names)
        for message in messages.values():
            found = read_references(message)
            self._types[EDS].may_repeat.update(found.assignments)
            self._types[RDS].may_repeat.update(found.routes)
        self.responses += 1
        self.resources_received += len(messages)

    def _check_resource(self, kind: ResourceType, state: TypeState, entry: api.Resource) -> ResourceMessage:
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
        # Of a whole that a reconnected client is told first, nothing may be left out that it may be using.
        is_first_whole = state.is_unsure and not state.is_answered
        if (kind, entry.name, entry.version) in self._refused and not is_first_whole:
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

    def _check_removal(self, kind: ResourceType, state: TypeState, name: str, *, leaving: frozenset[str]) -> None:
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
