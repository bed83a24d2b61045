"""Table -> resources for gRPC clients without a proxy: for each model a listener, so that `xds:///MODEL` works.

Decides what of the table such a client can be told: the split of the model's plainest row, by base weights, and the
endpoints of its targets. Leaves out, with the reason, what it cannot have. What it cannot be told at all (matchers,
pins, classes, sticky keys, ladders, canned answers) is in docs/xds.md. Pure; the snapshot checks what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.router.policy import Target
from pointsman.router.table import AUTO, Branch, ClassChoice, ModelNode, Row, Table, TargetSpec
from pointsman.xds.ads import DEFAULT_GROUP
from pointsman.xds.api import (
    V3,
    Cluster,
    ClusterLoadAssignment,
    ConfigSource,
    HttpConnectionManager,
    Listener,
    RouteConfiguration,
    Router,
    pack,
)
from pointsman.xds.clusters import is_ip, split_address
from pointsman.xds.status import NodeIdentity

PROXYLESS_GROUP = "proxyless"
"""The group of gRPC clients; Envoys are in the default one."""

_GRPC_AGENT = "grpc"
"""How every gRPC implementation's user_agent_name begins ("gRPC C-core linux Python", "gRPC Go", "grpc-java")."""

_REGION = "local"
"""gRPC takes no endpoints without a locality; there is one."""


@dataclass(frozen=True, slots=True)
class ProxylessResources:
    """One consistent set, as a snapshot is built from, and what of the table is not in it."""

    clusters: tuple[Cluster, ...]
    assignments: tuple[ClusterLoadAssignment, ...]
    listeners: tuple[Listener, ...]
    routes: tuple[RouteConfiguration, ...]
    left_out: tuple[str, ...]
    """A line for each model without a listener, and for each target with endpoints that gRPC cannot be told."""


def is_proxyless(identity: NodeIdentity) -> bool:
    """Return whether the node is a gRPC client."""
    return identity.agent.lower().startswith(_GRPC_AGENT)


def group_of(identity: NodeIdentity) -> str:
    """Return the group whose snapshot the node is to have."""
    return PROXYLESS_GROUP if is_proxyless(identity) else DEFAULT_GROUP


def render_proxyless(table: Table) -> ProxylessResources:
    """Return the resources of the table for gRPC clients."""
    left_out: list[str] = []
    listeners: list[Listener] = []
    routes: list[RouteConfiguration] = []
    used: set[Target] = set()
    for node in table.nodes:
        if node.key == AUTO:
            continue
        shares = _shares(node)
        if isinstance(shares, str):
            left_out.append(f"model {node.key}: {shares}")
            continue
        listeners.append(_listener(node.key))
        routes.append(_routes(node.key, shares))
        used.update(shares)
    specs = [spec for spec in table.targets if spec.target in used]
    for spec in specs:
        names = [address for address in spec.addresses if not is_ip(split_address(address)[0])]
        if names and not _is_one_name(spec):
            left_out.append(f"target {spec.target}: {', '.join(names)}: gRPC takes IPs, or one name alone")
    return ProxylessResources(
        clusters=tuple(_cluster(spec) for spec in specs),
        assignments=tuple(_assignment(spec) for spec in specs if not _is_one_name(spec)),
        listeners=tuple(listeners),
        routes=tuple(routes),
        left_out=tuple(left_out),
    )


def _shares(node: ModelNode) -> dict[Target, int] | str:
    """Return the parts of each target in the model's plainest row; a text says why there is none.

    Plainest: the fewest conditions, since a client without a proxy states none, and no class.
    """
    if not node.unpinned.branches:
        return "no route takes it"
    branch = min(node.unpinned.branches, key=_conditions)
    row = branch.outcome.default if isinstance(branch.outcome, ClassChoice) else branch.outcome
    if not isinstance(row, Row):
        return f"route {branch.route} has nobody to send to: {row.message}"
    shares: dict[Target, int] = {}
    for arm in row.arms:
        target = arm.ladder.first_target
        if target is None:
            return f"route {branch.route} answers by itself, which takes a proxy"
        # gRPC asks for no cluster without weight.
        if arm.base:
            shares[target] = shares.get(target, 0) + arm.base
    return shares


def _conditions(branch: Branch) -> tuple[int, int]:
    # A model's calls have its intent; paths and headers are a special case of them.
    return bool(branch.paths) + len(branch.headers), bool(branch.intents)


def _is_one_name(spec: TargetSpec) -> bool:
    return len(spec.addresses) == 1 and not is_ip(split_address(spec.addresses[0])[0])


def _over_ads() -> ConfigSource:
    source = ConfigSource(resource_api_version=V3)
    source.ads.SetInParent()
    return source


def _listener(model: str) -> Listener:
    manager = HttpConnectionManager()
    manager.rds.route_config_name = model
    manager.rds.config_source.CopyFrom(_over_ads())
    manager.http_filters.add(name="envoy.filters.http.router").typed_config.CopyFrom(pack(Router()))
    listener = Listener(name=model)
    listener.api_listener.api_listener.CopyFrom(pack(manager))
    return listener


def _routes(model: str, shares: dict[Target, int]) -> RouteConfiguration:
    configuration = RouteConfiguration(name=model)
    route = configuration.virtual_hosts.add(name=model, domains=["*"]).routes.add(name=model)
    route.match.prefix = ""
    for target, parts in shares.items():
        route.route.weighted_clusters.clusters.add(name=str(target)).weight.value = parts
    return configuration


def _cluster(spec: TargetSpec) -> Cluster:
    # Of a cluster gRPC reads the discovery and the policy; round robin is what all of its implementations have.
    cluster = Cluster(name=str(spec.target), lb_policy=Cluster.ROUND_ROBIN)
    if _is_one_name(spec):
        cluster.type = Cluster.LOGICAL_DNS
        cluster.load_assignment.CopyFrom(_assignment(spec))
    else:
        cluster.type = Cluster.EDS
        cluster.eds_cluster_config.eds_config.CopyFrom(_over_ads())
    return cluster


def _assignment(spec: TargetSpec) -> ClusterLoadAssignment:
    assignment = ClusterLoadAssignment(cluster_name=str(spec.target))
    addresses = [split_address(address) for address in spec.addresses]
    if not _is_one_name(spec):
        addresses = [(host, port) for host, port in addresses if is_ip(host)]
    if addresses:
        locality = assignment.endpoints.add()
        locality.locality.region = _REGION
        locality.load_balancing_weight.value = 1
        for host, port in addresses:
            socket = locality.lb_endpoints.add().endpoint.address.socket_address
            socket.address = host
            socket.port_value = port
    return assignment
