"""One type's subscription on one stream: what the client asked for, holds, and was sent and has not answered yet.

Decides, from the requests and the latest snapshot, which names are due, absent or gone; a name is never sent again
before its last response was answered, so what is outstanding is bounded by the names and there is no queue (xDS point
38). Refuses nothing by itself; the bounds are the stream's. Knows no wire format: delta.py and sotw.py make the same
values, and variant.py says what a variant cannot express. Called by stream.py only, which orders the types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pointsman.xds.references import References
from pointsman.xds.refusals import Refusals
from pointsman.xds.snapshot import Resource, ResourceType, Snapshot
from pointsman.xds.status import Refusal
from pointsman.xds.variant import Variant

WILDCARD = "*"
"""The name that stands for every resource of a type."""

REMOVAL = ""
"""Version under which a removal is remembered when it is refused; content hashes are never empty."""

CONFIRMED_AFTER = 1 / 3
"""Share of a lifetime after which it is made to begin anew: two confirmations may be late or lost."""

_LEGACY_WILDCARD_TYPES = frozenset({ResourceType.CLUSTER, ResourceType.LISTENER})
"""Types whose first request may leave the names out and means all (xDS point 16, 33)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one request says, whatever the wire: the names, and an answer to a response."""

    type_url: ResourceType
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    wanted: tuple[str, ...] | None = None
    """All names, where the wire states them whole (State-of-the-World) and not as changes; else None."""
    initial_versions: Mapping[str, str] = field(default_factory=dict)
    holds_unknown: bool = False
    """Whether the client has something of the type, from an earlier stream, and cannot say what."""
    nonce: str = ""
    error_text: str | None = None
    """The NACK's text; None when the request is no NACK (xDS point 8)."""

    @property
    def name_count(self) -> int:
        """Return how many names the request states."""
        return len(self.subscribe) + len(self.initial_versions) + len(self.wanted or ())


