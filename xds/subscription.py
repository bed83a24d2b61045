"""One type's subscription on one stream: what the client asked for, holds, and was sent and has not answered yet.

Decides, from the requests and the latest snapshot, which names are due, absent or gone; a name is never sent again
before its last response was answered, so what is outstanding is bounded by the names and there is no queue (facts-xds
38). Refuses nothing by itself; the bounds are the stream's. Knows no wire format: Delta requests are translated in
delta.py, a State-of-the-World request would become the same value. Called by stream.py only, which orders the types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pointsman.xds.references import References
from pointsman.xds.refusals import Refusals
from pointsman.xds.snapshot import Resource, ResourceType, Snapshot
from pointsman.xds.status import Refusal

WILDCARD = "*"
"""The name that stands for every resource of a type."""

REMOVAL = ""
"""Version under which a removal is remembered when it is refused; content hashes are never empty."""

_LEGACY_WILDCARD_TYPES = frozenset({ResourceType.CLUSTER, ResourceType.LISTENER})
"""Types whose first request may leave the names out and means all (facts-xds 16, 33)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one request says, whatever the wire: changes of names, and an answer to a response."""

    type_url: ResourceType
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = field(default_factory=dict)
    nonce: str = ""
    error_text: str | None = None
    """The NACK's text; None when the request is no NACK (facts-xds 8)."""


