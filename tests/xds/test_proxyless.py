"""proxyless.py: what of a table a gRPC client is told, and real clients (grpcio, grpc.aio) on `xds:///MODEL`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc import aio
from pointsman.router.build import build_table
from pointsman.router.policy import Canary, CannedFallback, Endpoint, Match, MatchKind, Model, PathMatch, Policy, Route
from pointsman.router.table import Table
from pointsman.xds import api
from pointsman.xds.ads import DEFAULT_GROUP, AdsServer
from pointsman.xds.proxyless import PROXYLESS_GROUP, ProxylessResources, group_of, render_proxyless
from pointsman.xds.snapshot import Snapshot
from pointsman.xds.status import NodeIdentity, Outcome
from sample_policies import SUPPORT_POLICY, version, with_route
from sample_resources import snapshot as some_snapshot
from until import until


def snapshot_of(rendered: ProxylessResources) -> Snapshot:
    return Snapshot.build(rendered.clusters, rendered.assignments, rendered.listeners, rendered.routes)


def shares_of(rendered: ProxylessResources, model: str) -> dict[str, int]:
    configuration = next(routes for routes in rendered.routes if routes.name == model)
    route = configuration.virtual_hosts[0].routes[0].route
    return {share.name: share.weight.value for share in route.weighted_clusters.clusters}


# ---- what is rendered


def test_each_routed_model_has_a_listener_with_its_split() -> None:
    rendered = render_proxyless(build_table(SUPPORT_POLICY))
    assert {"support-chat", "embedder"} == {listener.name for listener in rendered.listeners}
    assert {"support-chat@v2.3-beta": 500, "support-chat@v2.2": 9_500} == shares_of(rendered, "support-chat")
    assert {"embedder@v1": 10_000} == shares_of(rendered, "embedder")
    assert ("model small-chat: no route takes it",) == rendered.left_out


def test_what_is_rendered_is_a_consistent_snapshot() -> None:
    assert snapshot_of(render_proxyless(build_table(SUPPORT_POLICY))).version


def test_clusters_are_the_targets_and_have_the_table_s_endpoints() -> None:
    table = build_table(SUPPORT_POLICY)
    rendered = render_proxyless(table)
    addresses = {
        assignment.cluster_name: tuple(
            f"{entry.endpoint.address.socket_address.address}:{entry.endpoint.address.socket_address.port_value}"
            for locality in assignment.endpoints
            for entry in locality.lb_endpoints
        )
        for assignment in rendered.assignments
    }
    assert addresses == {str(spec.target): spec.addresses for spec in table.targets if str(spec.target) in addresses}
    assert {"support-chat@v2.2", "support-chat@v2.3-beta", "embedder@v1"} == addresses.keys()
    assert {locality.load_balancing_weight.value for one in rendered.assignments for locality in one.endpoints} == {1}


def test_plainest_route_of_several_is_taken_whatever_their_order() -> None:
    special = Route(
        "special", ("embedder",), match=Match(paths=(PathMatch(MatchKind.PREFIX, "/special"),)), rewrite_model=True
    )
    policy = replace(with_route(), routes=(*SUPPORT_POLICY.routes, replace(special, targets=("support-chat",))))
    assert 500 == shares_of(render_proxyless(build_table(policy)), "support-chat")["support-chat@v2.3-beta"]


def test_row_that_answers_by_itself_is_left_out_with_the_reason() -> None:
    strict = with_route(qos=(), default_qos=None, targets=("support-chat",), fallback=(CannedFallback(503, 2),))
    refusing = replace(strict, models=tuple(replace(one, versions=_renamed(one)) for one in strict.models))
    rendered = render_proxyless(build_table(refusing))
    assert "support-chat" not in {listener.name for listener in rendered.listeners}
    assert any("support-chat" in line and "takes a proxy" in line for line in rendered.left_out)


def _renamed(model: Model) -> tuple[object, ...]:
    return tuple(replace(one, accepts=("another",)) for one in model.versions)


@pytest.mark.parametrize(
    ("addresses", "kind", "left_out"),
    [
        (("models.internal:80",), api.Cluster.LOGICAL_DNS, ()),
        (("10.0.0.1:80", "models.internal:80"), api.Cluster.EDS, ("models.internal:80: gRPC takes IPs, or one name",)),
        (("[::1]:80", "10.0.0.1:80"), api.Cluster.EDS, ()),
    ],
)
def test_named_endpoint_alone_is_resolved_and_beside_others_is_left_out(
    addresses: tuple[str, ...], kind: int, left_out: tuple[str, ...]
) -> None:
    served = replace(version("v1", 1, "m"), endpoints=tuple(Endpoint(address) for address in addresses))
    rendered = render_proxyless(build_table(Policy(models=(Model("m", (served,)),), routes=(Route("r", ("m",)),))))
    assert [kind] == [cluster.type for cluster in rendered.clusters]
    assert all(any(part in line for line in rendered.left_out) for part in left_out)
    assert len(left_out) == len(rendered.left_out)
    assert snapshot_of(rendered).version


@pytest.mark.parametrize(
    ("agent", "group"),
    [
        ("gRPC C-core linux Python", PROXYLESS_GROUP),
        ("gRPC Go", PROXYLESS_GROUP),
        ("grpc-java", PROXYLESS_GROUP),
        ("envoy", DEFAULT_GROUP),
        ("", DEFAULT_GROUP),
    ],
)
def test_grpc_clients_have_a_group_of_their_own(agent: str, group: str) -> None:
    assert group == group_of(NodeIdentity("n", agent=agent))


# ---- real clients

METHOD = "/test.Echo/Ask"


@asynccontextmanager
async def backend(name: str) -> AsyncIterator[int]:
    """Serve gRPC on a free port; every answer is the name."""

    async def answer(_request: bytes, _context: aio.ServicerContext[bytes, bytes]) -> bytes:
        return name.encode()

    class Echo(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
            return grpc.unary_unary_rpc_method_handler(answer) if details.method == METHOD else None

    server = aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def table_with(ports: dict[str, int], canary_parts: int) -> Table:
    """The support policy with endpoints that exist and a share for the canary."""
    models = tuple(
        replace(
            model,
            versions=tuple(
                replace(one, endpoints=(Endpoint(f"127.0.0.1:{ports[one.name]}"),)) if one.name in ports else one
                for one in model.versions
            ),
        )
        for model in SUPPORT_POLICY.models
    )
    canary = Canary(model="support-chat", version="v2.3-beta", weight_parts=canary_parts)
    return build_table(replace(with_route(canary=canary), models=models))


@pytest.fixture
async def ports() -> AsyncIterator[dict[str, int]]:
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(backend(name)) for name in ("v2.2", "v2.3-beta")}


@asynccontextmanager
async def serving(
    path: Path, monkeypatch: pytest.MonkeyPatch, offered: Snapshot, *, is_tcp: bool = False
) -> AsyncIterator[AdsServer]:
    """Serve gRPC clients, which find the server by the bootstrap that the environment names."""
    server = AdsServer(path / "ads.sock", address="127.0.0.1:0" if is_tcp else None, group_of=group_of)
    server.publish(offered, PROXYLESS_GROUP)
    server.publish(some_snapshot("a"))
    await server.start()
    bootstrap = {
        "xds_servers": [
            {
                "server_uri": server.address if is_tcp else f"unix:{path / 'ads.sock'}",
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }
        ],
        "node": {"id": "grpc-1"},
    }
    (path / "boot.json").write_text(json.dumps(bootstrap))
    monkeypatch.setenv("GRPC_XDS_BOOTSTRAP", str(path / "boot.json"))
    try:
        yield server
    finally:
        await server.stop(0)


async def ask(channel: aio.Channel, count: int) -> Counter[str]:
    """Ask many times and count who answered."""
    call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
    return Counter([(await call(b"", wait_for_ready=True, timeout=10)).decode() for _ in range(count)])


CALLS, SPREAD = 600, 56
"""At 30 % the count of 600 calls has a standard deviation of 11; five of them."""


@pytest.mark.parametrize("is_tcp", [False, True], ids=["unix", "tcp"])
async def test_aio_client_gets_the_proportions_and_follows_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: dict[str, int], is_tcp: bool
) -> None:
    split = snapshot_of(render_proxyless(table_with(ports, 3_000)))
    stable = snapshot_of(render_proxyless(table_with(ports, 0)))
    async with serving(tmp_path, monkeypatch, split, is_tcp=is_tcp) as server:
        async with aio.insecure_channel("xds:///support-chat") as channel:
            seen = await ask(channel, CALLS)
            assert abs(seen["v2.3-beta"] - 0.3 * CALLS) < SPREAD
            assert seen.total() == CALLS
            acknowledged = await server.wait_acknowledged(split, 5, group=PROXYLESS_GROUP)
            assert ("grpc-1",) == acknowledged.acknowledged
            server.publish(stable, PROXYLESS_GROUP)
            await server.wait_acknowledged(stable, 5, group=PROXYLESS_GROUP)

            async def is_stable_alone() -> bool:
                return (await ask(channel, 20)).keys() == {"v2.2"}

            await until(is_stable_alone)
            (status,) = server.status()
            assert (status.group, status.outcome, status.last_refusal) == (PROXYLESS_GROUP, Outcome.ACKNOWLEDGED, None)
            assert status.stale_requests < 5  # trap 20: a client that loops has hundreds


async def test_blocking_client_gets_the_proportions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: dict[str, int]
) -> None:
    def ask_all() -> Counter[str]:
        with grpc.insecure_channel("xds:///support-chat") as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
            return Counter([call(b"", wait_for_ready=True, timeout=10).decode() for _ in range(CALLS)])

    async with serving(tmp_path, monkeypatch, snapshot_of(render_proxyless(table_with(ports, 3_000)))):
        seen = await asyncio.to_thread(ask_all)
    assert abs(seen["v2.3-beta"] - 0.3 * CALLS) < SPREAD
    assert seen.total() == CALLS


async def test_endpoint_that_moves_is_followed_without_a_failed_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: dict[str, int]
) -> None:
    async with serving(tmp_path, monkeypatch, snapshot_of(render_proxyless(table_with(ports, 0)))) as server:
        async with aio.insecure_channel("xds:///support-chat") as channel, backend("moved") as moved:
            assert {"v2.2"} == (await ask(channel, 20)).keys()
            offered = snapshot_of(render_proxyless(table_with({**ports, "v2.2": moved}, 0)))
            server.publish(offered, PROXYLESS_GROUP)
            await server.wait_acknowledged(offered, 5, group=PROXYLESS_GROUP)

            async def has_moved() -> bool:
                return (await ask(channel, 1)).keys() == {"moved"}

            await until(has_moved)
            assert {"moved"} == (await ask(channel, 20)).keys()


async def test_model_that_is_not_in_the_table_is_unavailable_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: dict[str, int]
) -> None:
    offered = snapshot_of(render_proxyless(table_with(ports, 0)))
    async with serving(tmp_path, monkeypatch, offered) as server:
        async with aio.insecure_channel("xds:///nowhere") as channel:
            call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
            pending = asyncio.ensure_future(call(b"", timeout=30))
            await server.wait_acknowledged(offered, 5, group=PROXYLESS_GROUP)
            (status,) = server.status()
            assert [True, False] == [status.types[2].is_subscribed, status.types[3].is_subscribed]
            pending.cancel()