@dataclass(frozen=True, slots=True)
class Response:
    """What one response says; `version` is that of the type in the snapshot, or of the whole that is carried."""

    type_url: ResourceType
    version: str
    nonce: str
    resources: tuple[Resource, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[Resource, ...] = ()
    """What the client holds and is to keep: repeated where a response states the whole (variant.py)."""
    confirmed: tuple[Resource, ...] = ()
    """What the client holds and whose lifetime begins anew: sent without the content (xDS point 36)."""
    states_ttl: bool = False
    """Whether the client knows lifetimes."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the client has of one name.

    `references` is None when only the version is known (after a reconnect). `resource` is kept where responses state
    the whole: an older content than the snapshot's may have to be repeated.
    """

    version: str
    references: References | None
    resource: Resource | None = None
    ttl_s: float | None = None
    """The lifetime that the client was told; None: none."""
    fresh_at_s: float = 0.0
    """When the lifetime began; zero: before anything that is known here."""


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
        "is_unsure",
        "is_wildcard",
        "kind",
        "last_nonce",
        "nacks",
        "names",
        "owes_first_answer",
        "refusals",
        "refused_whole",
        "sent",
        "sent_version",
        "states_ttl",
        "taken_version",
        "variant",
        "was_named",
    )

    def __init__(self, kind: ResourceType, refusals: Refusals, variant: Variant, *, states_ttl: bool = False) -> None:
        self.kind = kind
        self.refusals = refusals
        self.variant = variant
        self.states_ttl = states_ttl
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
        self.is_unsure = False
        """Whether the client may hold what is not known here: whatever a response leaves out, it may be using."""
        self.refused_whole = ""
        """Version of the whole that was refused by a client of which we are unsure; it is not sent again."""
        self.taken_version = ""
        """Version of the last response that was acknowledged."""
        self.last_nonce = ""
        self.was_named = False
        """Whether a name was ever stated; no names mean none from then on (xDS point 16)."""
        self.acknowledgements = 0
        self.nacks = 0

    def wants(self, name: str) -> bool:
        """Return whether the client is subscribed to the name, by itself or by the wildcard."""
        return self.is_wildcard or name in self.names

    def is_refused(self, resource: Resource) -> bool:
        """Return whether the node refused just this content."""
        return self.refusals.is_refused(self.kind, resource.name, resource.version)

    # ---- what the client says

    def change_names(self, request: Request, snapshot: Snapshot | None) -> None:
        """Take the request's names; they count whatever its nonce (xDS point 28)."""
        known = snapshot.of(self.kind) if snapshot is not None else {}
        is_first = not self.is_started
        subscribe, unsubscribe = request.subscribe, request.unsubscribe
        if request.wanted is not None:
            subscribe, unsubscribe = self._changes_to(frozenset(request.wanted))
        if is_first:
            self.is_started = True
            # Where absence cannot be said, an empty answer would say nothing (xDS point 15).
            self.owes_first_answer = self.kind in self.variant.removable_types
            self.is_unsure = request.holds_unknown and self.kind in self.variant.whole_types
            self.held = {name: Held(version, None) for name, version in request.initial_versions.items()}
            self.is_wildcard = not subscribe and self.kind in _LEGACY_WILDCARD_TYPES
        for name in subscribe:
            if name == WILDCARD:
                if self.is_wildcard:
                    self._owed.update(known, self.held)  # all once more: the client may have forgotten (xDS point 30)
                self.is_wildcard = True
                continue
            self.names.add(name)
            self._absent.discard(name)
            if not (is_first and name in self.held):
                self._owed.add(name)
        for name in unsubscribe:
            self._unsubscribe(name)

    def _changes_to(self, wanted: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what to subscribe to and to give up, so that the client's names are these (xDS point 12-17)."""
        self.was_named = self.was_named or bool(wanted)
        if not self.was_named and self.kind in _LEGACY_WILDCARD_TYPES:
            return (), ()  # still all, by the old way of saying it
        named = self.names | {WILDCARD} if self.is_wildcard else self.names
        return tuple(sorted(wanted - named)), tuple(sorted(named - wanted))

    def _unsubscribe(self, name: str) -> None:
        if name == WILDCARD:
            self.is_wildcard = False
            for dropped in self.held.keys() - self.names:
                self._forget(dropped)
            self._owed &= self.names
        elif name in self.names:
            self.names.discard(name)
            if self.is_wildcard:
                self._owed.add(name)  # still wanted by the wildcard: say what it is now (xDS point 31)
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
                ttl_s = known[name].ttl_s if self.states_ttl else None
                self.held[name] = Held(held.version, snapshot.references_of(self.kind, name), ttl_s=ttl_s)

    def acknowledge(self, nonce: str) -> InFlight | None:
        """Note that the client took the response; None when no such response is outstanding."""
        answered = self._land(nonce)
        if answered is None:
            return None
        self.acknowledgements += 1
        self.is_unsure = False
        self.taken_version = answered.version
        for name, held in answered.held.items():
            self.refusals.forgive(self.kind, name)
            if self.wants(name):
                self.held[name] = held
        for name in answered.removed:
            self.held.pop(name, None)
        return answered

    def refuse(self, nonce: str, text: str) -> InFlight | None:
        """Note that the client took nothing of the response (xDS point 35); None when it is not outstanding."""
        answered = self._land(nonce)
        if answered is None:
            return None
        self.nacks += 1
        if self.is_unsure:
            self.refused_whole = answered.version  # to leave something out, so as to find the one, could take it away
        elif answered.size > 1:
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
            if name in self._flying or (self.is_refused(resource) and not self.is_unsure):
                continue
            held = self.held.get(name)
            if held is None or held.version != resource.version or name in self._owed:
                yield resource

    def _explicit(self, known: Mapping[str, Resource]) -> Iterator[tuple[str, Resource]]:
        return ((name, known[name]) for name in sorted(self.names) if name in known)

    def absent(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Return names to be answered with a removal at once: asked for, not there, not held (xDS point 31, 32)."""
        if self.kind not in self.variant.removable_types:
            return ()
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

    def kept(self, replaced: Collection[str]) -> tuple[Resource, ...]:
        """Return what a response that states the whole repeats: all that the client holds, but for those names."""
        if self.kind not in self.variant.whole_types:
            return ()
        return tuple(
            held.resource for name, held in self.held.items() if held.resource is not None and name not in replaced
        )

    def to_confirm(self, now_s: float) -> tuple[Resource, ...]:
        """Return all that has a lifetime, as soon as one of them is to begin anew."""
        confirm_at_s = self.confirm_at_s()
        if confirm_at_s is None or now_s < confirm_at_s:
            return ()
        return tuple(
            Resource(name, self.kind, b"", held.version, held.ttl_s)
            for name, held in sorted(self.held.items())
            if held.ttl_s is not None
        )

    def confirm_at_s(self) -> float | None:
        """Return when the first lifetime is to begin anew; None for never."""
        if not self.states_ttl:
            return None
        lifetimes = (held for held in self.held.values() if held.ttl_s is not None)
        return min((held.fresh_at_s + (held.ttl_s or 0.0) * CONFIRMED_AFTER for held in lifetimes), default=None)

    def let_go(self, names: Collection[str]) -> None:
        """Forget held names that the client gives up by itself: the variant has no word for their removal."""
        for name in names:
            self.held.pop(name, None)

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
        """Have the names sent again, changed or not, where the client asked for them by name (xDS point 21)."""
        for name in names & self.names:
            self._owed.add(name)
            if is_forgotten:
                self.held.pop(name, None)

    def launch(self, response: Response, snapshot: Snapshot, now_s: float) -> None:
        """Note that the response is on its way."""
        states_whole = self.kind in self.variant.whole_types
        held = {
            resource.name: Held(
                resource.version,
                snapshot.references_of(self.kind, resource.name),
                resource if states_whole else None,
                resource.ttl_s if self.states_ttl else None,
                now_s,
            )
            for resource in response.resources
        }
        for resource in (*response.confirmed, *response.kept):
            self.held[resource.name] = replace(self.held[resource.name], fresh_at_s=now_s)
        names = held.keys() | set(response.removed)
        self.in_flight[response.nonce] = InFlight(response.version, held, response.removed, now_s)
        self._flying |= names
        self._owed -= names
        self.alone -= names
        self._absent -= held.keys()
        self._absent.update(name for name in response.removed if name in self.names)
        self.owes_first_answer = False
        self.last_nonce = response.nonce
        self.sent += 1
        self.sent_version = response.version

    def possible(self) -> Iterator[tuple[str, Held]]:
        """Yield all that the client may be using: what it holds, and what is on its way."""
        yield from self.held.items()
        for flight in self.in_flight.values():
            yield from flight.held.items()
