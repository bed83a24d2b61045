"""ads.py and nodes.py on a real socket: streams, bounds, status, waiting; what one client does wrong ends it alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc import aio
from pointsman.xds import api
from pointsman.xds.ads import AdsRefused, AdsServer, NotAcknowledged, ServerLimits
from pointsman.xds.fake_client import CDS, EDS, LDS, RDS, FakeDeltaClient, FakeEnvoy, ProtocolChecker, Received
from pointsman.xds.snapshot import Snapshot
from pointsman.xds.status import (
    EndReason,
    NodeConnected,
    NodeDisconnected,
    NodeIdentity,
    Outcome,
    ResourceAcked,
    ResourceRefused,
    XdsEvent,
)
from pointsman.xds.stream import StreamLimits
from sample_resources import assignment, cluster, snapshot


class Recorder:
    """Takes the server's events; a test waits for one of them."""

    def __init__(self) -> None:
        self.events: list[XdsEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: XdsEvent) -> None:
        self.events.append(event)
        self._changed.set()

    async def wait(self, matches: Callable[[XdsEvent], bool]) -> XdsEvent:
        async with asyncio.timeout(5):
            while True:
                found = next((event for event in self.events if matches(event)), None)
                if found is not None:
                    return found
                self._changed.clear()
                await self._changed.wait()

    async def changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def end_of(self, node_id: str) -> EndReason:
        event = await self.wait(lambda one: isinstance(one, NodeDisconnected) and one.identity.node_id == node_id)
        assert isinstance(event, NodeDisconnected)
        return event.reason


@pytest.fixture
def events() -> Recorder:
    return Recorder()


@asynccontextmanager
async def serving(
    path: Path, offered: Snapshot, events: Recorder, *, limits: ServerLimits | None = None
) -> AsyncIterator[AdsServer]:
    server = AdsServer(path / "ads.sock", on_event=events, limits=limits)
    server.publish(offered)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def envoy_at(
    path: Path, node_id: str = "node", *, before: FakeEnvoy | None = None
) -> AsyncIterator[tuple[FakeDeltaClient, FakeEnvoy]]:
    checker = ProtocolChecker(node_id, before=before.checker if before is not None else None)
    envoy = FakeEnvoy(checker)
    async with FakeDeltaClient(path / "ads.sock", checker) as client:
        await client.send(*envoy.start())
        yield client, envoy


def holds(envoy: FakeEnvoy, offered: Snapshot) -> Callable[[], bool]:
    def check() -> bool:
        return all(
            dict(envoy.checker.versions(kind)) == {name: one.version for name, one in offered.of(kind).items()}
            for kind in (CDS, EDS, LDS, RDS)
        )

    return check


# ---- life


async def test_start_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    server = AdsServer(tmp_path / "ads.sock")
    with pytest.raises(AdsRefused, match="publish one before start"):
        await server.start()
    assert not list(tmp_path.iterdir())


async def test_socket_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    server = AdsServer(tmp_path / ("x" * 120))
    server.publish(snapshot("a"))
    with pytest.raises(AdsRefused, match="may have 107"):
        await server.start()


async def test_missing_directory_is_refused(tmp_path: Path) -> None:
    server = AdsServer(tmp_path / "nowhere" / "ads.sock")
    server.publish(snapshot("a"))
    with pytest.raises(AdsRefused, match="does not exist: create it"):
        await server.start()


async def test_second_start_is_refused(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server:
        with pytest.raises(AdsRefused, match="started before"):
            await server.start()


async def test_socket_is_private_and_gone_after_stop(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events):
        assert [entry.name for entry in tmp_path.iterdir()] == ["ads.sock"]
        assert (tmp_path / "ads.sock").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.iterdir())


async def test_socket_of_a_dead_process_is_replaced_and_that_of_a_successor_is_left(
    tmp_path: Path, events: Recorder
) -> None:
    first = AdsServer(tmp_path / "ads.sock")
    first.publish(snapshot("a"))
    await first.start()
    async with serving(tmp_path, snapshot("a"), events):
        await first.stop(0)
        async with envoy_at(tmp_path) as (client, envoy):
            await client.follow(envoy, until=holds(envoy, snapshot("a")))


