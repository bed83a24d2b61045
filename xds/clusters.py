"""Table -> clusters and their assignments: targets, ladders, canned answers.

A target is a cluster of its endpoints (EDS, or STRICT_DNS where an address is a name); a ladder is an aggregate of
rungs in order; a canned rung leads to an internal listener. Panic is off and over-provisioning without limit, so that
arithmetic never spills to a lighter model (facts measured on Envoy 1.40); the limits that count are the aggregate's.
"""

from __future__ import annotations

import ipaddress

from pointsman.router.policy import Limits
from pointsman.router.table import CannedRung, Ladder, Rung, Table, TargetRung, TargetSpec
from pointsman.xds.api import (
    V3,
    AggregateClusterConfig,
    Cluster,
    ClusterLoadAssignment,
    HeaderMutation,
    HeaderMutationFilter,
    HeaderValueOption,
    InternalUpstreamTransport,
    LbEndpoint,
    RawBuffer,
    UpstreamCodec,
    UpstreamHttpOptions,
    pack,
)
from pointsman.xds.module_filter import module_filter
from pointsman.xds.names import (
    ACCEPTS_KEY,
    CANNED_TARGET,
    CONFIDENCE_HEADER,
    MARK_HEADER,
    METADATA,
    REWRITE_FILTER,
    REWRITE_HEADER,
    TARGET_KEY,
)

UPSTREAM_IDLE_MS = 4_000
"""Below the shortest keep-alive of common model servers (uvicorn: 5 s), so that Envoy closes first."""

NO_LIMIT = 1_000_000
"""Envoy's default limits (3 concurrent retries, 1,024 requests) would silently switch failover off under load."""

