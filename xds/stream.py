"""One stream of one node: which response may leave next, across the types, and how the node stands with the snapshot.

Decides the order (xDS point 21-25): what is named goes before what names it; a route or listener that names a cluster
which the client has not taken yet waits, up to a limit; a removal waits until nothing that the client may be using
names the resource. Decides also what is a refusal (8, 35) and when a stream is to be ended for its bounds. Pure: no
clock, no I/O; `now_s` is given. Called by ads.py: receive what arrives, offer what is published, send what
`next_response` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pointsman.xds.refusals import Refusals
from pointsman.xds.snapshot import TYPE_ORDER, Resource, ResourceType, Snapshot, version_of
from pointsman.xds.status import EndReason, Outcome, Refusal, ResourceAcked, ResourceRefused, TypeStatus, XdsEvent
from pointsman.xds.subscription import Request, Response, Subscription
from pointsman.xds.variant import DELTA, Variant

CDS, EDS, LDS, RDS = TYPE_ORDER

_ROOTS = (CDS, LDS)
"""Types that a proxy asks for by itself; the names of the others are found in these."""

_REMOVAL_ORDER = (RDS, CDS, EDS)
"""Order of removals; those of listeners go with the changes, since a new listener may want the old one's port."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds of one stream."""

    hold_s: float = 5.0
    """How long a route waits for its clusters, and a removal for the client to ask for what replaces it."""
    acknowledge_s: float = 60.0
    """A client that leaves a response unanswered for longer is cut off; it comes back and states what it has."""
    max_response_bytes: int = 3_000_000
    """A push over this is split: some clients read 4 MiB at most (xDS point 41). One larger resource goes alone."""
    max_names: int = 20_000
    """Names of one type that a client may subscribe to or claim to hold."""
    max_in_flight: int = 1_000
    """Unanswered responses of one type; nothing more is sent until some are answered."""


