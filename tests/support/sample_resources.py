"""Small Envoy resources for the xDS tests: EDS clusters, assignments, ladders, listeners, routes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pointsman.xds import api
from pointsman.xds.snapshot import Snapshot


def cluster(name: str, *, timeout_s: int = 1) -> api.Cluster:
    """Return a cluster that takes its endpoints over ADS."""
    made = api.Cluster(name=name, type=api.Cluster.EDS)
    made.connect_timeout.seconds = timeout_s
    made.eds_cluster_config.eds_config.ads.SetInParent()
    made.eds_cluster_config.eds_config.resource_api_version = api.V3
    return made


def ladder(name: str, children: Iterable[str]) -> api.Cluster:
    """Return an aggregate cluster over the children."""
    made = api.Cluster(name=name, lb_policy=api.Cluster.CLUSTER_PROVIDED)
    made.cluster_type.name = "envoy.clusters.aggregate"
    made.cluster_type.typed_config.CopyFrom(api.pack(api.AggregateClusterConfig(clusters=children)))
    made.connect_timeout.seconds = 1
    return made


def assignment(name: str, *ports: int) -> api.ClusterLoadAssignment:
    """Return the endpoints of a cluster, on 127.0.0.1."""
    made = api.ClusterLoadAssignment(cluster_name=name)
    for port in ports:
        address = made.endpoints.add().lb_endpoints.add().endpoint.address.socket_address
        address.address = "127.0.0.1"
        address.port_value = port
    return made


def row(*shares: str, name: str = "row") -> api.Route:
    """Return a route for everything to the clusters, in equal parts."""
    made = api.Route(name=name)
    made.match.prefix = "/"
    if len(shares) == 1:
        made.route.cluster = shares[0]
    for share in shares if len(shares) > 1 else ():
        made.route.weighted_clusters.clusters.add(name=share).weight.value = 1
    return made


def routes(name: str, *clusters: str) -> api.RouteConfiguration:
    """Return a route configuration whose one row goes to the clusters."""
    made = api.RouteConfiguration(name=name)
    host = made.virtual_hosts.add(name="all", domains=["*"])
    if clusters:
        host.routes.append(row(*clusters))
    return made


def leaf(*clusters: str) -> api.Any:
    """Return a leaf of a route tree: a RouteList with one row for each cluster."""
    return api.pack(api.RouteList(routes=[row(name) for name in clusters]))


def tree(leaves: Mapping[str, api.Any], *, header: str = "x-model") -> api.Matcher:
    """Return a matcher that chooses a leaf by a header's value."""
    made = api.Matcher()
    made.matcher_tree.input.name = "header"
    made.matcher_tree.input.typed_config.CopyFrom(api.pack(api.HttpRequestHeaderMatchInput(header_name=header)))
    for key, packed in leaves.items():
        action = made.matcher_tree.exact_match_map.map[key].action
        action.name = "route"
        action.typed_config.CopyFrom(packed)
    return made


def tree_routes(name: str, matcher: api.Matcher) -> api.RouteConfiguration:
    """Return a route configuration whose virtual host chooses by the matcher."""
    made = api.RouteConfiguration(name=name)
    made.virtual_hosts.add(name="all", domains=["*"]).matcher.CopyFrom(matcher)
    return made


def manager(**fields: object) -> api.HttpConnectionManager:
    """Return a connection manager with a router filter."""
    made = api.HttpConnectionManager(stat_prefix="in", **fields)  # type: ignore[arg-type]
    made.http_filters.add(name="envoy.filters.http.router").typed_config.CopyFrom(api.pack(api.Router()))
    return made


def listener(name: str, route_name: str, *, port: int = 10_000) -> api.Listener:
    """Return a listener on 127.0.0.1 that takes its routes over ADS."""
    served = manager()
    served.rds.route_config_name = route_name
    served.rds.config_source.ads.SetInParent()
    served.rds.config_source.resource_api_version = api.V3
    return listener_of(name, served, port=port)


def listener_of(name: str, served: api.HttpConnectionManager, *, port: int = 10_000) -> api.Listener:
    """Return a listener on 127.0.0.1 with the connection manager."""
    made = api.Listener(name=name)
    made.address.socket_address.address = "127.0.0.1"
    made.address.socket_address.port_value = port
    network_filter = made.filter_chains.add().filters.add(name="envoy.filters.network.http_connection_manager")
    network_filter.typed_config.CopyFrom(api.pack(served))
    return made


def snapshot(*names: str, used: Iterable[str] | None = None, ports: Mapping[str, int] | None = None) -> Snapshot:
    """Return a snapshot with a cluster for each name, one listener `in`, and routes `main` to `used` (or to all)."""
    found = ports or {}
    return Snapshot.build(
        [cluster(name) for name in names],
        [assignment(name, found.get(name, 9_000)) for name in names],
        [listener("in", "main")],
        [routes("main", *(names if used is None else used))],
    )
