"""Envoy's bootstrap: who it is, where its agent's sockets are, what it may use of the machine.

All else comes by xDS. Refuses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.xds.api import (
    V3,
    Bootstrap,
    Cluster,
    DownstreamConnectionsConfig,
    FixedHeapConfig,
    InternalListener,
    UpstreamHttpOptions,
    pack,
)
from pointsman.xds.clusters import HTTP_OPTIONS
from pointsman.xds.names import LOG_CLUSTER, NODE_CLUSTER, XDS_CLUSTER

RECONNECT_BASE_MS = 100
RECONNECT_MAX_MS = 1_000
"""Back-off to the agent: it is on the same machine, so a restart should be noticed within a second (facts 20.7)."""

MAX_REGEX_PROGRAM = 100_000
"""RE2 instructions an expression may compile to: all that the policy decoder accepts (512 characters) fits;
Envoy's default of 100 would refuse `[0-9]{99}`."""


TRACKED_BUFFER_POWER = 20
"""Streams that buffer 1 MiB or more are tracked, in classes of powers of two; smaller ones are never reset."""


@dataclass(frozen=True, slots=True)
class BootstrapSpec:
    """Identity, sockets (paths) and limits of one Envoy."""

    node_id: str
    admin_socket: str
    xds_socket: str
    log_socket: str
    max_heap_bytes: int = 2_147_483_648
    max_connections: int = 20_000


def render_bootstrap(spec: BootstrapSpec) -> Bootstrap:
    """Return the bootstrap message."""
    bootstrap = Bootstrap()
    bootstrap.node.id = spec.node_id
    bootstrap.node.cluster = NODE_CLUSTER
    bootstrap.admin.address.pipe.path = spec.admin_socket
    bootstrap.admin.address.pipe.mode = 0o600
    bootstrap.static_resources.clusters.append(_agent_cluster(XDS_CLUSTER, spec.xds_socket))
    bootstrap.static_resources.clusters.append(_agent_cluster(LOG_CLUSTER, spec.log_socket))
    resources = bootstrap.dynamic_resources
    ads = resources.ads_config
    ads.api_type = ads.DELTA_GRPC
    ads.transport_api_version = V3
    service = ads.grpc_services.add().envoy_grpc
    service.cluster_name = XDS_CLUSTER
    service.retry_policy.retry_back_off.base_interval.FromMilliseconds(RECONNECT_BASE_MS)
    service.retry_policy.retry_back_off.max_interval.FromMilliseconds(RECONNECT_MAX_MS)
    for source in (resources.lds_config, resources.cds_config):
        source.ads.SetInParent()
        source.resource_api_version = V3
    internal = bootstrap.bootstrap_extensions.add(name="envoy.bootstrap.internal_listener")
    internal.typed_config.CopyFrom(pack(InternalListener()))
    _add_runtime(bootstrap)
    _add_overload(bootstrap, spec)
    return bootstrap


def _agent_cluster(name: str, socket: str) -> Cluster:
    cluster = Cluster(name=name, type=Cluster.STATIC)
    cluster.connect_timeout.FromMilliseconds(1_000)
    cluster.load_assignment.cluster_name = name
    endpoint = cluster.load_assignment.endpoints.add().lb_endpoints.add().endpoint
    endpoint.address.pipe.path = socket
    options = UpstreamHttpOptions()
    http2 = options.explicit_http_config.http2_protocol_options
    http2.connection_keepalive.interval.FromMilliseconds(30_000)
    http2.connection_keepalive.timeout.FromMilliseconds(5_000)
    cluster.typed_extension_protocol_options[HTTP_OPTIONS].CopyFrom(pack(options))
    return cluster


def _add_runtime(bootstrap: Bootstrap) -> None:
    layer = bootstrap.layered_runtime.layers.add(name="static").static_layer
    layer.fields["tracing.opentelemetry.min_flush_spans"].number_value = 256
    layer.fields["tracing.opentelemetry.flush_interval_ms"].number_value = 1_000
    # An empty text of Envoy's own counts as none, so that error messages can fall back to its cause (listeners.py).
    layer.fields["envoy.reloadable_features.coalesce_formatter_accept_empty_values"].bool_value = False
    layer.fields["re2.max_program_size.error_level"].number_value = MAX_REGEX_PROGRAM
    layer.fields["re2.max_program_size.warn_level"].number_value = MAX_REGEX_PROGRAM


def _add_overload(bootstrap: Bootstrap, spec: BootstrapSpec) -> None:
    """Heap over 88 %: the largest streams are reset; 90 %: memory goes back; 95 %: requests are refused."""
    overload = bootstrap.overload_manager
    overload.refresh_interval.FromMilliseconds(250)
    heap = overload.resource_monitors.add(name="envoy.resource_monitors.fixed_heap")
    heap.typed_config.CopyFrom(pack(FixedHeapConfig(max_heap_size_bytes=spec.max_heap_bytes)))
    connections = overload.resource_monitors.add(name="envoy.resource_monitors.global_downstream_max_connections")
    connections.typed_config.CopyFrom(
        pack(DownstreamConnectionsConfig(max_active_downstream_connections=spec.max_connections))
    )
    for name, value in (
        ("envoy.overload_actions.shrink_heap", 0.90),
        ("envoy.overload_actions.stop_accepting_requests", 0.95),
    ):
        trigger = overload.actions.add(name=name).triggers.add(name="envoy.resource_monitors.fixed_heap")
        trigger.threshold.value = value
    # Many stalled uploads hold more than any one of them may: the largest streams are reset first, from 90 % on.
    overload.buffer_factory_config.minimum_account_to_track_power_of_two = TRACKED_BUFFER_POWER
    reset = overload.actions.add(name="envoy.overload_actions.reset_high_memory_stream")
    scaled = reset.triggers.add(name="envoy.resource_monitors.fixed_heap").scaled
    scaled.scaling_threshold = 0.88
    scaled.saturation_threshold = 0.94
