"""The stream's state machine against the protocol checker, without a network: one script a point of facts-xds.

Covers subscription.py, stream.py and delta.py: each request passes as bytes, each response is checked by the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pointsman.xds import api
from pointsman.xds.delta import RequestRefused, decode, encode
from pointsman.xds.fake_client import CDS, EDS, LDS, RDS, FakeEnvoy, ProtocolChecker, Received
from pointsman.xds.references import ResourceMessage
from pointsman.xds.refusals import Refusals
from pointsman.xds.snapshot import Resource, ResourceType, Snapshot
from pointsman.xds.status import EndReason, Outcome, ResourceAcked, ResourceRefused, XdsEvent
from pointsman.xds.stream import Stream, StreamLimits
from sample_resources import assignment, cluster, ladder, listener, listener_of, manager, routes, snapshot


class Wire:
    """A client and a stream joined without a network, under virtual time."""

    def __init__(
        self,
        offered: Snapshot | None = None,
        *,
        limits: StreamLimits | None = None,
        before: Wire | None = None,
        is_order_checked: bool = True,
    ) -> None:
        self.now_s = 100.0
        self.refusals: Refusals = before.refusals if before is not None else Refusals()
        self.stream = Stream("node", self.refusals, limits=limits or StreamLimits())
        known = before.client if before is not None else None
        self.client: ProtocolChecker = ProtocolChecker("node", before=known, is_order_checked=is_order_checked)
        self.events: list[XdsEvent] = []
        if offered is not None:
            self.stream.offer(offered)

    def send(self, *requests: api.DeltaDiscoveryRequest) -> None:
        for request in requests:
            incoming = decode(request.SerializeToString())
            assert incoming.request is not None
            self.events.extend(self.stream.receive(incoming.request, self.now_s))

    def outcome(self) -> Outcome:
        return self.stream.outcome

    def raw(self) -> Iterable[api.DeltaDiscoveryResponse]:
        while (response := self.stream.next_response(self.now_s)) is not None:
            yield api.DeltaDiscoveryResponse.FromString(encode(response))

    def receive(self) -> list[Received]:
        """Take, unanswered, all that the server sends now."""
        return [self.client.check(response) for response in self.raw()]

    def receive_one(self) -> Received:
        (received,) = self.receive()
        return received

    def acknowledge(self, *received: Received) -> None:
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

    def follow(self, envoy: FakeEnvoy) -> list[tuple[str, list[str], list[str]]]:
        """Let a fake Envoy answer until the server has nothing more to say; return what was sent."""
        log: list[tuple[str, list[str], list[str]]] = []
        while (response := self.stream.next_response(self.now_s)) is not None:
            message = api.DeltaDiscoveryResponse.FromString(encode(response))
            log.append(
                (
                    ResourceType(message.type_url).label,
                    [resource.name for resource in message.resources],
                    list(message.removed_resources),
                )
            )
            self.send(*envoy.react(message))
        return log


def names_of(received: Iterable[Received]) -> list[tuple[str, list[str], list[str]]]:
    return [(one.type_url.label, sorted(one.resources), sorted(one.removed)) for one in received]


def started(offered: Snapshot, **options: object) -> tuple[Wire, FakeEnvoy]:
    wire = Wire(offered, **options)  # type: ignore[arg-type]
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    wire.follow(envoy)
    return wire, envoy


def two_routes(*clusters: str, names: tuple[str, ...] = ("main",)) -> Snapshot:
    return Snapshot.build(
        [cluster(name) for name in clusters],
        [assignment(name) for name in clusters],
        [listener(f"in-{name}", name) for name in names],
        [routes(name, *clusters) for name in names],
    )


# ---- streams, nonces, answers


def test_envoy_gets_everything_in_order() -> None:
    wire = Wire(snapshot("a", "b"))
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    assert wire.follow(envoy) == [
        ("CDS", ["a", "b"], []),
        ("EDS", ["a", "b"], []),
        ("LDS", ["in"], []),
        ("RDS", ["main"], []),
    ]
    assert wire.outcome() is Outcome.ACKNOWLEDGED
    assert wire.stream.acknowledged_snapshot == snapshot("a", "b").version


def test_point_4_nonces_are_never_used_twice_in_a_stream() -> None:
    wire, envoy = started(snapshot("a"))
    for port in range(1, 20):
        wire.stream.offer(snapshot("a", ports={"a": port}))
        wire.follow(envoy)  # the checker refuses a repeated nonce
    assert wire.client.responses == 4 + 19


def test_point_4_nonce_of_an_earlier_stream_is_an_ordinary_first_request() -> None:
    wire = Wire(snapshot("a"))
    request = wire.client.subscribe(CDS)
    request.response_nonce = "1"
    wire.send(request)
    assert names_of(wire.receive()) == [("CDS", ["a"], [])]


def test_point_4_nack_of_an_earlier_stream_refuses_nothing() -> None:
    wire = Wire(snapshot("a"))
    request = wire.client.subscribe(CDS)
    request.response_nonce = "1"
    request.error_detail.message = "old"
    wire.send(request)
    assert wire.events == []
    assert names_of(wire.receive()) == [("CDS", ["a"], [])]


def test_point_7_acknowledgement_gets_no_response() -> None:
    wire = Wire(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    wire.acknowledge(wire.receive_one())
    assert wire.receive() == []


def test_point_9_newer_content_after_a_refusal_is_sent_and_accepted() -> None:
    wire = Wire(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    wire.send(wire.client.refuse(wire.receive_one(), "no"))
    assert wire.receive() == []
    newer = Snapshot.build([cluster("a", timeout_s=2)], [assignment("a")])
    wire.stream.offer(newer)
    wire.acknowledge(wire.receive_one())
    assert wire.stream.acknowledged_versions[CDS] == newer.type_versions[CDS]


def test_trap_20_stale_answer_is_ignored_and_counted() -> None:
    wire = Wire(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    received = wire.receive_one()
    wire.acknowledge(received)
    again = api.DeltaDiscoveryRequest(type_url=CDS.value, response_nonce=received.nonce)
    unknown = api.DeltaDiscoveryRequest(type_url=CDS.value, response_nonce="nonsense")
    wire.send(again, unknown)
    assert wire.receive() == []
    assert wire.stream.stale_requests == 2


def test_first_request_of_each_type_is_answered_though_there_is_nothing() -> None:
    wire = Wire(Snapshot.build())
    for kind in (CDS, EDS, LDS, RDS):
        assert names_of(wire.subscribe(kind)) == [(kind.label, [], [])]


def test_nothing_is_sent_before_a_snapshot_is_offered() -> None:
    wire = Wire()
    wire.send(wire.client.subscribe(CDS))
    assert wire.receive() == []
    wire.stream.offer(snapshot("a"))
    assert names_of(wire.receive()) == [("CDS", ["a"], [])]


# ---- names


def test_point_14_unsubscribed_and_subscribed_again_is_sent_again() -> None:
    wire = Wire(snapshot("a"))
    wire.subscribe(EDS, "a")
    wire.send(wire.client.unsubscribe(EDS, "a"))
    assert names_of(wire.subscribe(EDS, "a")) == [("EDS", ["a"], [])]


def test_point_16_first_request_without_names_means_all_for_cds_and_lds_only() -> None:
    wire = Wire(snapshot("a"))
    assert names_of(wire.subscribe(CDS)) == [("CDS", ["a"], [])]
    assert names_of(wire.subscribe(LDS)) == [("LDS", ["in"], [])]
    assert names_of(wire.subscribe(EDS)) == [("EDS", [], [])]
    assert names_of(wire.subscribe(RDS)) == [("RDS", [], [])]


def test_point_17_wildcard_given_up_keeps_the_explicit_name() -> None:
    wire = Wire(snapshot("a", "b"))
    wire.subscribe(CDS, "*", "a")
    wire.send(wire.client.unsubscribe(CDS, "*"))
    changed = Snapshot.build([cluster("a", timeout_s=2), cluster("b", timeout_s=2)], [assignment("a"), assignment("b")])
    wire.stream.offer(changed)
    assert names_of(wire.receive()) == [("CDS", ["a"], [])]


def test_point_19_name_that_appears_later_is_sent_then() -> None:
    wire = Wire(snapshot("a"))
    wire.subscribe(EDS, "b")
    wire.stream.offer(snapshot("a", "b"))
    assert names_of(wire.receive()) == [("EDS", ["b"], [])]


def test_point_28_names_count_though_the_nonce_is_stale() -> None:
    wire = Wire(snapshot("a", "b"))
    wire.subscribe(EDS, "a")
    request = wire.client.subscribe(EDS, "b")
    request.response_nonce = "stale"
    wire.send(request)
    assert names_of(wire.receive()) == [("EDS", ["b"], [])]


def test_point_28_names_count_on_an_acknowledgement() -> None:
    wire = Wire(snapshot("a", "b"))
    wire.send(wire.client.subscribe(EDS, "a"))
    both = wire.client.acknowledge(wire.receive_one())
    both.MergeFrom(wire.client.subscribe(EDS, "b"))
    wire.send(both)
    assert names_of(wire.receive()) == [("EDS", ["b"], [])]
    assert wire.stream.stale_requests == 0


def test_point_30_subscribed_again_is_sent_again() -> None:
    wire = Wire(snapshot("a"))
    wire.subscribe(EDS, "a")
    assert names_of(wire.subscribe(EDS, "a")) == [("EDS", ["a"], [])]


def test_point_30_wildcard_again_sends_all_again() -> None:
    wire = Wire(snapshot("a", "b"))
    wire.subscribe(CDS)
    assert names_of(wire.subscribe(CDS, "*")) == [("CDS", ["a", "b"], [])]


def test_point_31_superfluous_unsubscribe_is_ignored() -> None:
    wire = Wire(snapshot("a"))
    wire.subscribe(EDS, "a")
    wire.send(wire.client.unsubscribe(EDS, "never"))
    assert wire.receive() == []


def test_point_31_unsubscribe_gets_no_response_and_no_further_content() -> None:
    wire = Wire(snapshot("a"))
    wire.subscribe(EDS, "a")
    wire.send(wire.client.unsubscribe(EDS, "a"))
    wire.stream.offer(snapshot("a", ports={"a": 1}))
    assert wire.receive() == []


def test_point_31_name_given_up_under_a_wildcard_is_answered() -> None:
    wire = Wire(snapshot("a"))
    wire.subscribe(CDS, "*", "a", "missing")
    wire.send(wire.client.unsubscribe(CDS, "a", "missing"))
    assert names_of(wire.receive()) == [("CDS", ["a"], ["missing"])]


def test_point_32_missing_name_is_answered_at_once_and_once() -> None:
    wire = Wire(snapshot("a"))
    assert names_of(wire.subscribe(EDS, "missing")) == [("EDS", [], ["missing"])]
    wire.stream.offer(snapshot("a", ports={"a": 1}))
    assert wire.receive() == []


def test_point_33_later_request_without_names_changes_nothing() -> None:
    wire = Wire(snapshot("a", "b"))
    wire.subscribe(CDS, "a")
    wire.send(api.DeltaDiscoveryRequest(type_url=CDS.value))
    assert wire.receive() == []


def test_point_34_only_what_changed_is_sent() -> None:
    wire, envoy = started(snapshot("a", "b"))
    wire.stream.offer(snapshot("a", "b", ports={"b": 1}))
    assert wire.follow(envoy) == [("EDS", ["b"], [])]


def test_point_37_name_asked_for_is_answered_alone_though_others_are_unanswered() -> None:
    wire = Wire(snapshot("a", "b"))
    wire.send(wire.client.subscribe(EDS, "a"))
    wire.receive()
    wire.send(wire.client.subscribe(EDS, "b"))
    assert names_of(wire.receive()) == [("EDS", ["b"], [])]


# ---- reconnects


def test_point_29_unchanged_content_is_not_sent_after_a_reconnect() -> None:
    before, _ = started(snapshot("a", "b"))
    wire = Wire(snapshot("a", "b"), before=before)
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    assert all(not names and not removed for _, names, removed in wire.follow(envoy))
    assert wire.client.resources_received == 0
    assert wire.outcome() is Outcome.ACKNOWLEDGED


def test_point_29_only_what_changed_while_away_is_sent() -> None:
    before, _ = started(snapshot("a", "b"))
    wire = Wire(snapshot("a", "b", used="a"), before=before)
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    sent = [entry for entry in wire.follow(envoy) if entry[1] or entry[2]]
    assert sent == [("RDS", ["main"], [])]


def test_point_29_what_is_gone_is_removed_after_the_routes_were_replaced() -> None:
    before, _ = started(snapshot("a", "b"))
    wire = Wire(snapshot("a"), before=before)
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    sent = [entry for entry in wire.follow(envoy) if entry[1] or entry[2]]
    assert sent == [("RDS", ["main"], []), ("CDS", [], ["b"])]


def test_point_29_names_that_are_not_subscribed_are_removed() -> None:
    before = Wire(snapshot("a", "b"))
    before.subscribe(EDS, "a", "b")
    wire = Wire(snapshot("a", "b"), before=before, limits=StreamLimits(hold_s=1))
    wire.send(wire.client.subscribe(EDS, "a"))
    assert names_of(wire.receive()) == [("EDS", [], [])]
    wire.now_s += 1
    assert names_of(wire.receive()) == [("EDS", [], ["b"])]


# ---- order


def test_point_21_endpoints_follow_a_changed_cluster_though_unchanged() -> None:
    wire, envoy = started(snapshot("a", "b"))
    changed = Snapshot.build(
        [cluster("a", timeout_s=2), cluster("b")],
        [assignment("a", 9_000), assignment("b", 9_000)],
        [listener("in", "main")],
        [routes("main", "a", "b")],
    )
    wire.stream.offer(changed)
    assert names_of(wire.receive()) == [("CDS", ["a"], []), ("EDS", ["a"], [])]
    assert envoy.nacks == 0


def test_point_21_routes_follow_a_changed_listener_though_unchanged() -> None:
    wire, envoy = started(snapshot("a"))
    moved = Snapshot.build(
        [cluster("a")], [assignment("a", 9_000)], [listener("in", "main", port=11_000)], [routes("main", "a")]
    )
    wire.stream.offer(moved)
    assert wire.follow(envoy) == [("LDS", ["in"], []), ("RDS", ["main"], [])]


def test_known_bug_44_route_waits_for_its_new_cluster_and_its_endpoints() -> None:
    wire, _ = started(snapshot("a"))
    wire.stream.offer(snapshot("a", "b"))
    (clusters,) = wire.receive()
    assert list(clusters.resources) == ["b"]
    wire.acknowledge(clusters)
    assert wire.receive() == []  # endpoints are not asked for yet: the cluster is warming
    wire.send(wire.client.subscribe(EDS, "b"))
    (endpoints,) = wire.receive()
    assert list(endpoints.resources) == ["b"]
    wire.acknowledge(endpoints)
    assert names_of(wire.receive()) == [("RDS", ["main"], [])]


def test_point_24_route_to_a_new_ladder_waits_for_its_rungs() -> None:
    wire, envoy = started(snapshot("a"))
    with_ladder = Snapshot.build(
        [cluster("a"), cluster("b"), ladder("l", ["a", "b"])],
        [assignment("a", 9_000), assignment("b")],
        [listener("in", "main")],
        [routes("main", "l")],
    )
    wire.stream.offer(with_ladder)
    assert wire.follow(envoy) == [("CDS", ["b", "l"], []), ("EDS", ["b"], []), ("RDS", ["main"], [])]


def test_point_24_listener_with_inline_routes_waits_for_its_cluster() -> None:
    wire = Wire(
        Snapshot.build([cluster("a")], [assignment("a")], [listener_of("in", manager(route_config=routes("r", "a")))])
    )
    wire.send(wire.client.subscribe(CDS), wire.client.subscribe(LDS))
    (clusters,) = wire.receive()
    assert clusters.type_url is CDS
    wire.acknowledge(clusters)
    assert wire.receive() == []
    assert names_of(wire.subscribe(EDS, "a")) == [("EDS", ["a"], []), ("LDS", ["in"], [])]


def test_point_24_hold_ends_after_its_limit() -> None:
    wire, _ = started(snapshot("a"), limits=StreamLimits(hold_s=3), is_order_checked=False)
    wire.stream.offer(snapshot("a", "b"))
    (clusters,) = wire.receive()
    assert wire.stream.deadline_s(wire.now_s) == wire.now_s + 3
    wire.now_s += 2.9
    assert wire.receive() == []
    wire.now_s += 0.1
    assert names_of(wire.receive()) == [("RDS", ["main"], [])]
    assert clusters.type_url is CDS


def test_point_24_client_that_asks_for_clusters_after_routes_is_not_held() -> None:
    wire = Wire(snapshot("a"))
    assert names_of(wire.subscribe(LDS, "in")) == [("LDS", ["in"], [])]
    assert names_of(wire.subscribe(RDS, "main")) == [("RDS", ["main"], [])]
    assert names_of(wire.subscribe(CDS, "a")) == [("CDS", ["a"], [])]
    assert names_of(wire.subscribe(EDS, "a")) == [("EDS", ["a"], [])]
    assert wire.outcome() is Outcome.ACKNOWLEDGED


def test_point_23_cluster_goes_after_the_routes_that_left_it_were_acknowledged() -> None:
    wire, _ = started(snapshot("a", "b"))
    wire.stream.offer(snapshot("a"))
    (changed,) = wire.receive()
    assert names_of([changed]) == [("RDS", ["main"], [])]
    wire.acknowledge(changed)
    (removal,) = wire.receive()
    assert names_of([removal]) == [("CDS", [], ["b"])]
    wire.acknowledge(removal)
    assert names_of(wire.receive()) == [("EDS", [], ["b"])]  # still asked for; Envoy would have given it up


def test_point_23_replaced_cluster_is_made_before_the_old_one_breaks() -> None:
    wire, envoy = started(snapshot("a"))
    wire.stream.offer(snapshot("b"))
    assert wire.follow(envoy) == [
        ("CDS", ["b"], []),
        ("EDS", ["b"], []),
        ("RDS", ["main"], []),
        ("CDS", [], ["a"]),
    ]


def test_point_23_renamed_routes_go_after_the_listener_left_them() -> None:
    wire, _ = started(two_routes("a", names=("old",)))
    renamed = Snapshot.build([cluster("a")], [assignment("a")], [listener("in-old", "new")], [routes("new", "a")])
    wire.stream.offer(renamed)
    (changed,) = wire.receive()
    assert names_of([changed]) == [("LDS", ["in-old"], [])]
    wire.acknowledge(changed)
    assert wire.receive() == []  # the new routes are not asked for yet
    assert names_of(wire.subscribe(RDS, "new")) == [("RDS", ["new"], []), ("RDS", [], ["old"])]


def test_point_23_removed_listener_leaves_with_the_changes() -> None:
    wire, envoy = started(two_routes("a", names=("one", "two")))
    wire.stream.offer(two_routes("a", names=("one",)))
    assert wire.follow(envoy) == [("LDS", [], ["in-two"])]


def test_point_23_cluster_of_refused_routes_stays() -> None:
    wire = Wire(snapshot("a", "b"))
    refused = ""
    envoy = FakeEnvoy(wire.client, judge=lambda kind, name, message: refused if kind is RDS else None)
    wire.send(*envoy.start())
    wire.follow(envoy)
    refused = "bad regex"
    wire.stream.offer(snapshot("b"))
    assert wire.follow(envoy) == [("RDS", ["main"], [])]
    wire.now_s += 1_000
    assert wire.receive() == []
    assert "a" in wire.client.held(CDS)
    assert wire.outcome() is Outcome.REFUSED


def test_point_25_superseded_content_is_never_sent() -> None:
    wire = Wire(snapshot("a"))
    wire.subscribe(EDS, "a")
    for port in range(1, 100):
        wire.stream.offer(snapshot("a", ports={"a": port}))
    received = wire.receive_one()
    assert received.versions["a"] == snapshot("a", ports={"a": 99}).of(EDS)["a"].version


def test_point_38_client_that_does_not_answer_has_one_response_a_name() -> None:
    wire = Wire(snapshot("a"))
    wire.subscribe(EDS, "a")
    wire.stream.offer(snapshot("a", ports={"a": 1}))
    first = wire.receive_one()
    for port in range(2, 100):
        wire.stream.offer(snapshot("a", ports={"a": port}))
        assert wire.receive() == []
    wire.acknowledge(first)
    assert wire.receive_one().versions["a"] == snapshot("a", ports={"a": 99}).of(EDS)["a"].version


# ---- refusals


def test_point_8_refusal_is_told_by_error_detail_alone() -> None:
    wire = Wire(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    request = wire.client.refuse(wire.receive_one(), "")
    request.ClearField("error_detail")
    request.error_detail.SetInParent()
    wire.send(request)
    (event,) = wire.events
    assert isinstance(event, ResourceRefused)
    assert event.text == "code 0 without a text"
    assert event.is_final


def test_point_8_refused_content_is_not_sent_again_to_the_node_after_a_reconnect() -> None:
    before = Wire(snapshot("a"))
    before.send(before.client.subscribe(CDS))
    before.send(before.client.refuse(before.receive_one(), "no"))
    wire = Wire(snapshot("a"), before=before)
    assert names_of(wire.subscribe(CDS)) == [("CDS", [], [])]
    wire.stream.offer(Snapshot.build([cluster("a", timeout_s=2)], [assignment("a")]))
    assert names_of(wire.receive()) == [("CDS", ["a"], [])]


def test_trap_21_end_of_the_refusals_text_is_kept() -> None:
    wire = Wire(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    wire.send(wire.client.refuse(wire.receive_one(), "goo.gle/debug " + "dump " * 10_000 + "\nthe reason"))
    (event,) = wire.events
    assert isinstance(event, ResourceRefused)
    assert event.text.endswith("dump the reason")
    assert len(event.text) < 1_100
    assert wire.stream.types()[0].refused[0].text == event.text


def test_point_35_one_bad_resource_of_many_is_found_and_the_others_are_taken() -> None:
    names = [f"c{number:02}" for number in range(40)]
    wire = Wire(Snapshot.build([cluster(name) for name in names], [assignment(name) for name in names]))
    envoy = FakeEnvoy(wire.client, judge=lambda _kind, name, _message: "bad port" if name == "c17" else None)
    wire.send(*envoy.start())
    wire.follow(envoy)
    assert sorted(wire.client.held(CDS)) == [name for name in names if name != "c17"]
    assert envoy.nacks == 2
    assert [refusal.name for refusal in wire.stream.types()[0].refused] == ["c17"]
    finals = [event.is_final for event in wire.events if isinstance(event, ResourceRefused)]
    assert finals == [False, True]
    assert wire.outcome() is Outcome.REFUSED


def test_point_35_refused_response_counts_as_not_applied() -> None:
    wire = Wire(snapshot("a", "b"))
    wire.send(wire.client.subscribe(CDS))
    wire.send(wire.client.refuse(wire.receive_one(), "no"))
    assert wire.stream.types()[0].resources_held == 0
    assert wire.stream.types()[0].acknowledged_version is None


def test_refused_removal_is_not_repeated() -> None:
    wire = Wire(snapshot("a"))
    wire.subscribe(LDS)
    wire.stream.offer(Snapshot.build())
    wire.send(wire.client.refuse(wire.receive_one(), "in use"))
    assert wire.receive() == []


def test_route_to_a_refused_cluster_is_withheld_and_the_old_one_stays() -> None:
    wire = Wire(snapshot("a"))
    envoy = FakeEnvoy(wire.client, judge=lambda _kind, name, _message: "bad" if name == "b" else None)
    wire.send(*envoy.start())
    wire.follow(envoy)
    held = wire.client.versions(RDS)["main"]
    wire.stream.offer(snapshot("a", "b"))
    wire.follow(envoy)
    wire.now_s += 1_000
    assert wire.follow(envoy) == []
    assert wire.client.versions(RDS)["main"] == held
    assert wire.outcome() is Outcome.REFUSED
    wire.stream.offer(snapshot("a", used="a"))
    wire.follow(envoy)
    assert wire.outcome() is Outcome.ACKNOWLEDGED


def test_fresh_client_with_a_refused_cluster_gets_its_routes_after_the_limit() -> None:
    wire = Wire(snapshot("a", "b"), limits=StreamLimits(hold_s=2), is_order_checked=False)
    envoy = FakeEnvoy(wire.client, judge=lambda _kind, name, _message: "bad" if name == "b" else None)
    wire.send(*envoy.start())
    wire.follow(envoy)
    assert "main" not in wire.client.held(RDS)
    wire.now_s += 2
    assert wire.follow(envoy) == [("RDS", ["main"], [])]


def test_forgiven_content_is_sent_once_more() -> None:
    wire = Wire(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    wire.send(wire.client.refuse(wire.receive_one(), "address in use"))
    wire.refusals.forgive_all()
    wire.stream.reconsider()
    assert [resource.name for response in wire.raw() for resource in response.resources] == ["a"]


# ---- bounds


def test_point_41_big_push_is_split_and_one_bigger_resource_goes_alone() -> None:
    limits = StreamLimits(max_response_bytes=1_000)
    names = [f"c{number:03}" for number in range(200)]
    offered = Snapshot.build([cluster(name) for name in names], [assignment(name) for name in names])
    wire = Wire(offered, limits=limits)
    wire.send(wire.client.subscribe(CDS))
    received = wire.receive()
    assert len(received) > 1
    assert sorted(name for one in received for name in one.resources) == names
    wire.acknowledge(*received)
    big = Snapshot.build([cluster("c000"), cluster("z")], [assignment("c000"), assignment("z", *range(1, 500))])
    wire.stream.offer(big)
    wire.send(wire.client.subscribe(EDS, "z", "c000"))
    assert [list(one.resources) for one in wire.receive() if one.type_url is EDS] == [["c000"], ["z"]]


def test_client_that_never_acknowledges_is_ended_after_the_limit() -> None:
    wire = Wire(snapshot("a"), limits=StreamLimits(acknowledge_s=30))
    wire.send(wire.client.subscribe(CDS))
    wire.receive()
    wire.now_s += 29.9
    assert wire.stream.end_reason(wire.now_s) is None
    wire.now_s += 0.1
    assert wire.stream.end_reason(wire.now_s) is EndReason.NEVER_ACKNOWLEDGED


def test_client_that_asks_for_too_many_names_is_ended() -> None:
    wire = Wire(snapshot("a"), limits=StreamLimits(max_names=10))
    wire.send(wire.client.subscribe(EDS, *(f"n{number}" for number in range(10))))
    assert wire.stream.end_reason(wire.now_s) is None
    wire.send(wire.client.subscribe(EDS, "one-more"))
    assert wire.stream.end_reason(wire.now_s) is EndReason.TOO_MANY_NAMES


def test_client_that_claims_too_many_names_is_ended() -> None:
    wire = Wire(snapshot("a"), limits=StreamLimits(max_names=10))
    request = wire.client.subscribe(CDS)
    request.initial_resource_versions.update({f"n{number}": "v" for number in range(11)})
    wire.send(request)
    assert wire.stream.end_reason(wire.now_s) is EndReason.TOO_MANY_NAMES


def test_unanswered_responses_are_bounded() -> None:
    wire = Wire(snapshot("a"), limits=StreamLimits(max_in_flight=3))
    for number in range(10):
        wire.send(wire.client.subscribe(EDS, f"missing-{number}"))
        wire.receive()
    assert wire.stream.types()[1].responses_sent == 3


def test_acknowledgement_is_an_event_with_its_round_trip() -> None:
    wire = Wire(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    received = wire.receive_one()
    wire.now_s += 0.25
    wire.acknowledge(received)
    assert wire.events == [ResourceAcked("node", CDS, received.version, ("a",), (), 250.0)]


# ---- properties


@st.composite
def _snapshots(draw: st.DrawFn) -> Snapshot:
    pool = ["a", "b", "c", "d"]
    names = draw(st.lists(st.sampled_from(pool), min_size=1, unique=True))
    clusters: list[api.Cluster] = [cluster(name, timeout_s=draw(st.integers(1, 2))) for name in names]
    targets = list(names)
    if draw(st.booleans()):
        clusters.append(ladder("ladder", draw(st.lists(st.sampled_from(names), min_size=1, unique=True))))
        targets.append("ladder")
    route_names = draw(st.lists(st.sampled_from(["r1", "r2"]), min_size=1, unique=True))
    return Snapshot.build(
        clusters,
        [assignment(name, draw(st.integers(1, 2))) for name in names],
        [listener(f"l{number}", name) for number, name in enumerate(route_names)],
        [routes(name, *draw(st.lists(st.sampled_from(targets), unique=True))) for name in route_names],
    )


def _random_judge(
    data: st.DataObject, offered: list[Snapshot]
) -> Callable[[ResourceType, str, ResourceMessage], str | None]:
    def judge(kind: ResourceType, name: str, message: ResourceMessage) -> str | None:
        # A verdict is a property of the content, as in Envoy.
        return "bad" if (kind, Resource.of(message).version) in bad else None

    everything = sorted({(kind, r.version) for one in offered for kind in one.resources for r in one.of(kind).values()})
    bad = set(data.draw(st.lists(st.sampled_from(everything), max_size=2)))
    return judge


@settings(max_examples=100, deadline=None)
@given(offered=st.lists(_snapshots(), min_size=1, max_size=5), data=st.data())
def test_whatever_is_published_and_however_slowly_it_is_answered_the_protocol_holds(
    offered: list[Snapshot], data: st.DataObject
) -> None:
    wire = Wire(offered[0])
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    for following in offered[1:]:
        for _ in range(data.draw(st.integers(0, 6))):
            response = wire.stream.next_response(wire.now_s)
            if response is not None:
                wire.send(*envoy.react(api.DeltaDiscoveryResponse.FromString(encode(response))))
        if data.draw(st.booleans()):
            wire = Wire(following, before=wire)
            envoy = FakeEnvoy(wire.client)
            wire.send(*envoy.start())
        wire.stream.offer(following)
    wire.follow(envoy)
    assert wire.outcome() is Outcome.ACKNOWLEDGED
    last = offered[-1]
    for kind in (CDS, LDS):
        assert dict(wire.client.versions(kind)) == {name: r.version for name, r in last.of(kind).items()}
    for kind in (EDS, RDS):
        held = wire.client.versions(kind)
        assert {name: held[name] for name in wire.client.needed(kind)} == {
            name: r.version for name, r in last.of(kind).items()
        }


@settings(max_examples=100, deadline=None)
@given(offered=st.lists(_snapshots(), min_size=1, max_size=4), data=st.data())
def test_whatever_is_refused_the_server_settles_and_never_repeats_it(
    offered: list[Snapshot], data: st.DataObject
) -> None:
    # Order is not checked: a client that refused a cluster is sent the routes after the limit if it has none.
    wire = Wire(offered[0], is_order_checked=False)
    envoy = FakeEnvoy(wire.client, judge=_random_judge(data, offered))
    wire.send(*envoy.start())
    for following in (*offered[1:], None):
        for _ in range(3):
            wire.follow(envoy)
            wire.now_s += 10
        assert wire.outcome() is not Outcome.PENDING or "main" in wire.client.needed(RDS)
        if following is not None:
            wire.stream.offer(following)
    assert wire.stream.next_response(wire.now_s) is None


def test_bytes_that_do_not_parse_are_refused() -> None:
    with pytest.raises(RequestRefused) as caught:
        decode(b"\xff\xff\xff")
    assert caught.value.reason is EndReason.MALFORMED


def test_point_2_request_without_a_type_is_refused_and_of_an_unknown_type_is_none() -> None:
    with pytest.raises(RequestRefused) as caught:
        decode(b"")
    assert caught.value.reason is EndReason.TYPE_MISSING
    assert decode(api.DeltaDiscoveryRequest(type_url="x").SerializeToString()).request is None
