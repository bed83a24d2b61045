"""ads.py and nodes.py: what is known of nodes, waiting for their answers, groups, and what stays of ended streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ads_rig import Recorder, checker_of, client_at, envoy_at, holds, serving
from joined_stream import both_variants
from pointsman.xds.ads import AdsRefused, AdsServer, NotAcknowledged, ServerLimits
from pointsman.xds.fake_client import CDS, EDS, RDS, FakeEnvoy, Received
from pointsman.xds.snapshot import Snapshot
from pointsman.xds.status import (
    NodeDisconnected,
    Outcome,
    ResourceRefused,
)
from sample_resources import assignment, cluster, snapshot


@pytest.fixture
def events() -> Recorder:
    return Recorder()


@both_variants
async def test_refusal_is_shown_counted_and_not_repeated_after_a_reconnect(
    tmp_path: Path, variant: str, events: Recorder
) -> None:
    offered = snapshot("a")
    async with serving(tmp_path, offered, events) as server:
        checker = checker_of(variant, "node")
        async with client_at(tmp_path, checker) as client:
            await client.send(checker.subscribe(CDS))
            await client.send(checker.refuse(await client.receive(), "dump " * 1_000 + "unknown filter"))
            refused = await events.wait(lambda event: isinstance(event, ResourceRefused))
            assert isinstance(refused, ResourceRefused)
            assert refused.text.endswith("unknown filter")
            (status,) = server.status()
            assert status.outcome is Outcome.PENDING  # listeners are not asked for yet
            assert status.types[0].nacks == 1
            assert status.types[0].refused[0].name == "a"
            assert status.types[0].acknowledged_version is None
            assert status.types[0].sent_version == offered.type_versions[CDS]
        async with client_at(tmp_path, checker_of(variant, "node", before=checker)) as client:
            await client.send(client.checker.subscribe(CDS))
            empty = await client.receive()
            assert dict(empty.resources) == {}
            assert (server.status()[0].last_refusal or "").endswith("unknown filter")
            server.forget_refusals("node")
            if variant == "sotw":
                await client.send(client.checker.acknowledge(empty))  # one response at a time
            response = await client.receive_raw()
            assert [entry.name for entry in client.checker.read(response).entries] == ["a"]


@both_variants
async def test_status_tells_versions_and_counts(tmp_path: Path, variant: str, events: Recorder) -> None:
    offered = snapshot("a", "b")
    async with serving(tmp_path, offered, events) as server, envoy_at(tmp_path, variant=variant) as (client, envoy):
        await client.follow(envoy, until=holds(envoy, offered))
        await server.wait_acknowledged(offered, 5)
        (status,) = server.status()
    assert status.is_connected
    assert status.outcome is Outcome.ACKNOWLEDGED
    assert status.acknowledged_snapshot == status.snapshot_version == offered.version
    assert [one.acknowledged_version for one in status.types] == list(offered.type_versions.values())
    assert [one.resources_held for one in status.types] == [2, 2, 1, 1]
    assert [one.acknowledgements for one in status.types] == [1, 1, 1, 1]


@both_variants
async def test_point_3_late_end_of_an_old_stream_takes_nothing_away(
    tmp_path: Path, variant: str, events: Recorder
) -> None:
    offered = snapshot("a")
    async with serving(tmp_path, offered, events) as server:
        async with envoy_at(tmp_path, variant=variant) as (old_client, old):
            await old_client.follow(old, until=holds(old, offered))
            async with envoy_at(tmp_path, variant=variant, before=old) as (client, envoy):
                await client.follow(envoy, until=lambda: envoy.checker.responses == 4)
                await server.wait_acknowledged(offered, 5)
                newer = snapshot("a", ports={"a": 2})
                server.publish(newer)
                await client.follow(envoy, until=holds(envoy, newer))
                await server.wait_acknowledged(newer, 5)  # the old stream, which does not answer, does not count
                await old_client.half_close()
                end = await events.wait(lambda event: isinstance(event, NodeDisconnected))
                assert isinstance(end, NodeDisconnected)
                assert not end.is_last
                (status,) = server.status()
                assert (status.is_connected, status.open_streams) == (True, 1)
                changed = snapshot("a", ports={"a": 1})
                server.publish(changed)
                await client.follow(envoy, until=holds(envoy, changed))


@both_variants
async def test_wait_acknowledged_returns_when_all_nodes_have_answered(
    tmp_path: Path, variant: str, events: Recorder
) -> None:
    offered = snapshot("a")
    async with serving(tmp_path, offered, events) as server:
        async with (
            envoy_at(tmp_path, "one", variant=variant) as (first, one),
            envoy_at(tmp_path, "two", variant=variant) as (second, two),
        ):
            await first.follow(one, until=holds(one, offered))
            with pytest.raises(NotAcknowledged, match="two"):
                await server.wait_acknowledged(offered, 0.05)
            waiting = asyncio.create_task(server.wait_acknowledged(offered.version, 5))
            await second.follow(two, until=holds(two, offered))
            answer = await waiting
    assert set(answer.acknowledged) == {"one", "two"}
    assert answer.refused == ()


@both_variants
async def test_wait_acknowledged_counts_a_refusal_as_an_answer(tmp_path: Path, variant: str, events: Recorder) -> None:
    offered, bad = snapshot("a"), snapshot("a", used=())
    async with serving(tmp_path, offered, events) as server:
        checker = checker_of(variant, "node")
        envoy = FakeEnvoy(checker, judge=lambda kind, _name, message: verdicts.get(kind))
        verdicts: dict[str, str] = {}
        async with client_at(tmp_path, checker) as client:
            await client.send(*envoy.start())
            await client.follow(envoy, until=holds(envoy, offered))
            await server.wait_acknowledged(offered, 5)
            verdicts[RDS] = "bad regex"
            server.publish(bad)
            await client.follow(envoy, until=lambda: envoy.nacks == 1)
            answer = await server.wait_acknowledged(bad, 5)
            assert answer.refused == ("node",)
            assert server.status()[0].acknowledged_snapshot == offered.version


async def test_wait_acknowledged_needs_a_node(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server:
        with pytest.raises(NotAcknowledged, match="no node is connected"):
            await server.wait_acknowledged(snapshot("a"), 0.01)


async def test_wait_acknowledged_of_what_was_never_published_is_refused(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server:
        with pytest.raises(AdsRefused, match="none of the last"):
            await server.wait_acknowledged(snapshot("b"), 1)


@both_variants
async def test_later_snapshot_answers_for_an_earlier_one(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with (
        serving(tmp_path, snapshot("a"), events) as server,
        envoy_at(tmp_path, variant=variant) as (client, envoy),
    ):
        await client.follow(envoy, until=holds(envoy, snapshot("a")))
        earlier, later = snapshot("a", ports={"a": 1}), snapshot("a", ports={"a": 2})
        server.publish(earlier)
        server.publish(later)
        await client.follow(envoy, until=holds(envoy, later))
        answer = await server.wait_acknowledged(earlier, 5)
    assert answer.acknowledged == ("node",)


@both_variants
async def test_groups_have_their_own_snapshots_and_an_unpublished_group_waits(tmp_path: Path, variant: str) -> None:
    server = AdsServer(tmp_path / "ads.sock", group_of=lambda identity: identity.node_id.split("-")[0])
    server.publish(snapshot("a"), "left")
    await server.start()
    try:
        async with (
            envoy_at(tmp_path, "left-1", variant=variant) as (client, left),
            envoy_at(tmp_path, "right-1", variant=variant) as (other, right),
        ):
            await client.follow(left, until=holds(left, snapshot("a")))
            server.publish(snapshot("b"), "right")
            await other.follow(right, until=holds(right, snapshot("b")))
            assert (await server.wait_acknowledged(snapshot("b"), 5, group="right")).acknowledged == ("right-1",)
    finally:
        await server.stop(0)


@both_variants
async def test_point_40_nothing_stays_of_streams_that_ended(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server:
        tasks_before = asyncio.all_tasks()
        for number in range(60):
            async with envoy_at(tmp_path, f"node-{number % 3}", variant=variant) as (client, _):
                await client.receive_raw()
        async with asyncio.timeout(5):
            while sum(isinstance(event, NodeDisconnected) for event in events.events) < 60:
                await events.changed()
        assert [status.open_streams for status in server.status()] == [0, 0, 0]
        left = asyncio.all_tasks() - tasks_before
        _, pending = await asyncio.wait(left, timeout=1) if left else ((), set())
        assert len(pending) <= 2  # the server's own wait for the next stream


@both_variants
async def test_point_40_nodes_that_left_are_remembered_up_to_a_bound(
    tmp_path: Path, variant: str, events: Recorder
) -> None:
    async with serving(tmp_path, snapshot("a"), events, limits=ServerLimits(max_nodes_remembered=5)) as server:
        for number in range(20):
            async with client_at(tmp_path, checker_of(variant, f"node-{number}")) as client:
                await client.send(client.checker.subscribe(CDS))
                await client.receive()
            await events.end_of(f"node-{number}")
        assert len(server.status()) <= 6
        assert server.status()[-1].identity.node_id == "node-19"


@both_variants
async def test_point_41_push_over_the_limit_comes_in_parts(tmp_path: Path, variant: str, events: Recorder) -> None:
    names = [f"c{number:04}" for number in range(60)]
    offered = Snapshot.build([cluster(name) for name in names], [assignment(name, *range(1, 4_000)) for name in names])
    async with serving(tmp_path, offered, events):
        async with client_at(tmp_path, checker_of(variant, "node")) as client:
            await client.send(client.checker.subscribe(EDS, *names))
            parts: list[Received] = []
            while sum(len(part.resources) for part in parts) < len(names):
                parts.append(await client.receive())  # the checker refuses more than 4 MiB
                await client.send(client.checker.acknowledge(parts[-1]))
    assert len(parts) > 1