async def test_envoy_is_served_and_its_events_are_told(tmp_path: Path, events: Recorder) -> None:
    offered = snapshot("a", "b")
    async with serving(tmp_path, offered, events), envoy_at(tmp_path) as (client, envoy):
        await client.follow(envoy, until=holds(envoy, offered))
        await events.wait(lambda event: isinstance(event, ResourceAcked) and event.type_url is RDS)
    assert events.events[0] == NodeConnected(NodeIdentity("node"), "default")
    acked = [event.type_url.label for event in events.events if isinstance(event, ResourceAcked)]
    assert acked == ["CDS", "EDS", "LDS", "RDS"]
    assert await events.end_of("node") is not None


async def test_restart_with_the_same_content_sends_nothing_again(tmp_path: Path, events: Recorder) -> None:
    offered = snapshot("a", "b")
    async with serving(tmp_path, offered, events), envoy_at(tmp_path) as (client, envoy):
        await client.follow(envoy, until=holds(envoy, offered))
    async with serving(tmp_path, snapshot("a", "b"), events) as server:
        async with envoy_at(tmp_path, before=envoy) as (client, again):
            await client.follow(again, until=lambda: again.checker.responses == 4)
            await server.wait_acknowledged(offered, 5)
    assert again.checker.resources_received == 0


