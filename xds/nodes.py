"""The nodes that an ADS server knows: their open streams, what they refused, and their counts.

Decides which stream speaks for a node (the newest, so that the late end of an old one takes nothing away, xDS point 3)
and which absent node is forgotten when there are too many. Refuses requests over the rate bound. Owned by ads.py; one
event loop, no locks.
"""

from __future__ import annotations

import asyncio

from pointsman.xds.refusals import Refusals
from pointsman.xds.snapshot import Snapshot
from pointsman.xds.status import EndReason, NodeIdentity, NodeStatus, Outcome, TypeStatus, XdsEvent
from pointsman.xds.stream import Stream, StreamLimits
from pointsman.xds.variant import VariantName
from pointsman.xds.wire import Incoming, RequestRefused, Wire


class Session:
    """One open stream: its state machine, and the bell that wakes its writer."""

    __slots__ = (
        "_burst",
        "_rate",
        "_refilled_at_s",
        "_tokens",
        "ending",
        "node",
        "offered",
        "settled",
        "settled_outcome",
        "stream",
        "wake",
        "wire",
    )

    def __init__(self, node: Node, wire: Wire, *, limits: StreamLimits, rate: float, burst: int) -> None:
        self.node = node
        self.wire = wire
        self.stream = Stream(
            node.identity.node_id,
            node.refusals,
            limits=limits,
            variant=wire.variant,
            states_ttl=wire.states_ttl(node.identity),
        )
        self.wake = asyncio.Event()
        self.ending: tuple[EndReason, str] | None = None
        self.offered = 0
        """Sequence of the latest snapshot offered; snapshots are numbered as they are published."""
        self.settled = 0
        """Sequence of the latest snapshot that the node has answered in full."""
        self.settled_outcome = Outcome.PENDING
        """How it was answered; the stream's own outcome may be pending again, for what is sent once more."""
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._refilled_at_s: float | None = None

    def offer(self, snapshot: Snapshot, sequence: int) -> None:
        """Hand the stream the latest snapshot and wake its writer."""
        self.offered = sequence
        self.stream.offer(snapshot)
        self._note()

    def receive(self, raw: bytes, now_s: float) -> tuple[XdsEvent, ...]:
        """Take one request from the wire, or raise RequestRefused."""
        self._spend(now_s)
        return self.take(self.wire.decode(raw), now_s)

    def take(self, incoming: Incoming, now_s: float) -> tuple[XdsEvent, ...]:
        """Take one decoded request; a type that is not served is counted and ignored (xDS point 2)."""
        if incoming.request is None:
            self.node.ignored_requests += 1
            return ()
        stale_before = self.stream.stale_requests
        events = self.stream.receive(incoming.request, now_s)
        self.node.stale_requests += self.stream.stale_requests - stale_before
        self.node.last_refusal = self.stream.last_refusal or self.node.last_refusal
        self._note()
        return events

    def end(self, reason: EndReason, text: str = "") -> None:
        """Have the writer end the stream; the first reason stands."""
        if self.ending is None:
            self.ending = (reason, text)
            self.wake.set()

    def _note(self) -> None:
        if self.stream.outcome is not Outcome.PENDING:
            self.settled, self.settled_outcome = self.offered, self.stream.outcome
        self.wake.set()

    def _spend(self, now_s: float) -> None:
        """Take one token; the bucket fills at the rate and holds the burst."""
        if self._refilled_at_s is not None:
            self._tokens = min(self._burst, self._tokens + (now_s - self._refilled_at_s) * self._rate)
        self._refilled_at_s = now_s
        if self._tokens < 1:
            raise RequestRefused(EndReason.TOO_MANY_REQUESTS, "")
        self._tokens -= 1


