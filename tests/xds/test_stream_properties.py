"""Properties of the stream in both variants, over generated snapshots, answers and reconnects."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from joined_stream import JoinedStream, both_variants
from pointsman.xds import api
from pointsman.xds.fake_client import CDS, EDS, LDS, RDS, FakeEnvoy
from pointsman.xds.references import ResourceMessage
from pointsman.xds.snapshot import Resource, ResourceType, Snapshot
from pointsman.xds.status import Outcome
from sample_resources import assignment, cluster, ladder, listener, routes


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


def bodies_held(wire: JoinedStream, kind: ResourceType, names: Iterable[str]) -> dict[str, bytes]:
    held = wire.client.held(kind)
    return bodies(Resource.of(held[name]) for name in names)


def bodies(resources: Iterable[Resource]) -> dict[str, bytes]:
    return {resource.name: resource.body for resource in resources}


@both_variants
@settings(max_examples=100, deadline=None)
@given(offered=st.lists(_snapshots(), min_size=1, max_size=5), data=st.data())
def test_whatever_is_published_and_however_slowly_it_is_answered_the_protocol_holds(
    variant: str, offered: list[Snapshot], data: st.DataObject
) -> None:
    wire = JoinedStream(offered[0], variant=variant)
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    for following in offered[1:]:
        for _ in range(data.draw(st.integers(0, 6))):
            response = wire.stream.next_response(wire.now_s)
            if response is not None:
                wire.send(*envoy.react(wire.client.parse(wire.wire.encode(response))))
        if data.draw(st.booleans()):
            # State-of-the-World clients do not say what they have, so nothing of it can be kept until routes left it.
            wire = JoinedStream(following, variant=variant, before=wire, is_order_checked=variant == "delta")
            envoy = FakeEnvoy(wire.client)
            wire.send(*envoy.start())
        wire.stream.offer(following)
    wire.follow(envoy)
    assert wire.outcome() is Outcome.ACKNOWLEDGED
    last = offered[-1]
    for kind in (CDS, LDS):
        assert bodies_held(wire, kind, wire.client.held(kind)) == bodies(last.of(kind).values())
    for kind in (EDS, RDS):
        assert bodies_held(wire, kind, wire.client.needed(kind)) == bodies(last.of(kind).values())


@both_variants
@settings(max_examples=100, deadline=None)
@given(offered=st.lists(_snapshots(), min_size=1, max_size=4), data=st.data())
def test_whatever_is_refused_the_server_settles_and_never_repeats_it(
    variant: str, offered: list[Snapshot], data: st.DataObject
) -> None:
    # Order is not checked: a client that refused a cluster is sent the routes after the limit if it has none.
    wire = JoinedStream(offered[0], variant=variant, is_order_checked=False)
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
