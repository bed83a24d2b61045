"""A client and a server's stream joined without a network, under virtual time, in either variant of the protocol.

Each request passes as bytes, each response is checked by the client.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from google.protobuf.message import Message
from pointsman.xds.delta import DELTA_WIRE
from pointsman.xds.fake_checker import Checker, Received
from pointsman.xds.fake_client import FakeEnvoy, ProtocolChecker
from pointsman.xds.fake_sotw import SotwChecker
from pointsman.xds.refusals import Refusals
from pointsman.xds.snapshot import ResourceType, Snapshot
from pointsman.xds.sotw import SOTW_WIRE
from pointsman.xds.status import Outcome, XdsEvent
from pointsman.xds.stream import Stream, StreamLimits
from pointsman.xds.wire import Wire
from sample_resources import assignment, cluster, listener, routes

CHECKERS: dict[str, type[Checker]] = {"delta": ProtocolChecker, "sotw": SotwChecker}  # type: ignore[type-arg]
WIRES: dict[str, Wire] = {"delta": DELTA_WIRE, "sotw": SOTW_WIRE}

both_variants = pytest.mark.parametrize("variant", ["delta", "sotw"])
"""For stories that must be the same in both."""


class JoinedStream:
    """The two ends of one stream."""

    def __init__(
        self,
        offered: Snapshot | None = None,
        *,
        variant: str = "delta",
        limits: StreamLimits | None = None,
        before: JoinedStream | None = None,
        is_order_checked: bool = True,
        features: Iterable[str] = (),
    ) -> None:
        self.now_s = 100.0
        self.wire = WIRES[variant]
        self.refusals: Refusals = before.refusals if before is not None else Refusals()
        known = before.client if before is not None else None
        self.client = CHECKERS[variant]("node", before=known, is_order_checked=is_order_checked, features=features)
        self._limits = limits or StreamLimits()
        self._offered = offered
        self._stream: Stream | None = None
        self.events: list[XdsEvent] = []

    @property
    def stream(self) -> Stream:
        """Return the server's end; it begins with the first request, as on a connection."""
        if self._stream is None:
            self._stream = self._opened(states_ttl=False)
        return self._stream

    def _opened(self, *, states_ttl: bool) -> Stream:
        stream = Stream("node", self.refusals, limits=self._limits, variant=self.wire.variant, states_ttl=states_ttl)
        if self._offered is not None:
            stream.offer(self._offered)
        return stream

    def send(self, *requests: Message) -> None:
        """Hand requests to the server's end."""
        for request in requests:
            incoming = self.wire.decode(request.SerializeToString())
            if self._stream is None:
                states_ttl = incoming.identity is not None and self.wire.states_ttl(incoming.identity)
                self._stream = self._opened(states_ttl=states_ttl)
            assert incoming.request is not None
            self.events.extend(self.stream.receive(incoming.request, self.now_s))

    def outcome(self) -> Outcome:
        """Return how the node stands."""
        return self.stream.outcome

    def raw(self) -> Iterable[Message]:
        """Yield, unchecked, all that the server sends now."""
        while (response := self.stream.next_response(self.now_s)) is not None:
            yield self.client.parse(self.wire.encode(response))

    def receive(self) -> list[Received]:
        """Take, unanswered, all that the server sends now."""
        return [self.client.check(response) for response in self.raw()]

    def receive_one(self) -> Received:
        """Take the one response that the server sends now."""
        (received,) = self.receive()
        return received

    def acknowledge(self, *received: Received) -> None:
        """Acknowledge responses."""
        self.send(*(self.client.acknowledge(one) for one in received))

    def subscribe(self, kind: ResourceType, *names: str) -> list[Received]:
        """Subscribe, acknowledge what comes, return it."""
        self.send(self.client.subscribe(kind, *names))
        return self.drain()

    def drain(self) -> list[Received]:
        """Take and acknowledge until the server has nothing more to say."""
        taken: list[Received] = []
        while received := self.receive():
            taken.extend(received)
            self.acknowledge(*received)
        return taken

    def follow(self, envoy: FakeEnvoy) -> list[tuple[str, list[str], list[str]]]:  # type: ignore[type-arg]
        """Let a fake Envoy answer until the server has nothing more to say; return what was sent and new."""
        log: list[tuple[str, list[str], list[str]]] = []
        while (response := self.stream.next_response(self.now_s)) is not None:
            received, requests = envoy.take(self.client.parse(self.wire.encode(response)))
            log.extend(names_of([received]))
            self.send(*requests)
        return log


def names_of(received: Iterable[Received]) -> list[tuple[str, list[str], list[str]]]:
    """Return type, new names and removed names of each response."""
    return [(one.type_url.label, sorted(one.resources), sorted(one.removed)) for one in received]


def started(
    offered: Snapshot,
    *,
    variant: str = "delta",
    limits: StreamLimits | None = None,
    is_order_checked: bool = True,
) -> tuple[JoinedStream, FakeEnvoy]:  # type: ignore[type-arg]
    """Return a stream on which an Envoy has taken the snapshot."""
    wire = JoinedStream(offered, variant=variant, limits=limits, is_order_checked=is_order_checked)
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    wire.follow(envoy)
    return wire, envoy


def two_routes(*clusters: str, names: tuple[str, ...] = ("main",)) -> Snapshot:
    """Return a snapshot with a listener and routes for each name, all to the clusters."""
    return Snapshot.build(
        [cluster(name) for name in clusters],
        [assignment(name) for name in clusters],
        [listener(f"in-{name}", name) for name in names],
        [routes(name, *clusters) for name in names],
    )
