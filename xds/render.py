"""Table and settings -> every Envoy resource of one sidecar.

Pure but for the row cache that it keeps between tables. Refuses nothing: the snapshot checks what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.router.policy import Settings
from pointsman.router.table import Table
from pointsman.xds.api import Cluster, ClusterLoadAssignment, Listener, RouteConfiguration, UpstreamHttpOptions, pack
from pointsman.xds.clusters import HTTP_OPTIONS, canned_rungs, is_ip, render_assignments, render_clusters, split_address
from pointsman.xds.listeners import ListenerSpec, render_canned_listener, render_listener
from pointsman.xds.names import OTLP_CLUSTER
from pointsman.xds.routes import RouteRenderer


@dataclass(frozen=True, slots=True)
class Rendered:
    """One consistent set: what a snapshot is built from."""

    clusters: tuple[Cluster, ...]
    assignments: tuple[ClusterLoadAssignment, ...]
    listeners: tuple[Listener, ...]
    routes: tuple[RouteConfiguration, ...]


class Renderer:
    """Renders one sidecar's tables; rows that did not change are not rendered again."""

    def __init__(self, *, has_scanner: bool, logs_tries: bool = True) -> None:
        """`has_scanner`: Envoy loads the body scanner; else requests are routed by headers only."""
        self._has_scanner = has_scanner
        self._logs_tries = logs_tries
        self._routes_for: tuple[bool, bool] | None = None
        self._routes = RouteRenderer()

    def render(self, table: Table, settings: Settings) -> Rendered:
        """Return the resources of the table under the settings."""
        traces = settings.tracing.otlp is not None
        wanted = (settings.answer_headers, traces)
        if wanted != self._routes_for:
            self._routes_for = wanted
            self._routes = RouteRenderer(
                answers_headers=settings.answer_headers, traces=traces, has_scanner=self._has_scanner
            )
        spec = ListenerSpec(
            address=settings.listen,
            limits=settings.limits,
            sample_ratio=settings.tracing.sample_ratio if traces else None,
            has_scanner=self._has_scanner,
            logs_tries=self._logs_tries,
            answers_headers=settings.answer_headers,
        )
        collector = (_otlp_cluster(settings.tracing.otlp),) if settings.tracing.otlp else ()
        return Rendered(
            clusters=(*collector, *render_clusters(table, has_scanner=self._has_scanner)),
            assignments=render_assignments(table),
            listeners=(render_listener(spec), *(render_canned_listener(rung) for rung in canned_rungs(table))),
            routes=(self._routes.render(table),),
        )


def _otlp_cluster(address: str) -> Cluster:
    """The trace collector; Envoy drops spans that it cannot deliver and counts them."""
    host, port = split_address(address)
    cluster = Cluster(name=OTLP_CLUSTER, type=Cluster.STATIC if is_ip(host) else Cluster.STRICT_DNS)
    cluster.dns_lookup_family = Cluster.V4_PREFERRED
    cluster.connect_timeout.FromMilliseconds(1_000)
    cluster.load_assignment.cluster_name = OTLP_CLUSTER
    endpoint = cluster.load_assignment.endpoints.add().lb_endpoints.add().endpoint
    endpoint.address.socket_address.address = host
    endpoint.address.socket_address.port_value = port
    options = UpstreamHttpOptions()
    options.explicit_http_config.http2_protocol_options.SetInParent()
    cluster.typed_extension_protocol_options[HTTP_OPTIONS].CopyFrom(pack(options))
    return cluster
