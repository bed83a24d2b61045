"""The stream in both variants when the client refuses, or goes over a bound (xDS point 8, 35, 38, 41)."""

from __future__ import annotations

from joined_stream import JoinedStream, both_variants, names_of
from pointsman.xds.fake_client import CDS, EDS, LDS, RDS, FakeEnvoy
from pointsman.xds.snapshot import Snapshot
from pointsman.xds.status import EndReason, Outcome, ResourceAcked, ResourceRefused
from pointsman.xds.stream import StreamLimits
from sample_resources import assignment, cluster, snapshot

# ---- refusals


@both_variants
def test_point_8_refusal_is_told_by_error_detail_alone(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), variant=variant)
    wire.send(wire.client.subscribe(CDS))
    request = wire.client.refuse(wire.receive_one(), "")
    request.ClearField("error_detail")
    request.error_detail.SetInParent()
    wire.send(request)
    (event,) = wire.events
    assert isinstance(event, ResourceRefused)
    assert event.text == "code 0 without a text"
    assert event.is_final


@both_variants
def test_point_8_refused_content_is_not_sent_again_to_the_node_after_a_reconnect(variant: str) -> None:
    before = JoinedStream(snapshot("a"), variant=variant)
    before.send(before.client.subscribe(CDS))
    before.send(
        before.client.refuse(before.receive_one(), "no")
    )  # it took nothing: it says so, and may be told nothing
    wire = JoinedStream(snapshot("a"), before=before, variant=variant)
    assert names_of(wire.subscribe(CDS)) == [("CDS", [], [])]
    wire.stream.offer(Snapshot.build([cluster("a", timeout_s=2)], [assignment("a")]))
    assert names_of(wire.receive()) == [("CDS", ["a"], [])]


@both_variants
def test_trap_21_end_of_the_refusals_text_is_kept(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), variant=variant)
    wire.send(wire.client.subscribe(CDS))
    wire.send(wire.client.refuse(wire.receive_one(), "goo.gle/debug " + "dump " * 10_000 + "\nthe reason"))
    (event,) = wire.events
    assert isinstance(event, ResourceRefused)
    assert event.text.endswith("dump the reason")
    assert len(event.text) < 1_100
    assert wire.stream.types()[0].refused[0].text == event.text


@both_variants
def test_point_35_one_bad_resource_of_many_is_found_and_the_others_are_taken(variant: str) -> None:
    names = [f"c{number:02}" for number in range(40)]
    wire = JoinedStream(
        Snapshot.build([cluster(name) for name in names], [assignment(name) for name in names]), variant=variant
    )
    envoy = FakeEnvoy(wire.client, judge=lambda _kind, name, _message: "bad port" if name == "c17" else None)
    wire.send(*envoy.start())
    wire.follow(envoy)
    assert sorted(wire.client.held(CDS)) == [name for name in names if name != "c17"]
    assert envoy.nacks == 2
    assert [refusal.name for refusal in wire.stream.types()[0].refused] == ["c17"]
    finals = [event.is_final for event in wire.events if isinstance(event, ResourceRefused)]
    assert finals == [False, True]
    assert wire.outcome() is Outcome.REFUSED


@both_variants
def test_point_35_refused_response_counts_as_not_applied(variant: str) -> None:
    wire = JoinedStream(snapshot("a", "b"), variant=variant)
    wire.send(wire.client.subscribe(CDS))
    wire.send(wire.client.refuse(wire.receive_one(), "no"))
    assert wire.stream.types()[0].resources_held == 0
    assert wire.stream.types()[0].acknowledged_version is None


@both_variants
def test_refused_removal_is_not_repeated(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), variant=variant)
    wire.subscribe(LDS)
    wire.stream.offer(Snapshot.build())
    wire.send(wire.client.refuse(wire.receive_one(), "in use"))
    assert wire.receive() == []


@both_variants
def test_route_to_a_refused_cluster_is_withheld_and_the_old_one_stays(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), variant=variant)
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


