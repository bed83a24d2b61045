"""ads.py on a real socket: start, stop, restart, publishing, groups, what stays of streams that ended."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest
from ads_rig import Recorder, checker_of, envoy_at, holds, serving
from joined_stream import both_variants
from pointsman.xds.ads import AdsRefused, AdsServer
from pointsman.xds.fake_client import RDS, FakeClient, FakeEnvoy
from pointsman.xds.status import (
    EndReason,
    NodeConnected,
    NodeIdentity,
    ResourceAcked,
)
from sample_resources import snapshot


@pytest.fixture
def events() -> Recorder:
    return Recorder()


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


@both_variants
async def test_socket_of_a_dead_process_is_replaced_and_that_of_a_successor_is_left(
    tmp_path: Path, variant: str, events: Recorder
) -> None:
    first = AdsServer(tmp_path / "ads.sock")
    first.publish(snapshot("a"))
    await first.start()
    async with serving(tmp_path, snapshot("a"), events):
        await first.stop(0)
        async with envoy_at(tmp_path, variant=variant) as (client, envoy):
            await client.follow(envoy, until=holds(envoy, snapshot("a")))


@both_variants
async def test_envoy_is_served_and_its_events_are_told(tmp_path: Path, variant: str, events: Recorder) -> None:
    offered = snapshot("a", "b")
    async with serving(tmp_path, offered, events), envoy_at(tmp_path, variant=variant) as (client, envoy):
        await client.follow(envoy, until=holds(envoy, offered))
        await events.wait(lambda event: isinstance(event, ResourceAcked) and event.type_url is RDS)
    assert events.events[0] == NodeConnected(NodeIdentity("node"), "default")
    acked = [event.type_url.label for event in events.events if isinstance(event, ResourceAcked)]
    assert acked == ["CDS", "EDS", "LDS", "RDS"]
    assert await events.end_of("node") is not None


async def test_point_29_restart_with_the_same_content_sends_nothing_again(tmp_path: Path, events: Recorder) -> None:
    offered = snapshot("a", "b")
    async with serving(tmp_path, offered, events), envoy_at(tmp_path) as (client, envoy):
        await client.follow(envoy, until=holds(envoy, offered))
    async with serving(tmp_path, snapshot("a", "b"), events) as server:
        async with envoy_at(tmp_path, before=envoy) as (client, again):
            await client.follow(again, until=lambda: again.checker.responses == 4)
            await server.wait_acknowledged(offered, 5)
    assert again.checker.resources_received == 0


async def test_point_6_state_of_the_world_client_is_sent_all_again_after_a_restart(
    tmp_path: Path, events: Recorder
) -> None:
    offered = snapshot("a", "b")
    async with serving(tmp_path, offered, events), envoy_at(tmp_path, variant="sotw") as (client, envoy):
        await client.follow(envoy, until=holds(envoy, offered))
    async with serving(tmp_path, snapshot("a", "b"), events) as server:
        async with envoy_at(tmp_path, variant="sotw", before=envoy) as (client, again):
            await client.follow(again, until=lambda: again.checker.responses == 4)
            await server.wait_acknowledged(offered, 5)


@both_variants
async def test_publish_reaches_the_client_within_milliseconds(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with (
        serving(tmp_path, snapshot("a"), events) as server,
        envoy_at(tmp_path, variant=variant) as (client, envoy),
    ):
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


@both_variants
async def test_stop_ends_streams_with_unavailable(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with (
        serving(tmp_path, snapshot("a"), events) as server,
        envoy_at(tmp_path, variant=variant) as (client, envoy),
    ):
        await client.follow(envoy, until=holds(envoy, snapshot("a")))
        await server.stop(1)
        code, _ = await client.end_status()
        assert code is grpc.StatusCode.UNAVAILABLE
    assert await events.end_of("node") is EndReason.SERVER_STOPPED


# ---- on an address, besides


@both_variants
async def test_address_is_served_besides_the_socket(tmp_path: Path, variant: str, events: Recorder) -> None:
    server = AdsServer(tmp_path / "ads.sock", address="127.0.0.1:0", on_event=events)
    server.publish(snapshot("a"))
    assert server.address is None
    await server.start()
    try:
        assert server.address is not None
        assert not server.address.endswith(":0")
        envoy = FakeEnvoy(checker_of(variant, "node"))
        async with FakeClient(None, envoy.checker, address=server.address) as client:
            await client.send(*envoy.start())
            await client.follow(envoy, until=holds(envoy, snapshot("a")))
        async with envoy_at(tmp_path, variant=variant) as (beside, other):
            await beside.follow(other, until=holds(other, snapshot("a")))
        second = AdsServer(tmp_path / "other.sock", address=server.address)
        second.publish(snapshot("a"))
        with pytest.raises(AdsRefused, match="cannot listen on 127"):
            await second.start()
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "localhost:1", "127.0.0.1", "127.0.0.1:x", ""]
)
def test_address_that_others_could_reach_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(AdsRefused, match="no loopback IP with a port"):
        AdsServer(tmp_path / "ads.sock", address=address)
