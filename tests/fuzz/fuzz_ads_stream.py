"""Atheris target: bytes as what one client and the publisher do on one stream, in either variant of the protocol.

A script's first byte chooses the variant; then come steps: raw frames, well-formed requests, answers to what was sent,
another snapshot, time. Asserts that nothing raises but RequestRefused and that the stream keeps its promises: it
settles, what is outstanding is bounded and never repeated, nonces are new, only what the snapshot holds leaves, what
was refused by itself is not sent again, and a client that takes everything gets all that it asks for. Run by
test_fuzz_python.py; by hand:
`python tests/fuzz/fuzz_ads_stream.py -max_total_time=600 CORPUS tests/fuzz/seeds/ads_stream`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris
from fuzz_messages import change_message, parsed

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

with atheris.instrument_imports(include=["pointsman"]):
    from pointsman.xds import api
    from pointsman.xds.delta import DELTA_WIRE
    from pointsman.xds.refusals import Refusals
    from pointsman.xds.snapshot import TYPE_ORDER, Resource, ResourceType, Snapshot
    from pointsman.xds.sotw import SOTW_WIRE
    from pointsman.xds.stream import Stream, StreamLimits
    from pointsman.xds.subscription import Request, Response
    from pointsman.xds.wire import RequestRefused, Wire

from sample_resources import assignment, cluster, ladder, listener, routes

LIMITS = StreamLimits(max_response_bytes=200, max_names=40, max_in_flight=3)
NAMES = ("*", "a", "b", "c", "ladder", "in", "in2", "main", "other", "nobody", "")
NODE = api.Node(id="fuzz", client_features=["xds.config.supports-resource-ttl", "xds.config.supports-resource-in-sotw"])
MOST_RESPONSES = 200
"""Without an input in between; the names are a dozen, each sent alone and removed alone at most."""

CDS, EDS, LDS, RDS = TYPE_ORDER


def _snapshots() -> tuple[Snapshot, ...]:
    static = {"static_clusters": ("nobody",)}
    abc = [cluster("a"), cluster("b"), cluster("c")]
    ends = [assignment("a", 1), assignment("b", 2), assignment("c", 3)]
    front = [listener("in", "main")]
    return (
        Snapshot.build(),
        Snapshot.build(abc[:1], ends[:1], front, [routes("main", "a")]),
        Snapshot.build(abc[:1], [assignment("a", 9)], front, [routes("main", "a")]),
        Snapshot.build([*abc, ladder("ladder", ["a", "b"])], ends, front, [routes("main", "ladder", "c")]),
        Snapshot.build(abc[1:], ends[1:], [listener("in", "main", port=2), listener("in2", "other")],
                       [routes("main", "b"), routes("other", "nobody")], **static),
        Snapshot.build([cluster("a", timeout_s=2), ladder("ladder", ["a"])], ends[:1], front,
                       [routes("main", "ladder")]),
        Snapshot.build([Resource.of(cluster("a"), ttl_s=3.0)], [Resource.of(ends[0], ttl_s=3.0)], front,
                       [routes("main", "a")]),
    )  # fmt: skip


SNAPSHOTS = _snapshots()


class Script:
    """Reads steps from bytes; past the end everything is zero."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def is_over(self) -> bool:
        """Tell whether nothing is left."""
        return self._place >= len(self._data)

    def number(self, limit: int) -> int:
        """Return a number under the limit."""
        return (self.take(1) or b"\0")[0] % limit

    def names(self) -> tuple[str, ...]:
        """Return up to three names."""
        return tuple(NAMES[self.number(len(NAMES))] for _ in range(self.number(4)))

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        self._place += size
        return self._data[self._place - size : self._place]


class Client:
    """What a Delta client that reads everything knows of one type."""

    def __init__(self) -> None:
        self.is_started = False
        self.held: dict[str, str] = {}
        self._is_wildcard = False
        self._names: set[str] = set()

    def wants(self, name: str) -> bool:
        """Tell whether the client asked for the name."""
        return self.is_started and (self._is_wildcard or name in self._names)

    def ask(self, request: Request) -> None:
        """Take the names of the client's own request; what it asks for once more it may have forgotten."""
        if not self.is_started:
            self._is_wildcard = not request.subscribe and request.type_url in (CDS, LDS)
            self.held = dict(request.initial_versions)
        for name in request.subscribe:
            if name == "*":
                self.held = {} if self._is_wildcard else self.held
                self._is_wildcard = True
            else:
                self._names.add(name)
                if self.is_started:
                    self.held.pop(name, None)
        for name in request.unsubscribe:
            if name == "*":
                self._is_wildcard = False
            self._names.discard(name)
        self.held = {name: version for name, version in self.held.items() if self._is_wildcard or name in self._names}
        self.is_started = True

    def take(self, response: Response) -> None:
        """Hold what came and is still wanted."""
        self.held |= {one.name: one.version for one in response.resources if self.wants(one.name)}
        for name in response.removed:
            self.held.pop(name, None)