@both_variants
def test_fresh_client_with_a_refused_cluster_gets_its_routes_after_the_limit(variant: str) -> None:
    wire = JoinedStream(snapshot("a", "b"), limits=StreamLimits(hold_s=2), is_order_checked=False, variant=variant)
    envoy = FakeEnvoy(wire.client, judge=lambda _kind, name, _message: "bad" if name == "b" else None)
    wire.send(*envoy.start())
    wire.follow(envoy)
    assert "main" not in wire.client.held(RDS)
    wire.now_s += 2
    assert wire.follow(envoy) == [("RDS", ["main"], [])]


@both_variants
def test_forgiven_content_is_sent_once_more(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), variant=variant)
    wire.send(wire.client.subscribe(CDS))
    wire.send(wire.client.refuse(wire.receive_one(), "address in use"))
    wire.refusals.forgive_all()
    wire.stream.reconsider()
    (response,) = wire.raw()
    assert [entry.name for entry in wire.client.read(response).entries] == ["a"]


# ---- bounds


def test_point_41_big_push_is_split_and_one_bigger_resource_goes_alone() -> None:
    limits = StreamLimits(max_response_bytes=1_000)
    names = [f"c{number:03}" for number in range(200)]
    offered = Snapshot.build([cluster(name) for name in names], [assignment(name) for name in names])
    wire = JoinedStream(offered, limits=limits)
    wire.send(wire.client.subscribe(CDS))
    received = wire.receive()
    assert len(received) > 1
    assert sorted(name for one in received for name in one.resources) == names
    wire.acknowledge(*received)
    big = Snapshot.build([cluster("c000"), cluster("z")], [assignment("c000"), assignment("z", *range(1, 500))])
    wire.stream.offer(big)
    wire.send(wire.client.subscribe(EDS, "z", "c000"))
    assert [list(one.resources) for one in wire.receive() if one.type_url is EDS] == [["c000"], ["z"]]


@both_variants
def test_client_that_never_acknowledges_is_ended_after_the_limit(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), limits=StreamLimits(acknowledge_s=30), variant=variant)
    wire.send(wire.client.subscribe(CDS))
    wire.receive()
    wire.now_s += 29.9
    assert wire.stream.end_reason(wire.now_s) is None
    wire.now_s += 0.1
    assert wire.stream.end_reason(wire.now_s) is EndReason.NEVER_ACKNOWLEDGED


@both_variants
def test_client_that_asks_for_too_many_names_is_ended(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), limits=StreamLimits(max_names=10), variant=variant)
    wire.send(wire.client.subscribe(EDS, *(f"n{number}" for number in range(10))))
    assert wire.stream.end_reason(wire.now_s) is None
    wire.send(wire.client.subscribe(EDS, "one-more"))
    assert wire.stream.end_reason(wire.now_s) is EndReason.TOO_MANY_NAMES


def test_client_that_claims_too_many_names_is_ended() -> None:
    wire = JoinedStream(snapshot("a"), limits=StreamLimits(max_names=10))
    request = wire.client.subscribe(CDS)
    request.initial_resource_versions.update({f"n{number}": "v" for number in range(11)})
    wire.send(request)
    assert wire.stream.end_reason(wire.now_s) is EndReason.TOO_MANY_NAMES


def test_unanswered_responses_are_bounded() -> None:
    wire = JoinedStream(snapshot("a"), limits=StreamLimits(max_in_flight=3))
    for number in range(10):
        wire.send(wire.client.subscribe(EDS, f"missing-{number}"))
        wire.receive()
    assert wire.stream.types()[1].responses_sent == 3


@both_variants
def test_acknowledgement_is_an_event_with_its_round_trip(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), variant=variant)
    wire.send(wire.client.subscribe(CDS))
    received = wire.receive_one()
    wire.now_s += 0.25
    wire.acknowledge(received)
    assert wire.events == [ResourceAcked("node", CDS, received.version, ("a",), (), 250.0)]
