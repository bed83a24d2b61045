"""What the fleet's server serves: clusters over ADS with their endpoints, one listener, routes that name them all."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.xds import api
from pointsman.xds.snapshot import Resource, Snapshot

CLUSTERS = 50
ENDPOINTS_EACH = 20
"""1,000 endpoints in all."""

DEFAULT_WEIGHT = 100


class Fleet:
    """Makes the snapshots; only assignments whose weights changed are made anew."""

    def __init__(self) -> None:
        """Every endpoint has the same weight."""
        self._names = [f"model-{number:03}@v1" for number in range(CLUSTERS)]
        self._clusters = [Resource.of(_cluster(name)) for name in self._names]
        self._assignments = {
            name: Resource.of(_assignment(number, name, {})) for number, name in enumerate(self._names)
        }
        self._front = (Resource.of(_listener()), Resource.of(_routes(self._names)))
        self.snapshot = self._build(None)

    def change_weight(self, round_number: int) -> Snapshot:
        """Give one endpoint of one cluster another weight and return the snapshot."""
        number = round_number % CLUSTERS
        weights = {round_number % ENDPOINTS_EACH: DEFAULT_WEIGHT + 1 + round_number}
        self._assignments[self._names[number]] = Resource.of(_assignment(number, self._names[number], weights))
        self.snapshot = self._build(self.snapshot)
        return self.snapshot

    def _build(self, previous: Snapshot | None) -> Snapshot:
        listener, routes = self._front
        return Snapshot.build(self._clusters, self._assignments.values(), [listener], [routes], previous=previous)


def _cluster(name: str) -> api.Cluster:
    made = api.Cluster(name=name, type=api.Cluster.EDS)
    made.connect_timeout.FromMilliseconds(250)
    made.eds_cluster_config.eds_config.ads.SetInParent()
    made.eds_cluster_config.eds_config.resource_api_version = api.V3
    return made


def _assignment(number: int, name: str, weights: Mapping[int, int]) -> api.ClusterLoadAssignment:
    made = api.ClusterLoadAssignment(cluster_name=name)
    group = made.endpoints.add()
    for place in range(ENDPOINTS_EACH):
        endpoint = group.lb_endpoints.add()
        endpoint.load_balancing_weight.value = weights.get(place, DEFAULT_WEIGHT)
        address = endpoint.endpoint.address.socket_address
        address.address = f"10.0.{number}.{place + 1}"
        address.port_value = 8_000
    return made


def _listener() -> api.Listener:
    manager = api.HttpConnectionManager(stat_prefix="in")
    manager.http_filters.add(name="envoy.filters.http.router").typed_config.CopyFrom(api.pack(api.Router()))
    manager.rds.route_config_name = "main"
    manager.rds.config_source.ads.SetInParent()
    manager.rds.config_source.resource_api_version = api.V3
    made = api.Listener(name="in")
    made.address.socket_address.address = "127.0.0.1"
    made.address.socket_address.port_value = 10_000
    made.filter_chains.add().filters.add(name="hcm").typed_config.CopyFrom(api.pack(manager))
    return made


def _routes(names: list[str]) -> api.RouteConfiguration:
    made = api.RouteConfiguration(name="main")
    host = made.virtual_hosts.add(name="all", domains=["*"])
    for name in names:
        route = host.routes.add(name=name)
        route.match.prefix = f"/{name}/"
        route.route.cluster = name
    return made