@dataclass(frozen=True, slots=True)
class Response:
    """What one response carries; `version` is that of the type in the snapshot."""

    type_url: ResourceType
    version: str
    nonce: str
    resources: tuple[Resource, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """What the client has of one name; `references` is None when only the version is known (after a reconnect)."""

    version: str
    references: References | None


@dataclass(frozen=True, slots=True)
class InFlight:
    """A response that was sent and not yet answered."""

    version: str
    held: Mapping[str, Held]
    removed: tuple[str, ...]
    sent_at_s: float

    @property
    def size(self) -> int:
        """Return how many names the response carried."""
        return len(self.held) + len(self.removed)


class Subscription:
    """The state of one type on one stream."""

    __slots__ = (
        "_absent",
        "_flying",
        "_owed",
        "acknowledgements",
        "alone",
        "held",
        "in_flight",
        "is_started",
        "is_wildcard",
        "kind",
        "nacks",
        "names",
        "owes_first_answer",
        "refusals",
        "sent",
        "sent_version",
    )

    def __init__(self, kind: ResourceType, refusals: Refusals) -> None:
        self.kind = kind
        self.refusals = refusals
        self.is_started = False
        self.is_wildcard = False
        self.owes_first_answer = False
        self.names: set[str] = set()
        self.held: dict[str, Held] = {}
        self.in_flight: dict[str, InFlight] = {}
        self.alone: set[str] = set()
        """Names of a refused response of several: each goes out by itself next, to find the one to blame."""
        self._flying: set[str] = set()
        self._owed: set[str] = set()
        self._absent: set[str] = set()
        self.sent = 0
        self.sent_version: str | None = None
        self.acknowledgements = 0
        self.nacks = 0

    def wants(self, name: str) -> bool:
        """Return whether the client is subscribed to the name, by itself or by the wildcard."""
        return self.is_wildcard or name in self.names

    def is_flying(self, name: str) -> bool:
        """Return whether a response with the name is unanswered."""
        return name in self._flying

    def is_refused(self, resource: Resource) -> bool:
        """Return whether the node refused just this content."""
        return self.refusals.is_refused(self.kind, resource.name, resource.version)

    # ---- what the client says

    def change_names(self, request: Request, snapshot: Snapshot | None) -> None:
        """Take the request's names; they count whatever its nonce (facts-xds 28)."""
        known = snapshot.of(self.kind) if snapshot is not None else {}
        is_first = not self.is_started
        if is_first:
            self.is_started = True
            self.owes_first_answer = True
            self.held = {name: Held(version, None) for name, version in request.initial_versions.items()}
            self.is_wildcard = not request.subscribe and self.kind in _LEGACY_WILDCARD_TYPES
        for name in request.subscribe:
            if name == WILDCARD:
                if self.is_wildcard:
                    self._owed.update(known)  # asked for all once more: the client may have forgotten (facts-xds 30)
                self.is_wildcard = True
                continue
            self.names.add(name)
            self._absent.discard(name)
            if not (is_first and name in self.held):
                self._owed.add(name)
        for name in request.unsubscribe:
            self._unsubscribe(name)

    def _unsubscribe(self, name: str) -> None:
        if name == WILDCARD:
            self.is_wildcard = False
            for dropped in self.held.keys() - self.names:
                self._forget(dropped)
            self._owed &= self.names
        elif name in self.names:
            self.names.discard(name)
            if self.is_wildcard:
                self._owed.add(name)  # still wanted by the wildcard: say what it is now (facts-xds 31)
            else:
                self._forget(name)

    def _forget(self, name: str) -> None:
        self.held.pop(name, None)
        self._owed.discard(name)
        self._absent.discard(name)
        self.alone.discard(name)

    def learn_references(self, snapshot: Snapshot) -> None:
        """Fill in what held resources need where the snapshot has the very version that the client named."""
        known = snapshot.of(self.kind)
        for name, held in self.held.items():
            if held.references is None and name in known and known[name].version == held.version:
                self.held[name] = Held(held.version, snapshot.references_of(self.kind, name))

    def acknowledge(self, nonce: str) -> InFlight | None:
        """Note that the client took the response; None when no such response is outstanding."""
        answered = self._land(nonce)
        if answered is None:
            return None
        self.acknowledgements += 1
        for name, held in answered.held.items():
            self.refusals.forgive(self.kind, name)
            if self.wants(name):
                self.held[name] = held
        for name in answered.removed:
            self.held.pop(name, None)
        return answered

    def refuse(self, nonce: str, text: str) -> InFlight | None:
        """Note that the client took nothing of the response (facts-xds 35); None when it is not outstanding."""
        answered = self._land(nonce)
        if answered is None:
            return None
        self.nacks += 1
        if answered.size > 1:
            self.alone.update(answered.held, answered.removed)
            self._absent.difference_update(answered.removed)
            return answered
        for name, held in answered.held.items():
            self.refusals.add(Refusal(self.kind, name, held.version, text))
        for name in answered.removed:
            self.refusals.add(Refusal(self.kind, name, REMOVAL, text))
        return answered

    def _land(self, nonce: str) -> InFlight | None:
        answered = self.in_flight.pop(nonce, None)
        if answered is not None:
            self._flying.difference_update(answered.held, answered.removed)
        return answered

    # ---- what is due

    def due(self, snapshot: Snapshot) -> Iterator[Resource]:
        """Yield the wanted resources whose content the client has not, or asked for again, and may be sent now."""
        known = snapshot.of(self.kind)
        for name, resource in known.items() if self.is_wildcard else self._explicit(known):
            if name in self._flying or self.is_refused(resource):
                continue
            held = self.held.get(name)
            if held is None or held.version != resource.version or name in self._owed:
                yield resource

    def _explicit(self, known: Mapping[str, Resource]) -> Iterator[tuple[str, Resource]]:
        return ((name, known[name]) for name in sorted(self.names) if name in known)

    def absent(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Return names to be answered with a removal at once: asked for, not there, not held (facts-xds 31, 32)."""
        known = snapshot.of(self.kind)
        # What the client still holds leaves in its turn (23), also when it asked once more.
        candidates = ((self.names - self._absent) | (self._owed - self.names)) - self.held.keys()
        return tuple(sorted(name for name in candidates if name not in known and name not in self._flying))

    def gone(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Return names that the client holds and should not: dropped from the snapshot, or never asked for (29)."""
        known = snapshot.of(self.kind)
        return tuple(
            sorted(
                name
                for name in self.held
                if not (name in known and self.wants(name))
                and name not in self._flying
                and not self.refusals.is_refused(self.kind, name, REMOVAL)
            )
        )

    def is_settled(self, snapshot: Snapshot, names: frozenset[str] = frozenset()) -> bool:
        """Return whether the client holds or has refused all that it wants, and each of `names` besides."""
        known = snapshot.of(self.kind)
        wanted = known.keys() if self.is_wildcard else self.names & known.keys()
        return all(self._is_answered(known[name]) for name in wanted | (names & known.keys()))

    def _is_answered(self, resource: Resource) -> bool:
        if resource.name in self._flying:
            return False
        held = self.held.get(resource.name)
        return (held is not None and held.version == resource.version) or self.is_refused(resource)

    # ---- what is sent

    def owe(self, names: frozenset[str], *, is_forgotten: bool = False) -> None:
        """Have the names sent again, changed or not, where the client asked for them by name (facts-xds 21)."""
        for name in names & self.names:
            self._owed.add(name)
            if is_forgotten:
                self.held.pop(name, None)

    def launch(self, response: Response, snapshot: Snapshot, now_s: float) -> None:
        """Note that the response is on its way."""
        held = {
            resource.name: Held(resource.version, snapshot.references_of(self.kind, resource.name))
            for resource in response.resources
        }
        names = held.keys() | set(response.removed)
        self.in_flight[response.nonce] = InFlight(response.version, held, response.removed, now_s)
        self._flying |= names
        self._owed -= names
        self.alone -= names
        self._absent -= held.keys()
        self._absent.update(name for name in response.removed if name in self.names)
        self.owes_first_answer = False
        self.sent += 1
        self.sent_version = response.version

    def possible(self) -> Iterator[tuple[str, Held]]:
        """Yield all that the client may be using: what it holds, and what is on its way."""
        yield from self.held.items()
        for flight in self.in_flight.values():
            yield from flight.held.items()
