"""What one Envoy resource names in others: clusters, endpoint assignments, route configurations.

Decides nothing; snapshot.py checks the names, stream.py orders pushes by them. Reads routes in their three places: a
virtual host's rows, the leaves of its `matcher` tree (Route or RouteList in an Any), and a listener's inline route
configuration. Refuses what it cannot read: an action of another type, a custom matcher, bytes that do not parse; each
comes back as a problem. Not followed: clusters named by headers, cluster specifier plugins, access loggers and tracers
(their clusters are static, in the bootstrap).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from google.protobuf.message import DecodeError
from pointsman.xds import api

ResourceMessage: TypeAlias = api.Cluster | api.ClusterLoadAssignment | api.Listener | api.RouteConfiguration
"""The four messages that a snapshot is made of."""

_LEAVES_CACHED = 4096
"""Leaves of route trees whose clusters are remembered: ten tables of 400 leaves, about 4 MB of keys."""

_ADS_SOURCES = frozenset({None, "ads", "self"})
"""Config sources that are served here; a path or another server is somebody else's promise."""

_ROUTE_URL = api.type_url(api.Route)
_ROUTE_LIST_URL = api.type_url(api.RouteList)
_HCM_URL = api.type_url(api.HttpConnectionManager)
_AGGREGATE_URL = api.type_url(api.AggregateClusterConfig)


@dataclass(frozen=True, slots=True)
class References:
    """Names that one resource needs; `problems` says what could not be read."""

    clusters: frozenset[str] = frozenset()
    assignments: frozenset[str] = frozenset()
    routes: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


NO_REFERENCES = References()


def read_references(message: ResourceMessage) -> References:
    """Return the names that the message needs in other resources."""
    if isinstance(message, api.Cluster):
        return _cluster_references(message)
    if isinstance(message, api.RouteConfiguration):
        return _route_references(message)
    if isinstance(message, api.Listener):
        return _listener_references(message)
    return NO_REFERENCES


def _cluster_references(cluster: api.Cluster) -> References:
    discovery = cluster.WhichOneof("cluster_discovery_type")
    if discovery == "cluster_type":
        config = cluster.cluster_type.typed_config
        if config.type_url != _AGGREGATE_URL:
            return NO_REFERENCES
        try:
            children = api.unpack(config, api.AggregateClusterConfig).clusters
        except DecodeError:
            return References(problems=("the aggregate's configuration does not parse",))
        return References(clusters=frozenset(children))
    if cluster.type != api.Cluster.EDS:
        return NO_REFERENCES
    eds = cluster.eds_cluster_config
    if eds.eds_config.WhichOneof("config_source_specifier") not in _ADS_SOURCES:
        return NO_REFERENCES
    return References(assignments=frozenset({eds.service_name or cluster.name}))


def _listener_references(listener: api.Listener) -> References:
    routes: set[str] = set()
    found = _Found()
    for packed in _connection_managers(listener):
        try:
            manager = api.unpack(packed, api.HttpConnectionManager)
        except DecodeError:
            found.problems.add("an HTTP connection manager does not parse")
            continue
        specifier = manager.WhichOneof("route_specifier")
        if specifier == "rds" and manager.rds.config_source.WhichOneof("config_source_specifier") in _ADS_SOURCES:
            routes.add(manager.rds.route_config_name)
        elif specifier == "route_config":
            found.read_configuration(manager.route_config)
    return References(
        clusters=frozenset(found.clusters), routes=frozenset(routes), problems=tuple(sorted(found.problems))
    )


def _connection_managers(listener: api.Listener) -> Iterator[api.Any]:
    chains = list(listener.filter_chains)
    if listener.HasField("default_filter_chain"):
        chains.append(listener.default_filter_chain)
    for chain in chains:
        for network_filter in chain.filters:
            if network_filter.typed_config.type_url == _HCM_URL:
                yield network_filter.typed_config
    if listener.api_listener.api_listener.type_url == _HCM_URL:
        yield listener.api_listener.api_listener


def _route_references(configuration: api.RouteConfiguration) -> References:
    found = _Found()
    found.read_configuration(configuration)
    return References(clusters=frozenset(found.clusters), problems=tuple(sorted(found.problems)))


class _Found:
    """Clusters and problems met on a walk through route configurations."""

    __slots__ = ("clusters", "problems")

    def __init__(self) -> None:
        self.clusters: set[str] = set()
        self.problems: set[str] = set()

    def read_configuration(self, configuration: api.RouteConfiguration) -> None:
        self.clusters.update(policy.cluster for policy in configuration.request_mirror_policies if policy.cluster)
        for host in configuration.virtual_hosts:
            self.clusters.update(policy.cluster for policy in host.request_mirror_policies if policy.cluster)
            self.clusters.update(_clusters_of_routes(host.routes))
            if host.HasField("matcher"):
                self._read_matcher(host.matcher, host.name)

    def _read_matcher(self, matcher: api.Matcher, host: str) -> None:
        # The parser bounds the depth (100 nested messages), so recursion is safe on untrusted bytes too.
        if matcher.HasField("on_no_match"):
            self._read_match(matcher.on_no_match, host)
        kind = matcher.WhichOneof("matcher_type")
        if kind == "matcher_list":
            for field_matcher in matcher.matcher_list.matchers:
                self._read_match(field_matcher.on_match, host)
        elif kind == "matcher_tree":
            tree = matcher.matcher_tree
            if tree.WhichOneof("tree_type") == "custom_match":
                self.problems.add(
                    f'virtual host "{host}": a custom matcher cannot be checked; use exact or prefix maps'
                )
            for on_match in tree.exact_match_map.map.values():
                self._read_match(on_match, host)
            for on_match in tree.prefix_match_map.map.values():
                self._read_match(on_match, host)

    def _read_match(self, on_match: api.Matcher.OnMatch, host: str) -> None:
        if on_match.WhichOneof("on_match") == "matcher":
            self._read_matcher(on_match.matcher, host)
            return
        packed = on_match.action.typed_config
        try:
            self.clusters.update(_leaf_clusters(packed.type_url, packed.value))
        except ValueError as error:
            self.problems.add(f'virtual host "{host}": {error}')


@lru_cache(maxsize=_LEAVES_CACHED)
def _leaf_clusters(url: str, value: bytes) -> frozenset[str]:
    """Return the clusters that a leaf names; ValueError when it is no readable Route or RouteList."""
    try:
        if url == _ROUTE_LIST_URL:
            return frozenset(_clusters_of_routes(api.RouteList.FromString(value).routes))
        if url == _ROUTE_URL:
            return frozenset(_clusters_of_routes((api.Route.FromString(value),)))
    except DecodeError:
        raise ValueError(f"a leaf of type {url} does not parse") from None
    raise ValueError(f"a leaf is of type {url or '(none)'}, expected Route or RouteList")


def _clusters_of_routes(routes: Iterable[api.Route]) -> set[str]:
    # A plain loop with few calls: a table of 400 leaves passes here 5,000 times.
    found: set[str] = set()
    for route in routes:
        if not route.HasField("route"):
            continue
        action = route.route
        if action.HasField("weighted_clusters"):
            found.update([entry.name for entry in action.weighted_clusters.clusters])
        else:
            found.add(action.cluster)
        if action.request_mirror_policies:
            found.update(policy.cluster for policy in action.request_mirror_policies)
    # A cluster that comes from a header or a plugin has no name here and is not checkable.
    found.discard("")
    return found