OVERPROVISIONING_PERCENT = 100_000
"""A rung keeps all its traffic while any endpoint is healthy: enough for 1,000 endpoints."""

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[ipv6]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_ip(host: str) -> bool:
    """Tell whether the host is an IP address (a name needs resolving, which EDS does not do)."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def render_clusters(table: Table, *, has_scanner: bool = True) -> tuple[Cluster, ...]:
    """Return every cluster that the table's rows may name, children before aggregates.

    Without the scanner's module no body is rewritten either (header mode).
    """
    children = {cluster.name: cluster for cluster in (_target_cluster(spec) for spec in table.targets)}
    ladders = table.ladders()
    for ladder in ladders:
        for rung in ladder.rungs:
            if isinstance(rung, CannedRung):
                children.setdefault(rung.key, _canned_cluster(rung))
    return (*children.values(), *(_ladder_cluster(ladder, table.limits if has_scanner else None) for ladder in ladders))


def render_assignments(table: Table) -> tuple[ClusterLoadAssignment, ...]:
    """Return the endpoints of every target that is found by EDS."""
    return tuple(_assignment(spec) for spec in table.targets if _is_discovered(spec))


def canned_rungs(table: Table) -> tuple[CannedRung, ...]:
    """Return every canned rung, each once."""
    rungs = (rung for ladder in table.ladders() for rung in ladder.rungs if isinstance(rung, CannedRung))
    return tuple(dict.fromkeys(rungs))


def _is_discovered(spec: TargetSpec) -> bool:
    return all(is_ip(split_address(address)[0]) for address in spec.addresses)


def _target_cluster(spec: TargetSpec) -> Cluster:
    cluster = Cluster(name=str(spec.target), lb_policy=Cluster.LEAST_REQUEST)
    cluster.connect_timeout.FromMilliseconds(spec.connect_timeout_ms)
    if _is_discovered(spec):
        cluster.type = Cluster.EDS
        cluster.eds_cluster_config.eds_config.ads.SetInParent()
        cluster.eds_cluster_config.eds_config.resource_api_version = V3
    else:
        cluster.type = Cluster.STRICT_DNS
        cluster.dns_lookup_family = Cluster.V4_PREFERRED
        cluster.load_assignment.CopyFrom(_assignment(spec))
    cluster.common_lb_config.healthy_panic_threshold.value = 0
    cluster.common_lb_config.update_merge_window.SetInParent()
    _lift_limits(cluster)
    options = UpstreamHttpOptions()
    options.common_http_protocol_options.idle_timeout.FromMilliseconds(UPSTREAM_IDLE_MS)
    if spec.is_http2:
        options.explicit_http_config.http2_protocol_options.SetInParent()
    else:
        options.explicit_http_config.http_protocol_options.SetInParent()
    cluster.typed_extension_protocol_options[HTTP_OPTIONS].CopyFrom(pack(options))
    return cluster


def _lift_limits(cluster: Cluster) -> None:
    threshold = cluster.circuit_breakers.thresholds.add()
    threshold.max_retries.value = NO_LIMIT
    threshold.max_requests.value = NO_LIMIT
    threshold.max_pending_requests.value = NO_LIMIT
    threshold.max_connections.value = NO_LIMIT


def _assignment(spec: TargetSpec) -> ClusterLoadAssignment:
    assignment = ClusterLoadAssignment(cluster_name=str(spec.target))
    assignment.policy.overprovisioning_factor.value = OVERPROVISIONING_PERCENT
    if spec.addresses:
        locality = assignment.endpoints.add()
        for address in spec.addresses:
            host, port = split_address(address)
            endpoint = locality.lb_endpoints.add()
            endpoint.load_balancing_weight.value = 1
            endpoint.endpoint.address.socket_address.address = host
            endpoint.endpoint.address.socket_address.port_value = port
            _name_endpoint(endpoint, str(spec.target), spec.accepts)
    return assignment


def _name_endpoint(endpoint: LbEndpoint, target: str, accepts: tuple[str, ...] = ()) -> None:
    """Put the target's name into the endpoint's metadata: the only place from which the answering rung can be told."""
    fields = endpoint.metadata.filter_metadata[METADATA].fields
    fields[TARGET_KEY].string_value = target
    if accepts:
        fields[ACCEPTS_KEY].string_value = ",".join(accepts)


def _canned_cluster(rung: CannedRung) -> Cluster:
    cluster = Cluster(name=rung.key, type=Cluster.STATIC)
    cluster.connect_timeout.FromMilliseconds(1_000)
    cluster.common_lb_config.healthy_panic_threshold.value = 0
    _lift_limits(cluster)
    cluster.load_assignment.cluster_name = rung.key
    endpoint = cluster.load_assignment.endpoints.add().lb_endpoints.add()
    endpoint.endpoint.address.envoy_internal_address.server_listener_name = rung.key
    _name_endpoint(endpoint, CANNED_TARGET)
    transport = InternalUpstreamTransport()
    transport.transport_socket.name = "envoy.transport_sockets.raw_buffer"
    transport.transport_socket.typed_config.CopyFrom(pack(RawBuffer()))
    cluster.transport_socket.name = "envoy.transport_sockets.internal_upstream"
    cluster.transport_socket.typed_config.CopyFrom(pack(transport))
    return cluster


def _ladder_cluster(ladder: Ladder, limits: Limits | None) -> Cluster:
    cluster = Cluster(name=ladder.name, lb_policy=Cluster.CLUSTER_PROVIDED)
    cluster.connect_timeout.FromMilliseconds(1_000)
    _lift_limits(cluster)
    cluster.cluster_type.name = "envoy.clusters.aggregate"
    cluster.cluster_type.typed_config.CopyFrom(
        pack(AggregateClusterConfig(clusters=[child_name(rung) for rung in ladder.rungs]))
    )
    rewrites = ladder.rewrites and limits is not None
    if rewrites or ladder.marks_confidence:
        options = _ladder_options(limits if rewrites else None, marks_confidence=ladder.marks_confidence)
        cluster.typed_extension_protocol_options[HTTP_OPTIONS].CopyFrom(pack(options))
    return cluster


def _ladder_options(rewrites_within: Limits | None, *, marks_confidence: bool) -> UpstreamHttpOptions:
    """Filters that run once a try: give the chosen rung's server a name that it accepts; mark how sure its answer is.

    They belong to the aggregate: a child's own are not run under it (measured on Envoy 1.40). The request's header is
    removed first, because tries share their headers.
    """
    options = UpstreamHttpOptions()
    options.explicit_http_config.http_protocol_options.SetInParent()
    mutation = HeaderMutationFilter()
    if rewrites_within is not None:
        mutation.mutations.request_mutations.add(remove=REWRITE_HEADER)
        _append(mutation.mutations.request_mutations.add(), REWRITE_HEADER, ACCEPTS_KEY)
    if marks_confidence:
        _append(mutation.mutations.response_mutations.add(), MARK_HEADER, TARGET_KEY, f"%RESP({CONFIDENCE_HEADER})%|")
    options.http_filters.add(name="envoy.filters.http.header_mutation").typed_config.CopyFrom(pack(mutation))
    if rewrites_within is not None:
        rewriter = pack(module_filter(REWRITE_FILTER, rewrites_within))
        options.http_filters.add(name="pointsman.rewrite").typed_config.CopyFrom(rewriter)
    options.http_filters.add(name="envoy.filters.http.upstream_codec").typed_config.CopyFrom(pack(UpstreamCodec()))
    return options


def _append(mutation: HeaderMutation, header: str, metadata_key: str, before: str = "") -> None:
    mutation.append.append_action = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    mutation.append.header.key = header
    mutation.append.header.value = f"{before}%UPSTREAM_METADATA({METADATA}:{metadata_key})%"


def child_name(rung: Rung) -> str:
    """Return the name of the rung's own cluster."""
    return str(rung.target) if isinstance(rung, TargetRung) else rung.key