class Run:
    """One stream under one script, with what must hold."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._wire: Wire = (DELTA_WIRE, SOTW_WIRE)[script.number(2)]
        self._now_s = 1.0
        self._stream = Stream(
            "fuzz", Refusals(), limits=LIMITS, variant=self._wire.variant, states_ttl=bool(script.number(2))
        )
        self._snapshot: Snapshot | None = None
        self._open: dict[str, Response] = {}
        self._nonces: list[str] = []
        self._refused: set[tuple[ResourceType, str, str]] = set()
        self._has_refused = False
        self._clients = {kind: Client() for kind in TYPE_ORDER}

    def run(self) -> None:
        """Do every step; the stream's end ends the run."""
        steps = (self._offer, self._ask, self._ask, self._answer, self._answer, self._raw, self._wait, self._reconsider)
        while not self._script.is_over:
            try:
                steps[self._script.number(len(steps))]()
            except RequestRefused:
                return
            if self._stream.end_reason(self._now_s) is not None:
                return
            self._send_all()
            self._look()
        if self._wire is DELTA_WIRE and not self._has_refused and self._snapshot is not None:
            self._settle(self._snapshot)

    # ---- steps

    def _offer(self) -> None:
        self._snapshot = SNAPSHOTS[self._script.number(len(SNAPSHOTS))]
        self._stream.offer(self._snapshot)

    def _ask(self) -> None:
        kind = TYPE_ORDER[self._script.number(4)]
        subscribe, unsubscribe, nonce = self._script.names(), self._script.names(), self._nonce()
        if self._wire is DELTA_WIRE:
            versions = {name: self._version(kind, name) for name in self._script.names()}
            self._receive(
                api.DeltaDiscoveryRequest(
                    type_url=kind.value,
                    resource_names_subscribe=subscribe,
                    resource_names_unsubscribe=unsubscribe,
                    initial_resource_versions=versions,
                    response_nonce=nonce,
                )
            )
        else:
            version = "1" * self._script.number(2)
            self._receive(
                api.DiscoveryRequest(
                    type_url=kind.value, resource_names=subscribe, response_nonce=nonce, version_info=version
                )
            )

    def _answer(self) -> None:
        """Answer what was sent as a client does, in any order."""
        if not self._open:
            return
        response = tuple(self._open.values())[self._script.number(len(self._open))]
        is_refusal = self._script.number(3) == 0
        names = self._script.names() if self._wire is SOTW_WIRE else ()
        message: api.DeltaDiscoveryRequest | api.DiscoveryRequest
        if self._wire is DELTA_WIRE:
            message = api.DeltaDiscoveryRequest(type_url=response.type_url.value, response_nonce=response.nonce)
        else:
            message = api.DiscoveryRequest(
                type_url=response.type_url.value, response_nonce=response.nonce, resource_names=names
            )
        if is_refusal:
            message.error_detail.code = 3
        self._receive(message)

    def _raw(self) -> None:
        self._receive(self._script.take(self._script.number(120)))

    def _wait(self) -> None:
        self._now_s += (0.5, 4.0, 6.0, 20.0)[self._script.number(4)]

    def _reconsider(self) -> None:
        self._refused.clear()
        # What a node refused outlives its streams, so only the registry forgives; here the state is looked at anew.
        self._stream.reconsider()

    def _receive(self, message: api.DeltaDiscoveryRequest | api.DiscoveryRequest | bytes) -> None:
        raw = message if isinstance(message, bytes) else message.SerializeToString()
        incoming = self._wire.decode(raw)
        if incoming.request is None:
            return
        self._stream.receive(incoming.request, self._now_s)
        client = self._clients[incoming.request.type_url]
        is_first = not client.is_started
        client.ask(incoming.request)
        answered = None if is_first else self._open.get(incoming.request.nonce)
        if answered is not None and answered.type_url is incoming.request.type_url:
            del self._open[answered.nonce]
            self._remember(answered, is_refused=incoming.request.error_text is not None)

    def _remember(self, answered: Response, *, is_refused: bool) -> None:
        """Remember content that was refused by itself until another content of the name is taken."""
        self._has_refused = self._has_refused or is_refused
        if not is_refused:
            self._clients[answered.type_url].take(answered)
            taken = {(one.type_url, one.name) for one in answered.resources}
            self._refused = {key for key in self._refused if key[:2] not in taken}
        elif len(answered.resources) == 1 and not answered.removed and self._wire is DELTA_WIRE:
            (one,) = answered.resources
            self._refused.add((one.type_url, one.name, one.version))

    def _nonce(self) -> str:
        choices = ("", "", "0", *self._nonces[-3:])
        return choices[self._script.number(len(choices))]

    def _version(self, kind: ResourceType, name: str) -> str:
        known = (self._snapshot or SNAPSHOTS[1]).of(kind).get(name)
        return known.version if known is not None and self._script.number(3) else "stale"

    # ---- what must hold

    def _send_all(self) -> None:
        for _ in range(MOST_RESPONSES):
            response = self._stream.next_response(self._now_s)
            if response is None:
                return
            self._check(response)
            self._wire.encode(response)
            self._open[response.nonce] = response
            self._nonces.append(response.nonce)
        raise AssertionError(f"{MOST_RESPONSES} responses without an input in between: the stream does not settle")

    def _settle(self, snapshot: Snapshot) -> None:
        """Take all that comes, for as long as anything may be held back; then the client has what it asked for."""
        until_s = self._now_s + 4 * LIMITS.hold_s
        for _ in range(MOST_RESPONSES):
            for response in tuple(self._open.values()):
                message = api.DeltaDiscoveryRequest(type_url=response.type_url.value, response_nonce=response.nonce)
                self._receive(message)
            self._send_all()
            if not self._open:
                if self._now_s >= until_s:
                    break
                self._now_s += 2.0
        else:
            raise AssertionError("the stream does not settle with a client that takes everything")
        for kind, client in self._clients.items():
            for name, resource in snapshot.of(kind).items():
                if client.wants(name):
                    assert client.held.get(name) == resource.version, f"{kind.label} {name} reached the client"

    def _check(self, response: Response) -> None:
        snapshot = self._snapshot
        assert snapshot is not None, "nothing is sent before a snapshot is offered"
        assert response.nonce not in self._nonces, "a nonce is new"
        known = snapshot.of(response.type_url)
        for resource in response.resources:
            assert known.get(resource.name) == resource, "what leaves is what the snapshot holds"
            key = (resource.type_url, resource.name, resource.version)
            assert key not in self._refused, f"refused content is not sent again: {key[:2]}"
        carried = [*(resource.name for resource in response.resources), *response.removed]
        assert len(carried) == len(set(carried)), "a name is in a response once"
        same_type = [one for one in self._open.values() if one.type_url is response.type_url]
        assert len(same_type) < (self._wire.variant.max_in_flight or LIMITS.max_in_flight), "what is open is bounded"
        flying = {name for one in same_type for name in (*(r.name for r in one.resources), *one.removed)}
        assert not flying & set(carried), "a name is not sent again before its answer"

    def _look(self) -> None:
        deadline_s = self._stream.deadline_s(self._now_s)
        assert deadline_s is None or deadline_s > self._now_s, "a deadline lies ahead"
        for status in self._stream.types():
            assert status.resources_held >= 0


def take(data: bytes) -> None:
    """Take one script; an exception is a finding."""
    Run(Script(data)).run()


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Change a script by bytes; sometimes put in a raw frame that was changed by fields."""
    if seed % 5 or max_size < 130:
        return bytes(atheris.Mutate(data, max_size))
    chance = random.Random(seed)
    kind = (api.DeltaDiscoveryRequest, api.DiscoveryRequest)[data[0] % 2 if data else 0]
    message = parsed(b"", kind)
    assert message is not None
    message.type_url = chance.choice(TYPE_ORDER).value  # type: ignore[attr-defined]
    change_message(message, atheris.Mutate, chance)
    frame = message.SerializeToString()[:119]
    place = chance.randint(2, max(2, len(data)))
    return (data[:place].ljust(2, b"\0") + bytes((5, len(frame))) + frame + data[place:])[:max_size]


if __name__ == "__main__":
    atheris.Setup(sys.argv, take, custom_mutator=mutate)
    atheris.Fuzz()