async def test_publish_reaches_the_client_within_milliseconds(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server, envoy_at(tmp_path) as (client, envoy):
        await client.follow(envoy, until=holds(envoy, snapshot("a")))
        elapsed_ms = []
        for port in range(1, 41):
            offered = snapshot("a", ports={"a": port})
            started = time.perf_counter()
            server.publish(offered)
            response = await client.receive_raw()
            elapsed_ms.append((time.perf_counter() - started) * 1_000)
            assert response is not None
            await client.send(*envoy.react(response))
            await server.wait_acknowledged(offered, 5)
    median_ms = sorted(elapsed_ms)[20]
    print(f"publish to receipt: median {median_ms:.2f} ms, max {max(elapsed_ms):.2f} ms")
    assert median_ms < 20


async def test_stop_ends_streams_with_unavailable(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server, envoy_at(tmp_path) as (client, envoy):
        await client.follow(envoy, until=holds(envoy, snapshot("a")))
        await server.stop(1)
        code, _ = await client.end_status()
        assert code is grpc.StatusCode.UNAVAILABLE
    assert await events.end_of("node") is EndReason.SERVER_STOPPED


# ---- what a client may do wrong; a good one beside it goes on


@asynccontextmanager
async def beside_a_good_client(
    path: Path, events: Recorder, *, limits: ServerLimits | None = None
) -> AsyncIterator[FakeDeltaClient]:
    """Serve a good client and yield a bad one; after the test the good one must still be served."""
    offered, changed = snapshot("a"), snapshot("a", ports={"a": 1})
    async with serving(path, offered, events, limits=limits) as server, envoy_at(path, "good") as (client, envoy):
        await client.follow(envoy, until=holds(envoy, offered))
        async with FakeDeltaClient(path / "ads.sock", ProtocolChecker("bad")) as bad:
            yield bad
        server.publish(changed)
        await client.follow(envoy, until=holds(envoy, changed))


async def test_garbage_ends_the_stream_with_invalid_argument(tmp_path: Path, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events) as bad:
        await bad.send_raw(b"\xff\xff\xff")
        code, text = await bad.end_status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "3 bytes do not parse as DeltaDiscoveryRequest" in text


async def test_garbage_later_ends_the_stream_with_invalid_argument(tmp_path: Path, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events) as bad:
        await bad.send(bad.checker.subscribe(CDS))
        await bad.receive()
        await bad.send_raw(b"\xff\xff\xff")
        code, _ = await bad.end_status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert await events.end_of("bad") is EndReason.MALFORMED


async def test_point_1_first_request_without_a_node_is_refused(tmp_path: Path, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events) as bad:
        await bad.send_raw(api.DeltaDiscoveryRequest(type_url=CDS.value).SerializeToString())
        code, text = await bad.end_status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "node.id" in text


async def test_point_1_later_requests_need_no_node(tmp_path: Path, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events) as bad:
        await bad.send(bad.checker.subscribe(CDS))
        await bad.receive()
        later = bad.checker.subscribe(EDS, "a")
        assert not later.HasField("node")
        await bad.send(later)
        assert list((await bad.receive()).resources) == ["a"]


async def test_point_2_missing_type_is_refused(tmp_path: Path, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events) as bad:
        await bad.send_raw(api.DeltaDiscoveryRequest(node=api.Node(id="bad")).SerializeToString())
        code, text = await bad.end_status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "type_url is empty" in text


async def test_point_2_unknown_type_is_ignored_and_counted(tmp_path: Path, events: Recorder) -> None:
    offered = snapshot("a")
    async with serving(tmp_path, offered, events) as server:
        async with FakeDeltaClient(tmp_path / "ads.sock", ProtocolChecker("node")) as client:
            unknown = api.DeltaDiscoveryRequest(node=api.Node(id="node"), type_url="type.googleapis.com/x.Secret")
            await client.send_raw(unknown.SerializeToString())
            await client.send(client.checker.subscribe(CDS))
            assert list((await client.receive()).resources) == ["a"]
            assert server.status()[0].ignored_requests == 1


async def test_flood_ends_the_stream_with_resource_exhausted(tmp_path: Path, events: Recorder) -> None:
    limits = ServerLimits(requests_per_s=1, request_burst=50)
    async with beside_a_good_client(tmp_path, events, limits=limits) as bad:
        await bad.send(bad.checker.subscribe(CDS))
        raw = api.DeltaDiscoveryRequest(type_url=CDS.value, response_nonce="x").SerializeToString()
        for _ in range(51):
            await bad.send_raw(raw)
        await bad.receive()
        code, text = await bad.end_status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "more requests" in text
        assert await events.end_of("bad") is EndReason.TOO_MANY_REQUESTS


async def test_too_many_names_end_the_stream_with_resource_exhausted(tmp_path: Path, events: Recorder) -> None:
    limits = ServerLimits(stream=StreamLimits(max_names=100))
    async with beside_a_good_client(tmp_path, events, limits=limits) as bad:
        await bad.send(bad.checker.subscribe(EDS, *(f"n{number}" for number in range(101))))
        code, text = await bad.end_status()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "more names" in text


async def test_client_that_never_acknowledges_is_cut_off(tmp_path: Path, events: Recorder) -> None:
    limits = ServerLimits(stream=StreamLimits(acknowledge_s=0.1))
    async with beside_a_good_client(tmp_path, events, limits=limits) as bad:
        await bad.send(bad.checker.subscribe(CDS))
        await bad.receive()
        code, _ = await bad.end_status()
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await events.end_of("bad") is EndReason.NEVER_ACKNOWLEDGED


async def test_point_38_client_that_does_not_read_is_cut_off(tmp_path: Path, events: Recorder) -> None:
    limits = ServerLimits(send_s=0.2)
    async with beside_a_good_client(tmp_path, events, limits=limits) as bad:
        # Names that do not exist are answered at once with all of them: more than the connection's window, unread.
        names = [f"{number:05}" + "x" * 1_000 for number in range(10_000)]
        first = bad.checker.subscribe(EDS, *names)
        await bad.send(first)
        assert await events.end_of("bad") is EndReason.NOT_READING


async def test_half_closed_stream_ends_without_an_error(tmp_path: Path, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events) as bad:
        await bad.send(bad.checker.subscribe(CDS))
        await bad.receive()
        await bad.half_close()
        code, _ = await bad.end_status()
        assert code is grpc.StatusCode.OK
        assert await events.end_of("bad") is EndReason.CLOSED_BY_CLIENT


async def test_stream_closed_before_the_first_request_ends_without_an_error(tmp_path: Path, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events) as bad:
        await bad.half_close()
        code, _ = await bad.end_status()
        assert code is grpc.StatusCode.OK
    assert not [
        event for event in events.events if isinstance(event, NodeConnected) and event.identity.node_id != "good"
    ]


async def test_client_that_vanishes_is_noticed(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server:
        async with envoy_at(tmp_path) as (client, envoy):
            await client.follow(envoy, until=holds(envoy, snapshot("a")))
        assert await events.end_of("node") is EndReason.CLOSED_BY_CLIENT
        (status,) = server.status()
        assert not status.is_connected
        assert status.acknowledged_snapshot == snapshot("a").version


@pytest.mark.parametrize(
    ("method", "hint"),
    [("AggregatedDiscoveryService/StreamAggregatedResources", "DELTA_GRPC"), ("Nothing/Nowhere", "")],
)
async def test_point_42_other_methods_are_unimplemented(
    tmp_path: Path, events: Recorder, method: str, hint: str
) -> None:
    async with serving(tmp_path, snapshot("a"), events):
        async with aio.insecure_channel(f"unix:{tmp_path / 'ads.sock'}") as channel:
            call: aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"/envoy.service.discovery.v3.{method}")()
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
            assert hint in (await call.details() or "")


async def test_streams_over_the_bound_are_refused(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events, limits=ServerLimits(max_streams=1)):
        async with envoy_at(tmp_path, "one") as (client, envoy):
            await client.follow(envoy, until=holds(envoy, snapshot("a")))
            async with FakeDeltaClient(tmp_path / "ads.sock", ProtocolChecker("two")) as second:
                code, _ = await second.end_status()
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


# ---- status and waiting


async def test_refusal_is_shown_counted_and_not_repeated_after_a_reconnect(tmp_path: Path, events: Recorder) -> None:
    offered = snapshot("a")
    async with serving(tmp_path, offered, events) as server:
        checker = ProtocolChecker("node")
        async with FakeDeltaClient(tmp_path / "ads.sock", checker) as client:
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
        async with FakeDeltaClient(tmp_path / "ads.sock", ProtocolChecker("node", before=checker)) as client:
            await client.send(client.checker.subscribe(CDS))
            assert dict((await client.receive()).resources) == {}
            assert (server.status()[0].last_refusal or "").endswith("unknown filter")
            server.forget_refusals("node")
            response = await client.receive_raw()
            assert response is not None
            assert [resource.name for resource in response.resources] == ["a"]


async def test_status_tells_versions_and_counts(tmp_path: Path, events: Recorder) -> None:
    offered = snapshot("a", "b")
    async with serving(tmp_path, offered, events) as server, envoy_at(tmp_path) as (client, envoy):
        await client.follow(envoy, until=holds(envoy, offered))
        await server.wait_acknowledged(offered, 5)
        (status,) = server.status()
    assert status.is_connected
    assert status.outcome is Outcome.ACKNOWLEDGED
    assert status.acknowledged_snapshot == status.snapshot_version == offered.version
    assert [one.acknowledged_version for one in status.types] == list(offered.type_versions.values())
    assert [one.resources_held for one in status.types] == [2, 2, 1, 1]
    assert [one.acknowledgements for one in status.types] == [1, 1, 1, 1]


async def test_point_3_late_end_of_an_old_stream_takes_nothing_away(tmp_path: Path, events: Recorder) -> None:
    offered = snapshot("a")
    async with serving(tmp_path, offered, events) as server:
        async with envoy_at(tmp_path) as (old_client, old):
            await old_client.follow(old, until=holds(old, offered))
            async with envoy_at(tmp_path, before=old) as (client, envoy):
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


async def test_wait_acknowledged_returns_when_all_nodes_have_answered(tmp_path: Path, events: Recorder) -> None:
    offered = snapshot("a")
    async with serving(tmp_path, offered, events) as server:
        async with envoy_at(tmp_path, "one") as (first, one), envoy_at(tmp_path, "two") as (second, two):
            await first.follow(one, until=holds(one, offered))
            with pytest.raises(NotAcknowledged, match="two"):
                await server.wait_acknowledged(offered, 0.05)
            waiting = asyncio.create_task(server.wait_acknowledged(offered.version, 5))
            await second.follow(two, until=holds(two, offered))
            answer = await waiting
    assert set(answer.acknowledged) == {"one", "two"}
    assert answer.refused == ()


async def test_wait_acknowledged_counts_a_refusal_as_an_answer(tmp_path: Path, events: Recorder) -> None:
    offered, bad = snapshot("a"), snapshot("a", used=())
    async with serving(tmp_path, offered, events) as server:
        checker = ProtocolChecker("node")
        envoy = FakeEnvoy(checker, judge=lambda kind, _name, message: verdicts.get(kind))
        verdicts: dict[str, str] = {}
        async with FakeDeltaClient(tmp_path / "ads.sock", checker) as client:
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


async def test_later_snapshot_answers_for_an_earlier_one(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server, envoy_at(tmp_path) as (client, envoy):
        await client.follow(envoy, until=holds(envoy, snapshot("a")))
        earlier, later = snapshot("a", ports={"a": 1}), snapshot("a", ports={"a": 2})
        server.publish(earlier)
        server.publish(later)
        await client.follow(envoy, until=holds(envoy, later))
        answer = await server.wait_acknowledged(earlier, 5)
    assert answer.acknowledged == ("node",)


async def test_groups_have_their_own_snapshots_and_an_unpublished_group_waits(tmp_path: Path) -> None:
    server = AdsServer(tmp_path / "ads.sock", group_of=lambda identity: identity.node_id.split("-")[0])
    server.publish(snapshot("a"), "left")
    await server.start()
    try:
        async with envoy_at(tmp_path, "left-1") as (client, left), envoy_at(tmp_path, "right-1") as (other, right):
            await client.follow(left, until=holds(left, snapshot("a")))
            server.publish(snapshot("b"), "right")
            await other.follow(right, until=holds(right, snapshot("b")))
            assert (await server.wait_acknowledged(snapshot("b"), 5, group="right")).acknowledged == ("right-1",)
    finally:
        await server.stop(0)


async def test_point_40_nothing_stays_of_streams_that_ended(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server:
        tasks_before = asyncio.all_tasks()
        for number in range(60):
            async with envoy_at(tmp_path, f"node-{number % 3}") as (client, _):
                await client.receive_raw()
        async with asyncio.timeout(5):
            while sum(isinstance(event, NodeDisconnected) for event in events.events) < 60:
                await events.changed()
        assert [status.open_streams for status in server.status()] == [0, 0, 0]
        left = asyncio.all_tasks() - tasks_before
        _, pending = await asyncio.wait(left, timeout=1) if left else ((), set())
        assert len(pending) <= 2  # the server's own wait for the next stream


async def test_point_40_nodes_that_left_are_remembered_up_to_a_bound(tmp_path: Path, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events, limits=ServerLimits(max_nodes_remembered=5)) as server:
        for number in range(20):
            async with FakeDeltaClient(tmp_path / "ads.sock", ProtocolChecker(f"node-{number}")) as client:
                await client.send(client.checker.subscribe(CDS))
                await client.receive()
            await events.end_of(f"node-{number}")
        assert len(server.status()) <= 6
        assert server.status()[-1].identity.node_id == "node-19"


async def test_point_41_push_over_the_limit_comes_in_parts(tmp_path: Path, events: Recorder) -> None:
    names = [f"c{number:04}" for number in range(60)]
    offered = Snapshot.build([cluster(name) for name in names], [assignment(name, *range(1, 4_000)) for name in names])
    async with serving(tmp_path, offered, events):
        async with FakeDeltaClient(tmp_path / "ads.sock", ProtocolChecker("node")) as client:
            await client.send(client.checker.subscribe(EDS, *names))
            parts: list[Received] = []
            while sum(len(part.resources) for part in parts) < len(names):
                parts.append(await client.receive())  # the checker refuses more than 4 MiB
                await client.send(client.checker.acknowledge(parts[-1]))
    assert len(parts) > 1
