"""State-of-the-World through the one core: nonces, names, whole responses; one script a point of docs/xds.md.

Covers sotw.py, variant.py, and what subscription.py does for this variant alone.
"""

from __future__ import annotations

import pytest
from joined_stream import JoinedStream, names_of, started
from pointsman.xds import api
from pointsman.xds.fake_client import CDS, EDS, LDS, RDS, FakeEnvoy
from pointsman.xds.snapshot import Resource, ResourceType, Snapshot
from pointsman.xds.sotw import decode, encode
from pointsman.xds.status import EndReason, Outcome, ResourceRefused
from pointsman.xds.stream import StreamLimits
from pointsman.xds.subscription import Response
from pointsman.xds.wire import MAX_NAME_CHARS, MAX_NODE_ID_CHARS, RequestRefused
from sample_resources import assignment, cluster, listener, listener_of, manager, routes, snapshot


def sotw(offered: Snapshot | None = None, **options: object) -> JoinedStream:
    return JoinedStream(offered, variant="sotw", **options)  # type: ignore[arg-type]


def request(kind: ResourceType, *names: str, nonce: str = "", version: str = "") -> api.DiscoveryRequest:
    """A request as it is on the wire, made by hand."""
    return api.DiscoveryRequest(type_url=kind.value, resource_names=names, response_nonce=nonce, version_info=version)


def clusters_in(response: api.DiscoveryResponse) -> list[str]:
    return [api.unpack(packed, api.Cluster).name for packed in response.resources]


def sent(wire: JoinedStream) -> list[tuple[str, int]]:
    """Type and number of resources of what is sent now, unchecked."""
    return [(ResourceType(one.type_url).label, len(one.resources)) for one in wire.raw()]  # type: ignore[attr-defined]


# ---- nonces and answers


def test_envoy_gets_everything_in_order() -> None:
    wire = sotw(snapshot("a", "b"))
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    assert [
        ("CDS", ["a", "b"], []),
        ("EDS", ["a", "b"], []),
        ("LDS", ["in"], []),
        ("RDS", ["main"], []),
    ] == wire.follow(envoy)
    assert wire.outcome() is Outcome.ACKNOWLEDGED
    assert wire.stream.stale_requests == 0


def test_point_4_nonce_of_an_earlier_stream_is_an_ordinary_first_request() -> None:
    wire = sotw(snapshot("a"))
    wire.send(request(CDS, nonce="7", version="x"))
    assert [("CDS", 1)] == sent(wire)
    assert wire.stream.stale_requests == 0


def test_point_5_version_is_that_of_the_whole_that_is_stated() -> None:
    wire = sotw(snapshot("a", "b"))
    received = wire.subscribe(CDS)
    assert received[0].version == snapshot("b", "a").type_versions[CDS]
    assert wire.stream.types()[0].acknowledged_version == received[0].version


@pytest.mark.parametrize(("kind", "names"), [(CDS, ()), (LDS, ()), (EDS, ("a",)), (RDS, ("main",))])
def test_point_6_first_request_is_answered_though_it_states_the_version(
    kind: ResourceType, names: tuple[str, ...]
) -> None:
    wire = sotw(snapshot("a"))
    wire.send(request(kind, *names, version=snapshot("a").type_versions[kind]))
    assert [(kind.label, 1)] == sent(wire)