class Stream:
    """The state of one stream; belongs to one task."""

    __slots__ = (
        "_is_idle",
        "_is_over",
        "_limits",
        "_node_id",
        "_nonces",
        "_refusals",
        "_removal_since_s",
        "_snapshot",
        "_states_ttl",
        "_subscriptions",
        "_variant",
        "_waiting_since_s",
        "acknowledged_snapshot",
        "acknowledged_versions",
        "last_refusal",
        "outcome",
        "stale_requests",
    )

    def __init__(
        self,
        node_id: str,
        refusals: Refusals,
        *,
        limits: StreamLimits,
        variant: Variant = DELTA,
        states_ttl: bool = False,
    ) -> None:
        """Make a stream; `states_ttl` says that the client knows lifetimes (xDS point 36)."""
        self._node_id = node_id
        self._refusals = refusals
        self._limits = limits
        self._variant = variant
        self._states_ttl = states_ttl
        self._subscriptions = {
            kind: Subscription(kind, refusals, variant, states_ttl=states_ttl) for kind in TYPE_ORDER
        }
        self._snapshot: Snapshot | None = None
        self._nonces = 0
        self._waiting_since_s: dict[tuple[ResourceType, str], float] = {}
        self._removal_since_s: float | None = None
        self._is_idle = False
        self._is_over = False
        self.outcome = Outcome.PENDING
        """How the node stands with the latest snapshot."""
        self.acknowledged_snapshot: str | None = None
        self.acknowledged_versions: dict[ResourceType, str] = {}
        self.last_refusal: str | None = None
        self.stale_requests = 0

    # ---- inputs

    def offer(self, snapshot: Snapshot) -> None:
        """Take the latest snapshot in place of any earlier one; what was not sent of that one never will be."""
        self._snapshot = snapshot
        self._is_idle = False
        for subscription in self._subscriptions.values():
            subscription.learn_references(snapshot)
        waiting = self._waiting_since_s
        self._waiting_since_s = {key: since for key, since in waiting.items() if key[1] in snapshot.of(key[0])}
        self._note_progress()

    def reconsider(self) -> None:
        """Look at everything again: what the node had refused was forgiven."""
        self._is_idle = False
        for subscription in self._subscriptions.values():
            subscription.refused_whole = ""
        self._note_progress()

    def receive(self, request: Request, now_s: float) -> tuple[XdsEvent, ...]:
        """Take one request: its names count always, its answer when the nonce is outstanding."""
        self._is_idle = False
        if request.name_count > 2 * self._limits.max_names:  # to subscribe and to claim: the stream is ended anyway
            self._is_over = True
            return ()
        subscription = self._subscriptions[request.type_url]
        is_first = not subscription.is_started
        event = None if is_first else self._take_answer(subscription, request, now_s)
        subscription.change_names(request, self._snapshot)
        if is_first and self._snapshot is not None:
            subscription.learn_references(self._snapshot)
        self._note_progress()
        return () if event is None else (event,)

    def _take_answer(self, subscription: Subscription, request: Request, now_s: float) -> XdsEvent | None:
        if request.error_text is not None:
            is_unsure = subscription.is_unsure
            answered = subscription.refuse(request.nonce, request.error_text)
            if answered is not None:
                self.last_refusal = request.error_text
                names = (*answered.held, *answered.removed)
                return ResourceRefused(
                    self._node_id,
                    request.type_url,
                    answered.version,
                    names,
                    request.error_text,
                    is_final=is_unsure or answered.size <= 1,
                )
        else:
            answered = subscription.acknowledge(request.nonce)
            if answered is not None:
                round_trip_ms = (now_s - answered.sent_at_s) * 1_000
                names = tuple(answered.held)
                return ResourceAcked(
                    self._node_id, request.type_url, answered.version, names, answered.removed, round_trip_ms
                )
        # A late or repeated answer gets no response of its own; answering it makes clients loop.
        is_last = self._variant.repeats_nonces and request.nonce == subscription.last_nonce
        self.stale_requests += bool(request.nonce) and not (is_last and request.error_text is None)
        return None

    # ---- what is to be done

    def next_response(self, now_s: float) -> Response | None:
        """Return the response that is to leave now, as sent; None when nothing may leave before the next input."""
        snapshot = self._snapshot
        if snapshot is None or (self._is_idle and not self._is_due(now_s)):
            return None
        self._is_idle = False
        for kind in TYPE_ORDER:
            response = self._addition(kind, snapshot, now_s)
            if response is not None:
                return self._launch(response, snapshot, now_s)
        response = self._removal(snapshot, now_s) or self._confirmation(snapshot, now_s)
        if response is not None:
            return self._launch(response, snapshot, now_s)
        self._is_idle = True
        return None

    def deadline_s(self, now_s: float) -> float | None:
        """Return when the stream must be looked at again though nothing arrived; None for never."""
        deadlines = [since + self._limits.hold_s for since in self._holds()]
        deadlines.extend(sent_at_s + self._limits.acknowledge_s for sent_at_s in self._oldest_in_flight())
        deadlines.extend(self._confirmations())
        # A limit that passed without effect (refused content is in the way) has nothing to wake for.
        return min((deadline for deadline in deadlines if deadline > now_s), default=None)

    def end_reason(self, now_s: float) -> EndReason | None:
        """Return why the stream must be ended now; None when it is within its bounds."""
        if self._is_over:
            return EndReason.TOO_MANY_NAMES
        for subscription in self._subscriptions.values():
            if max(len(subscription.names), len(subscription.held)) > self._limits.max_names:
                return EndReason.TOO_MANY_NAMES
        if any(now_s - sent_at_s >= self._limits.acknowledge_s for sent_at_s in self._oldest_in_flight()):
            return EndReason.NEVER_ACKNOWLEDGED
        return None

    def types(self) -> tuple[TypeStatus, ...]:
        """Return the state of each type."""
        return tuple(self._type_status(kind) for kind in TYPE_ORDER)

    # ---- additions

    def _addition(self, kind: ResourceType, snapshot: Snapshot, now_s: float) -> Response | None:
        """Return the type's next response with new content, absences, or (LDS) removals."""
        subscription = self._subscriptions[kind]
        if not subscription.is_started or not self._has_room(subscription):
            return None
        states_whole = kind in self._variant.whole_types
        chosen: list[Resource] = []
        size = 0
        is_held_back = False
        for resource in subscription.due(snapshot):
            if self._is_held_back(resource, snapshot, now_s):
                is_held_back = True
                continue
            if resource.name in subscription.alone:
                return self._response(kind, snapshot, (resource,))
            size += len(resource.body)
            if chosen and size > self._limits.max_response_bytes and not states_whole:
                break
            chosen.append(resource)
        removed = subscription.absent(snapshot)
        if kind is LDS and kind in self._variant.removable_types:
            removed = tuple(dict.fromkeys((*removed, *subscription.gone(snapshot))))
        alone = next((name for name in removed if name in subscription.alone), None)
        if alone is not None:
            return self._response(kind, snapshot, removed=(alone,))
        if subscription.is_unsure and (is_held_back or version_of(chosen) == subscription.refused_whole):
            return None  # what waits would be left out, and taken away; what was refused would be again
        if chosen or removed or (subscription.owes_first_answer and not is_held_back):
            return self._response(kind, snapshot, tuple(chosen), removed)
        return None

    def _is_held_back(self, resource: Resource, snapshot: Snapshot, now_s: float) -> bool:
        """Return whether the resource must wait for clusters; routes are not warmed by the client (xDS point 24)."""
        key = (resource.type_url, resource.name)
        clusters = snapshot.references_of(*key).clusters if resource.type_url in (LDS, RDS) else frozenset()
        missing = [name for name in clusters if not self._is_ready(name, snapshot, frozenset())]
        if not missing:
            self._waiting_since_s.pop(key, None)
            return False
        if self._is_withheld(resource, missing, snapshot):
            self._waiting_since_s.pop(key, None)
            return True
        return now_s - self._waiting_since_s.setdefault(key, now_s) < self._limits.hold_s

    def _is_withheld(self, resource: Resource, missing: list[str], snapshot: Snapshot) -> bool:
        """Return whether the client keeps the version it has: it refused a cluster that the new one names."""
        if resource.name not in self._subscriptions[resource.type_url].held:
            return False
        clusters = snapshot.of(CDS)
        return any(self._subscriptions[CDS].is_refused(clusters[name]) for name in missing)

    def _is_ready(self, cluster: str, snapshot: Snapshot, above: frozenset[str]) -> bool:
        """Return whether the client took the cluster, its endpoints and its children, so that a route may name it."""
        subscription = self._subscriptions[CDS]
        resource = snapshot.of(CDS).get(cluster)
        # Static clusters are the client's own. Without a wildcard the client asks for clusters after it saw the routes.
        if resource is None or not subscription.is_wildcard or cluster in above:
            return True
        if cluster not in subscription.held or self._is_leaving(cluster):
            return False
        needed = snapshot.references_of(CDS, cluster)
        endpoints = self._subscriptions[EDS]
        assignments = snapshot.of(EDS)
        if not all(name in endpoints.held or endpoints.is_refused(assignments[name]) for name in needed.assignments):
            return False
        clusters = snapshot.of(CDS)
        return all(
            (name in clusters and subscription.is_refused(clusters[name]))  # a ladder works without one of its rungs
            or self._is_ready(name, snapshot, above | {cluster})
            for name in needed.clusters
        )

    def _is_leaving(self, cluster: str) -> bool:
        return any(cluster in flight.removed for flight in self._subscriptions[CDS].in_flight.values())

    # ---- removals

    def _removal(self, snapshot: Snapshot, now_s: float) -> Response | None:
        """Return the next removal: after all changes were answered, and of nothing that may still be in use (23)."""
        gone = {kind: self._gone(kind, snapshot) for kind in _REMOVAL_ORDER}
        if not any(gone.values()):
            self._removal_since_s = None
            return None
        if self._removal_since_s is None:
            self._removal_since_s = now_s
        if not self._is_settled(snapshot) and now_s - self._removal_since_s < self._limits.hold_s:
            return None
        for kind in _REMOVAL_ORDER:
            subscription = self._subscriptions[kind]
            removed = tuple(name for name in gone[kind] if not self._may_be_used(kind, name, snapshot))
            if kind not in self._variant.removable_types:
                subscription.let_go(removed)
            elif removed and self._has_room(subscription):
                alone = next((name for name in removed if name in subscription.alone), None)
                return self._response(kind, snapshot, removed=removed if alone is None else (alone,))
        return None

    def _gone(self, kind: ResourceType, snapshot: Snapshot) -> tuple[str, ...]:
        subscription = self._subscriptions[kind]
        return subscription.gone(snapshot) if subscription.is_started else ()

    def _may_be_used(self, kind: ResourceType, name: str, snapshot: Snapshot) -> bool:
        """Return whether something that the client has, or is being sent, names the resource; unknown counts as yes."""
        users = {CDS: (CDS, LDS, RDS), EDS: (CDS,), RDS: (LDS,)}[kind]
        for user in users:
            for holder, held in self._subscriptions[user].possible():
                if held.references is None:
                    # Clusters of unknown content that go away themselves must not keep each other alive.
                    if user is not kind or holder in snapshot.of(user):
                        return True
                    continue
                named = {
                    CDS: held.references.clusters,
                    EDS: held.references.assignments,
                    RDS: held.references.routes,
                }[kind]
                if name in named and (user, holder) != (kind, name):
                    return True
        return False

    # ---- sending

    def _response(
        self,
        kind: ResourceType,
        snapshot: Snapshot,
        resources: tuple[Resource, ...] = (),
        removed: tuple[str, ...] = (),
    ) -> Response:
        self._nonces += 1
        version = snapshot.type_versions[kind]
        kept: tuple[Resource, ...] = ()
        if kind in self._variant.whole_types:
            kept = self._subscriptions[kind].kept({*removed, *(resource.name for resource in resources)})
            version = version_of((*resources, *kept))
        return Response(kind, version, str(self._nonces), resources, removed, kept, states_ttl=self._states_ttl)

    def _confirmation(self, snapshot: Snapshot, now_s: float) -> Response | None:
        """Return the next response that only has lifetimes begin anew."""
        for kind, subscription in self._subscriptions.items():
            confirmed = subscription.to_confirm(now_s) if self._has_room(subscription) else ()
            if confirmed and kind in self._variant.whole_types:
                # With the content: Envoy takes a whole of confirmations for an empty one, and removes everything.
                return self._response(kind, snapshot)
            if confirmed:
                self._nonces += 1
                # A State-of-the-World client knows a confirmation by the version of what it took last.
                version = subscription.taken_version or snapshot.type_versions[kind]
                nonce = str(self._nonces)
                return Response(kind, version, nonce, confirmed=confirmed, states_ttl=True)
        return None

    def _has_room(self, subscription: Subscription) -> bool:
        limit = self._variant.max_in_flight or self._limits.max_in_flight
        return len(subscription.in_flight) < limit

    def _launch(self, response: Response, snapshot: Snapshot, now_s: float) -> Response:
        clusters = self._subscriptions[CDS]
        for resource in response.resources:
            self._waiting_since_s.pop((response.type_url, resource.name), None)
            needed = snapshot.references_of(response.type_url, resource.name)
            # A client warms a changed cluster until endpoints arrive, even the same ones; a new one has none (21).
            is_new = response.type_url is CDS and resource.name not in clusters.held
            self._subscriptions[EDS].owe(needed.assignments, is_forgotten=is_new)
            self._subscriptions[RDS].owe(needed.routes)
        self._subscriptions[response.type_url].launch(response, snapshot, now_s)
        if response.resources:
            self.outcome = Outcome.PENDING
        return response

    # ---- state

    def _is_settled(self, snapshot: Snapshot) -> bool:
        """Return whether the client has asked for, and answered, all of the snapshot that it can reach."""
        if any(self._is_awaited(kind, snapshot) for kind in _ROOTS):
            return False
        assignments, routes = self._reachable(CDS), self._reachable(LDS)
        expected: Mapping[ResourceType, frozenset[str]] = {EDS: assignments, RDS: routes}
        return all(
            self._subscriptions[kind].is_settled(snapshot, expected.get(kind, frozenset()))
            or self._is_all_withheld(kind, snapshot)
            for kind in TYPE_ORDER
        )

    def _is_awaited(self, kind: ResourceType, snapshot: Snapshot) -> bool:
        """Return whether the client has yet to ask for anything of the root type.

        One that names its listeners asks for the clusters that it is told of, perhaps for none, and not for all: those
        without weight are of no interest to gRPC. So once it has asked, its names are taken for all that it wants.
        """
        if self._subscriptions[kind].is_started or not snapshot.of(kind):
            return False
        listeners = self._subscriptions[LDS]
        if kind is LDS or not listeners.is_started or listeners.is_wildcard:
            return True
        holders = (*listeners.held.values(), *self._subscriptions[RDS].held.values())
        return any(
            held.references is not None and held.references.clusters & snapshot.of(CDS).keys() for held in holders
        )

    def _reachable(self, kind: ResourceType) -> frozenset[str]:
        named: set[str] = set()
        for held in self._subscriptions[kind].held.values():
            if held.references is not None:
                named |= held.references.assignments if kind is CDS else held.references.routes
        return frozenset(named)

    def _is_all_withheld(self, kind: ResourceType, snapshot: Snapshot) -> bool:
        """Return whether only such resources are unanswered as wait for a cluster that the client refused."""
        subscription = self._subscriptions[kind]
        if kind not in (LDS, RDS) or subscription.in_flight:
            return False
        due = tuple(subscription.due(snapshot))
        return bool(due) and all(self._is_withheld_now(resource, snapshot) for resource in due)

    def _is_withheld_now(self, resource: Resource, snapshot: Snapshot) -> bool:
        clusters = snapshot.references_of(resource.type_url, resource.name).clusters
        missing = [name for name in clusters if not self._is_ready(name, snapshot, frozenset())]
        return self._is_withheld(resource, missing, snapshot)

    def _refused_now(self, kind: ResourceType) -> tuple[Refusal, ...]:
        """Return the refusals that concern what the latest snapshot holds."""
        known = self._snapshot.of(kind) if self._snapshot is not None else {}
        return tuple(
            refusal
            for refusal in self._refusals.of(kind)
            if refusal.name in known and known[refusal.name].version == refusal.version
        )

    def _note_progress(self) -> None:
        """Remember what is now acknowledged in full."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        for kind, subscription in self._subscriptions.items():
            version = snapshot.type_versions[kind]
            if (
                subscription.is_started
                and self.acknowledged_versions.get(kind) != version
                and subscription.is_settled(snapshot)
                and not self._refused_now(kind)
            ):
                self.acknowledged_versions[kind] = version
        if not self._is_settled(snapshot):
            self.outcome = Outcome.PENDING
        elif any(self._refused_now(kind) for kind in TYPE_ORDER):
            self.outcome = Outcome.REFUSED
        else:
            self.outcome = Outcome.ACKNOWLEDGED
            self.acknowledged_snapshot = snapshot.version

    def _type_status(self, kind: ResourceType) -> TypeStatus:
        subscription = self._subscriptions[kind]
        return TypeStatus(
            kind,
            is_subscribed=subscription.is_started,
            sent_version=subscription.sent_version,
            acknowledged_version=self.acknowledged_versions.get(kind),
            resources_held=len(subscription.held),
            responses_sent=subscription.sent,
            acknowledgements=subscription.acknowledgements,
            nacks=subscription.nacks,
            refused=self._refused_now(kind),
        )

    def _holds(self) -> Iterator[float]:
        yield from self._waiting_since_s.values()
        if self._removal_since_s is not None:
            yield self._removal_since_s

    def _is_due(self, now_s: float) -> bool:
        return any(now_s - since >= self._limits.hold_s for since in self._holds()) or any(
            now_s >= confirm_at_s for confirm_at_s in self._confirmations()
        )

    def _confirmations(self) -> Iterator[float]:
        if not self._states_ttl:
            return
        for subscription in self._subscriptions.values():
            confirm_at_s = subscription.confirm_at_s()
            if confirm_at_s is not None and self._has_room(subscription):
                yield confirm_at_s

    def _oldest_in_flight(self) -> Iterator[float]:
        for subscription in self._subscriptions.values():
            for flight in subscription.in_flight.values():
                yield flight.sent_at_s
                break