class Node:
    """One node id: what outlives its streams."""

    __slots__ = (
        "_acknowledged_snapshot",
        "_types",
        "_variant",
        "group",
        "identity",
        "ignored_requests",
        "last_refusal",
        "refusals",
        "sessions",
        "stale_requests",
    )

    def __init__(self, identity: NodeIdentity, group: str) -> None:
        self.identity = identity
        self.group = group
        self.refusals = Refusals()
        self.sessions: list[Session] = []
        self.last_refusal: str | None = None
        self.ignored_requests = 0
        self.stale_requests = 0
        self._types: tuple[TypeStatus, ...] = ()
        self._variant: VariantName | None = None
        self._acknowledged_snapshot: str | None = None

    @property
    def outcome(self) -> Outcome:
        """Return how the node's newest stream stands; pending when there is none."""
        return self.sessions[-1].stream.outcome if self.sessions else Outcome.PENDING

    @property
    def settled(self) -> int:
        """Return the sequence of the latest snapshot that the newest stream has answered."""
        return self.sessions[-1].settled if self.sessions else 0

    @property
    def settled_outcome(self) -> Outcome:
        """Return how the newest stream answered that snapshot."""
        return self.sessions[-1].settled_outcome if self.sessions else Outcome.PENDING

    def close(self, session: Session) -> None:
        """Drop the stream; the last one leaves its state behind as values."""
        self._types = session.stream.types()
        self._variant = session.wire.variant.name
        self._acknowledged_snapshot = session.stream.acknowledged_snapshot
        self.sessions.remove(session)

    def status(self, snapshot: Snapshot | None) -> NodeStatus:
        """Return the node's state; `snapshot` is the one meant for it."""
        stream = self.sessions[-1].stream if self.sessions else None
        variant = self.sessions[-1].wire.variant.name if self.sessions else self._variant
        return NodeStatus(
            identity=self.identity,
            group=self.group,
            is_connected=stream is not None,
            open_streams=len(self.sessions),
            snapshot_version=snapshot.version if snapshot is not None else None,
            acknowledged_snapshot=stream.acknowledged_snapshot if stream is not None else self._acknowledged_snapshot,
            outcome=self.outcome,
            types=stream.types() if stream is not None else self._types,
            last_refusal=self.last_refusal,
            ignored_requests=self.ignored_requests,
            stale_requests=self.stale_requests,
            variant=variant,
        )


class NodeRegistry:
    """All nodes, the connected ones and a bounded number of others."""

    def __init__(self, *, limits: StreamLimits, max_remembered: int) -> None:
        self._limits = limits
        self._max_remembered = max_remembered
        self._nodes: dict[str, Node] = {}

    def open(self, identity: NodeIdentity, group: str, wire: Wire, *, rate: float, burst: int) -> Session:
        """Open a stream for the node; it speaks for the node from now on."""
        node = self._nodes.pop(identity.node_id, None) or Node(identity, group)
        self._nodes[identity.node_id] = node
        node.identity, node.group = identity, group
        session = Session(node, wire, limits=self._limits, rate=rate, burst=burst)
        node.sessions.append(session)
        self._forget_oldest()
        return session

    def close(self, session: Session) -> bool:
        """Close the stream; return whether it was the node's last."""
        session.node.close(session)
        return not session.node.sessions

    def _forget_oldest(self) -> None:
        absent = [node_id for node_id, node in self._nodes.items() if not node.sessions]
        for node_id in absent[: max(0, len(absent) - self._max_remembered)]:
            del self._nodes[node_id]

    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes, the latest opened last."""
        return tuple(self._nodes.values())

    def connected(self, group: str) -> tuple[Node, ...]:
        """Return the nodes of the group that have a stream."""
        return tuple(node for node in self._nodes.values() if node.sessions and node.group == group)

    def sessions(self, group: str | None = None) -> tuple[Session, ...]:
        """Return the open streams of the group, or of all."""
        return tuple(
            session
            for node in self._nodes.values()
            if group is None or node.group == group
            for session in node.sessions
        )

    def forget_refusals(self, node_id: str) -> None:
        """Forget what the node refused and look at its streams again."""
        node = self._nodes.get(node_id)
        if node is None:
            return
        node.refusals.forgive_all()
        for session in node.sessions:
            session.stream.reconsider()
            session.wake.set()
