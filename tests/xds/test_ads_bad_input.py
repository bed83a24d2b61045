"""ads.py when a client does wrong, in either variant: its stream ends with a reason, a good one beside it goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from ads_rig import Recorder, beside_a_good_client, checker_of, client_at, envoy_at, holds, serving
from grpc import aio
from joined_stream import both_variants
from pointsman.xds import api
from pointsman.xds.ads import ServerLimits
from pointsman.xds.fake_client import CDS, EDS, FakeDeltaClient, ProtocolChecker
from pointsman.xds.status import (
    EndReason,
    NodeConnected,
    Outcome,
    ResourceRefused,
)
from pointsman.xds.stream import StreamLimits
from pointsman.xds.variant import VariantName
from sample_resources import snapshot


@pytest.fixture
def events() -> Recorder:
    return Recorder()


@both_variants
async def test_garbage_ends_the_stream_with_invalid_argument(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events, variant) as bad:
        await bad.send_raw(b"\xff\xff\xff")
        code, text = await bad.end_status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"3 bytes do not parse as {'Delta' if variant == 'delta' else ''}DiscoveryRequest" in text


@both_variants
async def test_garbage_later_ends_the_stream_with_invalid_argument(
    tmp_path: Path, variant: str, events: Recorder
) -> None:
    async with beside_a_good_client(tmp_path, events, variant) as bad:
        await bad.send(bad.checker.subscribe(CDS))
        await bad.receive()
        await bad.send_raw(b"\xff\xff\xff")
        code, _ = await bad.end_status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert await events.end_of("bad") is EndReason.MALFORMED


async def test_point_1_first_request_without_a_node_is_refused(tmp_path: Path, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events, "delta") as bad:
        await bad.send_raw(api.DeltaDiscoveryRequest(type_url=CDS.value).SerializeToString())
        code, text = await bad.end_status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "node.id" in text


@both_variants
async def test_point_1_later_requests_need_no_node(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events, variant) as bad:
        await bad.send(bad.checker.subscribe(CDS))
        await bad.receive()
        later = bad.checker.subscribe(EDS, "a")
        assert not later.HasField("node")
        await bad.send(later)
        assert list((await bad.receive()).resources) == ["a"]


async def test_point_2_missing_type_is_refused(tmp_path: Path, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events, "delta") as bad:
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
    async with beside_a_good_client(tmp_path, events, "delta", limits=limits) as bad:
        await bad.send(bad.checker.subscribe(CDS))
        raw = api.DeltaDiscoveryRequest(type_url=CDS.value, response_nonce="x").SerializeToString()
        for _ in range(51):
            await bad.send_raw(raw)
        await bad.receive()
        code, text = await bad.end_status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "more requests" in text
        assert await events.end_of("bad") is EndReason.TOO_MANY_REQUESTS


@both_variants
async def test_too_many_names_end_the_stream_with_resource_exhausted(
    tmp_path: Path, variant: str, events: Recorder
) -> None:
    limits = ServerLimits(stream=StreamLimits(max_names=100))
    async with beside_a_good_client(tmp_path, events, variant, limits=limits) as bad:
        await bad.send(bad.checker.subscribe(EDS, *(f"n{number}" for number in range(101))))
        code, text = await bad.end_status()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "more names" in text


@both_variants
async def test_client_that_never_acknowledges_is_cut_off(tmp_path: Path, variant: str, events: Recorder) -> None:
    limits = ServerLimits(stream=StreamLimits(acknowledge_s=0.1))
    async with beside_a_good_client(tmp_path, events, variant, limits=limits) as bad:
        await bad.send(bad.checker.subscribe(CDS))
        await bad.receive()
        code, _ = await bad.end_status()
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await events.end_of("bad") is EndReason.NEVER_ACKNOWLEDGED


async def test_point_38_client_that_does_not_read_is_cut_off(tmp_path: Path, events: Recorder) -> None:
    limits = ServerLimits(send_s=0.2)
    async with beside_a_good_client(tmp_path, events, "delta", limits=limits) as bad:
        # Names that do not exist are answered at once with all of them: more than the connection's window, unread.
        names = [f"{number:05}" + "x" * 1_000 for number in range(10_000)]
        first = bad.checker.subscribe(EDS, *names)
        await bad.send(first)
        assert await events.end_of("bad") is EndReason.NOT_READING


@both_variants
async def test_half_closed_stream_ends_without_an_error(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events, variant) as bad:
        await bad.send(bad.checker.subscribe(CDS))
        await bad.receive()
        await bad.half_close()
        code, _ = await bad.end_status()
        assert code is grpc.StatusCode.OK
        assert await events.end_of("bad") is EndReason.CLOSED_BY_CLIENT


@both_variants
async def test_stream_closed_before_the_first_request_ends_without_an_error(
    tmp_path: Path, variant: str, events: Recorder
) -> None:
    async with beside_a_good_client(tmp_path, events, variant) as bad:
        await bad.half_close()
        code, _ = await bad.end_status()
        assert code is grpc.StatusCode.OK
    assert not [
        event for event in events.events if isinstance(event, NodeConnected) and event.identity.node_id != "good"
    ]


@both_variants
async def test_client_that_vanishes_is_noticed(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server:
        async with envoy_at(tmp_path, variant=variant) as (client, envoy):
            await client.follow(envoy, until=holds(envoy, snapshot("a")))
        assert await events.end_of("node") is EndReason.CLOSED_BY_CLIENT
        (status,) = server.status()
        assert not status.is_connected
        assert status.acknowledged_snapshot == snapshot("a").version


@pytest.mark.parametrize(
    "method",
    [
        "AggregatedDiscoveryService/Nowhere",
        "ClusterDiscoveryService/StreamClusters",
        "ClusterDiscoveryService/FetchClusters",
    ],
)
async def test_point_42_other_methods_are_unimplemented(tmp_path: Path, events: Recorder, method: str) -> None:
    async with serving(tmp_path, snapshot("a"), events):
        async with aio.insecure_channel(f"unix:{tmp_path / 'ads.sock'}") as channel:
            path = f"/envoy.service.discovery.v3.{method}"
            call: aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(path)()
            async with asyncio.timeout(5):
                assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_request_of_ten_megabytes_is_taken_and_one_over_the_bound_ends_its_stream(
    tmp_path: Path, events: Recorder
) -> None:
    async with beside_a_good_client(tmp_path, events, "sotw") as bad:
        # Ten megabytes that say little: an error text; of it the end is kept.
        await bad.send(bad.checker.subscribe(CDS))
        await bad.send(bad.checker.refuse(await bad.receive(), "dump " * 2_000_000 + "the reason"))
        refused = await events.wait(lambda event: isinstance(event, ResourceRefused))
        assert isinstance(refused, ResourceRefused)
        assert len(refused.text) < 1_100
        await bad.send_raw(b"\0" * (17 * 1_024 * 1_024))
        code, _ = await bad.end_status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await events.end_of("bad") is EndReason.CLOSED_BY_CLIENT


@both_variants
async def test_ten_megabytes_of_names_end_the_stream(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events, variant) as bad:
        await bad.send(bad.checker.subscribe(EDS, *(f"{number:0100}" for number in range(100_000))))
        code, _ = await bad.end_status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await events.end_of("bad") is EndReason.TOO_MANY_NAMES


@both_variants
async def test_name_and_node_of_a_megabyte_are_refused(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events, variant) as bad:
        await bad.send(bad.checker.subscribe(EDS, "x" * 1_000_000))
        code, text = await bad.end_status()
        assert (code, "at most" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    async with beside_a_good_client(tmp_path, events, variant):
        async with client_at(tmp_path, checker_of(variant, "x" * 1_000_000)) as worse:
            await worse.send(worse.checker.subscribe(CDS))
            code, text = await worse.end_status()
            assert (code, "node.id" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@both_variants
async def test_point_10_foreign_nonces_are_counted_and_change_nothing(
    tmp_path: Path, variant: str, events: Recorder
) -> None:
    async with serving(tmp_path, snapshot("a"), events) as server:
        async with envoy_at(tmp_path, variant=variant) as (client, envoy):
            await client.follow(envoy, until=holds(envoy, snapshot("a")))
            await server.wait_acknowledged(snapshot("a"), 5)
            message = envoy.checker.subscribe(EDS)
            message.response_nonce = "of another stream"
            message.error_detail.message = "what was never sent"
            await client.send(*[message] * 5)
            server.publish(snapshot("a", ports={"a": 1}))
            await client.follow(envoy, until=holds(envoy, snapshot("a", ports={"a": 1})))
            await server.wait_acknowledged(snapshot("a", ports={"a": 1}), 5)
            (status,) = server.status()
            assert (status.stale_requests, status.last_refusal, status.outcome) == (5, None, Outcome.ACKNOWLEDGED)


async def test_peer_that_speaks_http_1_is_turned_away(tmp_path: Path, events: Recorder) -> None:
    async with beside_a_good_client(tmp_path, events, "delta"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "ads.sock")
        writer.write(b"POST /v3/discovery:clusters HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert b"HTTP/1.1 200" not in answer
        writer.close()


async def test_two_streams_of_one_node_in_different_variants_are_both_served(tmp_path: Path, events: Recorder) -> None:
    offered, newer = snapshot("a"), snapshot("a", ports={"a": 1})
    async with serving(tmp_path, offered, events) as server:
        async with envoy_at(tmp_path) as (first, one), envoy_at(tmp_path, variant="sotw") as (second, two):
            await first.follow(one, until=holds(one, offered))
            await second.follow(two, until=holds(two, offered))
            server.publish(newer)
            await first.follow(one, until=holds(one, newer))
            await second.follow(two, until=holds(two, newer))
            await server.wait_acknowledged(newer, 5)
            (status,) = server.status()
            assert (status.open_streams, status.variant) == (2, VariantName.STATE_OF_THE_WORLD)


@both_variants
async def test_streams_over_the_bound_are_refused(tmp_path: Path, variant: str, events: Recorder) -> None:
    async with serving(tmp_path, snapshot("a"), events, limits=ServerLimits(max_streams=1)):
        async with envoy_at(tmp_path, "one", variant=variant) as (client, envoy):
            await client.follow(envoy, until=holds(envoy, snapshot("a")))
            async with client_at(tmp_path, checker_of(variant, "two")) as second:
                code, _ = await second.end_status()
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