def test_point_7_acknowledgement_gets_no_response() -> None:
    wire = sotw(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    wire.acknowledge(wire.receive_one())
    assert [] == wire.receive()


def test_point_8_refusal_is_told_by_error_detail_and_not_by_the_version() -> None:
    wire = sotw(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    received = wire.receive_one()
    wire.send(request(CDS, nonce=received.nonce, version=""))  # an old version, and no error: taken
    assert [] == [event for event in wire.events if isinstance(event, ResourceRefused)]
    assert wire.stream.types()[0].acknowledgements == 1


def test_point_10_answer_with_an_old_nonce_gets_no_response_and_is_counted() -> None:
    wire = sotw(snapshot("a"))
    first = wire.subscribe(EDS, "a")[0]
    wire.stream.offer(snapshot("a", ports={"a": 1}))
    second = wire.receive_one()
    wire.send(request(EDS, "a", nonce=first.nonce, version=first.version))
    wire.send(request(EDS, "a", nonce="foreign"))
    assert [] == wire.receive()
    assert wire.stream.stale_requests == 2
    wire.acknowledge(second)
    assert wire.stream.types()[1].acknowledgements == 2


def test_trap_20_repeated_request_never_makes_a_response() -> None:
    wire = sotw(snapshot("a"))
    first = wire.subscribe(EDS, "a")[0]
    for _ in range(100):
        wire.send(request(EDS, "a", nonce=first.nonce, version=first.version))
        assert [] == wire.receive()


def test_point_11_names_in_a_request_with_an_old_nonce_are_served_after_the_newer_response_is_acknowledged() -> None:
    wire = sotw(snapshot("a", "b"))
    wire.subscribe(EDS, "a")
    wire.stream.offer(snapshot("a", "b", ports={"a": 1}))
    newer = wire.receive_one()
    wire.send(wire.client.subscribe(EDS, "b"))  # crossed the newer response
    assert [] == wire.receive()
    wire.acknowledge(newer)
    assert [("EDS", ["b"], [])] == names_of(wire.receive())


def test_point_12_same_nonce_with_a_new_name_is_answered_with_the_new_name() -> None:
    wire = sotw(snapshot("a", "b"))
    wire.subscribe(EDS, "a")
    wire.send(wire.client.subscribe(EDS, "b"))
    assert [("EDS", ["b"], [])] == names_of(wire.receive())
    assert wire.stream.stale_requests == 0


def test_point_12_new_listener_name_is_answered_with_the_whole() -> None:
    offered = Snapshot.build(
        [cluster("a")], [assignment("a")], [listener("one", "r"), listener("two", "r")], [routes("r", "a")]
    )
    wire = sotw(offered)
    wire.subscribe(LDS, "one")
    (received,) = wire.subscribe(LDS, "two")
    assert (["two"], ("one",)) == (list(received.resources), received.kept)


def test_point_13_fewer_names_need_no_response() -> None:
    wire = sotw(snapshot("a", "b"))
    wire.subscribe(EDS, "a", "b")
    wire.subscribe(LDS, "in")
    wire.send(wire.client.unsubscribe(EDS, "b"), wire.client.unsubscribe(LDS, "in"))
    assert [] == wire.receive()
    wire.stream.offer(snapshot("a", "b", ports={"b": 1}))
    assert [] == wire.receive()


def test_point_14_given_up_and_asked_for_again_is_sent_again() -> None:
    wire = sotw(snapshot("a"))
    wire.subscribe(EDS, "a")
    wire.send(wire.client.unsubscribe(EDS, "a"))
    assert [("EDS", ["a"], [])] == names_of(wire.subscribe(EDS, "a"))


# ---- the whole


def test_point_15_clusters_and_listeners_are_stated_whole() -> None:
    wire, _ = started(snapshot("a", "b"), variant="sotw")
    wire.stream.offer(
        Snapshot.build(
            [cluster("a"), cluster("b", timeout_s=2)],
            [assignment("a", 9_000), assignment("b", 9_000)],
            [listener("in", "main")],
            [routes("main", "a", "b")],
        )
    )
    received = wire.receive()[0]
    assert (["b"], ("a",)) == (list(received.resources), received.kept)


def test_point_15_empty_response_removes_all_clusters() -> None:
    wire = sotw(Snapshot.build([cluster("a")], [assignment("a")]))
    wire.subscribe(CDS)
    wire.stream.offer(Snapshot.build())
    assert [("CDS", [], ["a"])] == names_of(wire.drain())
    assert {} == wire.client.held(CDS)


@pytest.mark.parametrize("kind", [EDS, RDS])
def test_point_15_nothing_to_say_about_endpoints_or_routes_is_not_said(kind: ResourceType) -> None:
    wire = sotw(snapshot("a"))
    wire.subscribe(kind, "missing")
    wire.stream.offer(snapshot("a", ports={"a": 1}))
    assert [] == wire.receive()


def test_point_15_changed_endpoints_go_without_the_others() -> None:
    wire, envoy = started(snapshot("a", "b"), variant="sotw")
    wire.stream.offer(snapshot("a", "b", ports={"b": 1}))
    assert [("EDS", ["b"], [])] == wire.follow(envoy)


def test_point_23_whole_response_keeps_the_old_cluster_until_the_routes_have_left_it() -> None:
    wire, _ = started(snapshot("a"), variant="sotw")
    wire.stream.offer(snapshot("b"))
    (made,) = wire.receive()
    assert (["b"], ("a",)) == (list(made.resources), made.kept)  # `a` is in no snapshot any more
    wire.acknowledge(made)
    wire.send(wire.client.subscribe(EDS, "b"))
    (endpoints,) = wire.receive()
    wire.acknowledge(endpoints)
    (moved,) = wire.receive()
    assert [("RDS", ["main"], [])] == names_of([moved])
    wire.acknowledge(moved)
    assert [("CDS", [], ["a"])] == names_of(wire.receive())


def test_point_35_good_older_content_is_repeated_in_place_of_what_was_refused() -> None:
    wire = sotw(snapshot("a"))
    bad = cluster("a", timeout_s=2)
    envoy = FakeEnvoy(wire.client, judge=lambda kind, _name, message: "bad" if message == bad else None)
    wire.send(*envoy.start())
    wire.follow(envoy)
    wire.stream.offer(Snapshot.build([bad], [assignment("a", 9_000)], [listener("in", "main")], [routes("main", "a")]))
    wire.follow(envoy)
    with_other = Snapshot.build(
        [bad, cluster("b")],
        [assignment("a", 9_000), assignment("b")],
        [listener("in", "main")],
        [routes("main", "a")],
    )
    wire.stream.offer(with_other)
    received, requests = envoy.take(next(iter(wire.raw())))
    assert (["b"], ("a",)) == (list(received.resources), received.kept)
    wire.send(*requests)
    wire.follow(envoy)
    assert (1, Outcome.REFUSED) == (envoy.nacks, wire.outcome())
    assert cluster("a") == wire.client.held(CDS)["a"]


def reconnected_after_a_refusal() -> tuple[JoinedStream, Snapshot]:
    """A client that holds an older `a`, refused a newer one, lost its stream, and has told the server so on another."""
    before, envoy = started(snapshot("a"), variant="sotw")
    newer = Snapshot.build(
        [cluster("a", timeout_s=2)], [assignment("a", 9_000)], [listener("in", "main")], [routes("main", "a")]
    )
    before.stream.offer(newer)
    before.send(envoy.checker.refuse(before.receive()[0], "bad"))
    return sotw(newer, before=before, is_order_checked=False), newer


def test_point_8_refused_content_is_told_once_more_to_a_reconnected_client_so_that_it_keeps_the_older_one() -> None:
    wire, newer = reconnected_after_a_refusal()
    wire.send(wire.client.subscribe(CDS))
    received = wire.receive_one()
    assert [("CDS", ["a"], [])] == names_of([received])  # left out, it would be removed
    wire.send(wire.client.refuse(received, "still bad"))
    assert [] == wire.receive()
    assert ["still bad"] == [refusal.text for refusal in wire.stream.types()[0].refused]
    (event,) = wire.events
    assert isinstance(event, ResourceRefused)
    assert event.is_final
    wire.stream.offer(newer)
    assert [] == wire.receive()
    wire.subscribe(LDS)
    wire.subscribe(RDS, "main")
    wire.now_s += 10
    wire.drain()
    assert wire.outcome() is Outcome.REFUSED
    wire.stream.offer(snapshot("a"))
    assert [] != wire.drain()
    assert cluster("a") == wire.client.held(CDS)["a"]


def test_refusal_of_a_reconnected_client_that_is_forgiven_is_tried_once_more() -> None:
    wire, _ = reconnected_after_a_refusal()
    wire.send(wire.client.subscribe(CDS))
    wire.send(wire.client.refuse(wire.receive_one(), "bad"))
    wire.refusals.forgive_all()
    wire.stream.reconsider()
    assert [("CDS", 1)] == sent(wire)


def test_point_24_reconnected_client_is_told_no_listeners_while_one_of_them_waits() -> None:
    inline = listener_of("inline", manager(route_config=routes("r", "a")))
    offered = Snapshot.build(
        [cluster("a")], [assignment("a")], [inline, listener("in", "m", port=1)], [routes("m", "a")]
    )
    wire = sotw(offered)
    wire.subscribe(CDS)
    first = wire.client.subscribe(LDS)
    first.version_info = "from before"  # type: ignore[attr-defined]
    wire.send(first)
    assert [] == sent(wire)
    assert [("EDS", ["a"], []), ("LDS", ["in", "inline"], [])] == names_of(wire.subscribe(EDS, "a"))


def test_point_24_listener_that_waits_is_repeated_in_its_older_content() -> None:
    def offered(*names: str, other_port: int) -> Snapshot:
        inline = listener_of("inline", manager(route_config=routes("r", *names)))
        return Snapshot.build(
            [cluster(name) for name in names],
            [assignment(name) for name in names],
            [inline, listener("other", "main", port=other_port)],
            [routes("main", "a")],
        )

    wire, _ = started(offered("a", other_port=1), variant="sotw")
    wire.stream.offer(offered("a", "b", other_port=2))
    clusters, listeners = wire.receive()[:2]
    assert [("CDS", ["b"], []), ("LDS", ["other"], [])] == names_of([clusters, listeners])
    assert ("inline",) == listeners.kept


def test_point_18_no_name_is_twice_in_a_response() -> None:
    wire = sotw(snapshot("a", "b"))
    wire.send(request(EDS, "a", "b", "a", "b"))
    assert [("EDS", 2)] == sent(wire)


# ---- wildcards


@pytest.mark.parametrize(("kind", "count"), [(CDS, 2), (LDS, 1)])
def test_point_16_no_names_mean_all_while_none_was_ever_stated(kind: ResourceType, count: int) -> None:
    wire = sotw(snapshot("a", "b"))
    wire.send(request(kind))
    (response,) = wire.raw()
    wire.send(request(kind, nonce=response.nonce))  # type: ignore[attr-defined]
    wire.send(request(kind, nonce=response.nonce))  # type: ignore[attr-defined]
    assert [] == sent(wire)
    assert count == wire.stream.types()[0 if kind is CDS else 2].resources_held


def test_point_16_no_names_after_a_name_mean_none() -> None:
    wire = sotw(snapshot("a", "b"))
    wire.subscribe(CDS, "a")
    wire.send(request(CDS, nonce="1"))
    wire.stream.offer(Snapshot.build([cluster("a", timeout_s=2)], [assignment("a")]))
    assert [] == wire.receive()
    assert 0 == wire.stream.types()[0].resources_held


def test_point_16_no_names_on_a_first_request_for_endpoints_mean_none() -> None:
    wire = sotw(snapshot("a"))
    wire.send(request(EDS), request(RDS))
    assert [] == sent(wire)


def test_point_16_name_after_no_names_is_that_name_alone() -> None:
    wire = sotw(snapshot("a", "b"))
    wire.send(request(CDS))
    (response,) = wire.raw()
    wire.send(request(CDS, "a", nonce=response.nonce))  # type: ignore[attr-defined]
    (whole,) = wire.raw()
    assert ["a"] == clusters_in(whole)  # type: ignore[arg-type]


def test_point_17_wildcard_beside_a_name_and_then_the_name_alone() -> None:
    wire = sotw(snapshot("a", "b"))
    wire.subscribe(CDS, "*", "a")
    assert {"a", "b"} == wire.client.held(CDS).keys()
    wire.send(wire.client.unsubscribe(CDS, "*"))
    wire.stream.offer(
        Snapshot.build([cluster("a", timeout_s=2), cluster("b", timeout_s=2)], [assignment("a"), assignment("b")])
    )
    (whole,) = wire.raw()
    assert ["a"] == clusters_in(whole)  # type: ignore[arg-type]


def test_point_19_name_that_appears_later_is_sent_then() -> None:
    wire = sotw(snapshot("a"))
    wire.subscribe(EDS, "b")
    wire.stream.offer(snapshot("a", "b"))
    assert [("EDS", ["b"], [])] == names_of(wire.receive())


def test_point_19_missing_cluster_is_told_by_leaving_it_out_and_sent_when_it_appears() -> None:
    wire = sotw(snapshot("a"))
    assert [("CDS", ["a"], [])] == names_of(wire.subscribe(CDS, "a"))
    (whole,) = wire.subscribe(CDS, "b")
    assert (("a",), {}) == (whole.kept, whole.resources)
    wire.stream.offer(snapshot("a", "b"))
    assert ("CDS", ["b"], []) == names_of(wire.drain())[0]


def test_point_20_one_response_of_a_type_is_outstanding_and_the_next_has_the_newest() -> None:
    wire = sotw(snapshot("a"))
    wire.send(wire.client.subscribe(EDS, "a"))
    first = wire.receive_one()
    for port in range(1, 50):
        wire.stream.offer(snapshot("a", ports={"a": port}))
        assert [] == wire.receive()
    wire.acknowledge(first)
    newest = wire.receive_one()
    assert Resource.of(newest.resources["a"]) == snapshot("a", ports={"a": 49}).of(EDS)["a"]


def test_point_27_request_that_cannot_be_answered_yet_is_kept() -> None:
    wire = sotw(None)
    wire.send(wire.client.subscribe(CDS), wire.client.subscribe(EDS, "a"))
    assert [] == wire.receive()
    wire.stream.offer(snapshot("a"))
    assert [("CDS", ["a"], []), ("EDS", ["a"], [])] == names_of(wire.receive())


def test_point_41_endpoints_over_the_limit_come_in_parts_and_clusters_whole() -> None:
    names = [f"c{number:03}" for number in range(50)]
    offered = Snapshot.build([cluster(name) for name in names], [assignment(name, 1) for name in names])
    wire = sotw(offered, limits=StreamLimits(max_response_bytes=500))
    assert [50] == [len(one.resources) for one in wire.subscribe(CDS)]
    parts = wire.subscribe(EDS, *names)
    assert len(parts) > 1
    assert names == sorted(name for one in parts for name in one.resources)


# ---- a client that names what it wants, as gRPC does


def test_client_that_asks_for_what_it_was_told_of_settles_and_follows() -> None:
    wire = sotw(snapshot("a", "b", used=["a"]))
    wire.subscribe(LDS, "in")
    assert wire.outcome() is Outcome.PENDING
    wire.subscribe(RDS, "main")
    assert wire.outcome() is Outcome.PENDING  # the routes name a cluster
    wire.subscribe(CDS, "a")
    wire.subscribe(EDS, "a")
    assert wire.outcome() is Outcome.ACKNOWLEDGED
    wire.stream.offer(snapshot("a", "b", used=["b"]))
    assert [("RDS", ["main"], [])] == names_of(wire.drain())
    wire.send(wire.client.subscribe(CDS, "b"))
    assert wire.outcome() is Outcome.PENDING
    wire.drain()
    wire.subscribe(EDS, "b")
    assert wire.outcome() is Outcome.ACKNOWLEDGED


def test_client_that_asks_for_a_listener_that_is_not_there_has_answered_all() -> None:
    wire = sotw(snapshot("a"))
    wire.subscribe(LDS, "nowhere")
    assert wire.outcome() is Outcome.ACKNOWLEDGED


# ---- bytes


def test_streams_that_are_sent_the_same_share_all_but_the_nonce() -> None:
    first, second = (Resource.of(cluster(name)) for name in "ab")
    one = encode(Response(CDS, "v", "1", (first,), kept=(second,)))
    other = encode(Response(CDS, "v", "2", (second,), kept=(first,)))
    assert one.replace(b"1", b"2") == other.replace(b"1", b"2")
    assert ["a", "b"] == clusters_in(api.DiscoveryResponse.FromString(one))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xff\xff\xff", EndReason.MALFORMED),
        (b"", EndReason.TYPE_MISSING),
        (request(EDS, "x" * (MAX_NAME_CHARS + 1)).SerializeToString(), EndReason.MALFORMED),
        (
            api.DiscoveryRequest(
                type_url=CDS.value, node=api.Node(id="x" * (MAX_NODE_ID_CHARS + 1))
            ).SerializeToString(),
            EndReason.MALFORMED,
        ),
    ],
)
def test_request_that_cannot_be_taken_is_refused(raw: bytes, reason: EndReason) -> None:
    with pytest.raises(RequestRefused) as caught:
        decode(raw)
    assert caught.value.reason is reason


def test_point_2_unknown_type_is_no_request() -> None:
    assert decode(api.DiscoveryRequest(type_url="x").SerializeToString()).request is None
