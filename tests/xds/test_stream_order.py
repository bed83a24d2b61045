"""The stream's order in both variants: what is named before what names it, removals last (xDS point 21-25, 38)."""

from __future__ import annotations

from joined_stream import JoinedStream, both_variants, names_of, started, two_routes
from pointsman.xds.fake_client import CDS, EDS, LDS, RDS, FakeEnvoy
from pointsman.xds.snapshot import Snapshot
from pointsman.xds.status import Outcome
from pointsman.xds.stream import StreamLimits
from sample_resources import assignment, cluster, ladder, listener, listener_of, manager, routes, snapshot


@both_variants
def test_point_21_endpoints_follow_a_changed_cluster_though_unchanged(variant: str) -> None:
    wire, envoy = started(snapshot("a", "b"), variant=variant)
    changed = Snapshot.build(
        [cluster("a", timeout_s=2), cluster("b")],
        [assignment("a", 9_000), assignment("b", 9_000)],
        [listener("in", "main")],
        [routes("main", "a", "b")],
    )
    wire.stream.offer(changed)
    assert names_of(wire.receive()) == [("CDS", ["a"], []), ("EDS", ["a"], [])]
    assert envoy.nacks == 0


@both_variants
def test_point_21_routes_follow_a_changed_listener_though_unchanged(variant: str) -> None:
    wire, envoy = started(snapshot("a"), variant=variant)
    moved = Snapshot.build(
        [cluster("a")], [assignment("a", 9_000)], [listener("in", "main", port=11_000)], [routes("main", "a")]
    )
    wire.stream.offer(moved)
    assert wire.follow(envoy) == [("LDS", ["in"], []), ("RDS", ["main"], [])]


@both_variants
def test_known_bug_44_route_waits_for_its_new_cluster_and_its_endpoints(variant: str) -> None:
    wire, _ = started(snapshot("a"), variant=variant)
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


@both_variants
def test_point_24_route_to_a_new_ladder_waits_for_its_rungs(variant: str) -> None:
    wire, envoy = started(snapshot("a"), variant=variant)
    with_ladder = Snapshot.build(
        [cluster("a"), cluster("b"), ladder("l", ["a", "b"])],
        [assignment("a", 9_000), assignment("b")],
        [listener("in", "main")],
        [routes("main", "l")],
    )
    wire.stream.offer(with_ladder)
    assert wire.follow(envoy) == [("CDS", ["b", "l"], []), ("EDS", ["b"], []), ("RDS", ["main"], [])]


@both_variants
def test_point_24_listener_with_inline_routes_waits_for_its_cluster(variant: str) -> None:
    wire = JoinedStream(
        Snapshot.build([cluster("a")], [assignment("a")], [listener_of("in", manager(route_config=routes("r", "a")))]),
        variant=variant,
    )
    wire.send(wire.client.subscribe(CDS), wire.client.subscribe(LDS))
    (clusters,) = wire.receive()
    assert clusters.type_url is CDS
    wire.acknowledge(clusters)
    assert wire.receive() == []
    assert names_of(wire.subscribe(EDS, "a")) == [("EDS", ["a"], []), ("LDS", ["in"], [])]


@both_variants
def test_point_24_hold_ends_after_its_limit(variant: str) -> None:
    wire, _ = started(snapshot("a"), limits=StreamLimits(hold_s=3), is_order_checked=False, variant=variant)
    wire.stream.offer(snapshot("a", "b"))
    (clusters,) = wire.receive()
    assert wire.stream.deadline_s(wire.now_s) == wire.now_s + 3
    wire.now_s += 2.9
    assert wire.receive() == []
    wire.now_s += 0.1
    assert names_of(wire.receive()) == [("RDS", ["main"], [])]
    assert clusters.type_url is CDS


@both_variants
def test_point_24_client_that_asks_for_clusters_after_routes_is_not_held(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), variant=variant)
    assert names_of(wire.subscribe(LDS, "in")) == [("LDS", ["in"], [])]
    assert names_of(wire.subscribe(RDS, "main")) == [("RDS", ["main"], [])]
    assert names_of(wire.subscribe(CDS, "a")) == [("CDS", ["a"], [])]
    assert names_of(wire.subscribe(EDS, "a")) == [("EDS", ["a"], [])]
    assert wire.outcome() is Outcome.ACKNOWLEDGED


@both_variants
def test_point_23_cluster_goes_after_the_routes_that_left_it_were_acknowledged(variant: str) -> None:
    wire, _ = started(snapshot("a", "b"), variant=variant)
    wire.stream.offer(snapshot("a"))
    (changed,) = wire.receive()
    assert names_of([changed]) == [("RDS", ["main"], [])]
    wire.acknowledge(changed)
    (removal,) = wire.receive()
    assert names_of([removal]) == [("CDS", [], ["b"])]
    wire.acknowledge(removal)
    # Still asked for; Envoy would have given it up. State-of-the-World has no word for it.
    assert names_of(wire.receive()) == ([("EDS", [], ["b"])] if variant == "delta" else [])


@both_variants
def test_point_23_replaced_cluster_is_made_before_the_old_one_breaks(variant: str) -> None:
    wire, envoy = started(snapshot("a"), variant=variant)
    wire.stream.offer(snapshot("b"))
    assert wire.follow(envoy) == [
        ("CDS", ["b"], []),
        ("EDS", ["b"], []),
        ("RDS", ["main"], []),
        ("CDS", [], ["a"]),
    ]


@both_variants
def test_point_23_renamed_routes_go_after_the_listener_left_them(variant: str) -> None:
    wire, _ = started(two_routes("a", names=("old",)), variant=variant)
    renamed = Snapshot.build([cluster("a")], [assignment("a")], [listener("in-old", "new")], [routes("new", "a")])
    wire.stream.offer(renamed)
    (changed,) = wire.receive()
    assert names_of([changed]) == [("LDS", ["in-old"], [])]
    wire.acknowledge(changed)
    assert wire.receive() == []  # the new routes are not asked for yet
    told = [("RDS", [], ["old"])] if variant == "delta" else []
    assert names_of(wire.subscribe(RDS, "new")) == [("RDS", ["new"], []), *told]


@both_variants
def test_point_23_removed_listener_leaves_with_the_changes(variant: str) -> None:
    wire, envoy = started(two_routes("a", names=("one", "two")), variant=variant)
    wire.stream.offer(two_routes("a", names=("one",)))
    assert wire.follow(envoy) == [("LDS", [], ["in-two"])]


@both_variants
def test_point_23_cluster_of_refused_routes_stays(variant: str) -> None:
    wire = JoinedStream(snapshot("a", "b"), variant=variant)
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


@both_variants
def test_point_25_superseded_content_is_never_sent(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), variant=variant)
    wire.subscribe(EDS, "a")
    for port in range(1, 100):
        wire.stream.offer(snapshot("a", ports={"a": port}))
    received = wire.receive_one()
    assert received.versions["a"] == snapshot("a", ports={"a": 99}).of(EDS)["a"].version


@both_variants
def test_point_38_client_that_does_not_answer_has_one_response_a_name(variant: str) -> None:
    wire = JoinedStream(snapshot("a"), variant=variant)
    wire.subscribe(EDS, "a")
    wire.stream.offer(snapshot("a", ports={"a": 1}))
    first = wire.receive_one()
    for port in range(2, 100):
        wire.stream.offer(snapshot("a", ports={"a": port}))
        assert wire.receive() == []
    wire.acknowledge(first)
    assert wire.receive_one().versions["a"] == snapshot("a", ports={"a": 99}).of(EDS)["a"].version
