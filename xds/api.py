"""The Envoy messages in use, from the descriptor set that the build made (setup.py).

They live in a private descriptor pool: xds-protos is not installed at run time, because its wheel would overwrite
`opentelemetry/proto`. Type checkers see protoc's stubs; the program sees classes made from `envoy_api.binpb` in about 15 ms.
A message is packed into an Any with `pack`, read from one with `unpack`.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

if TYPE_CHECKING:
    from envoy.config.accesslog.v3.accesslog_pb2 import AccessLog as AccessLog
    from envoy.config.accesslog.v3.accesslog_pb2 import ComparisonFilter as ComparisonFilter
    from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap as Bootstrap
    from envoy.config.cluster.v3.circuit_breaker_pb2 import CircuitBreakers as CircuitBreakers
    from envoy.config.cluster.v3.cluster_pb2 import Cluster as Cluster
    from envoy.config.common.mutation_rules.v3.mutation_rules_pb2 import HeaderMutation as HeaderMutation
    from envoy.config.core.v3.address_pb2 import Address as Address
    from envoy.config.core.v3.base_pb2 import DataSource as DataSource
    from envoy.config.core.v3.base_pb2 import HeaderValueOption as HeaderValueOption
    from envoy.config.core.v3.base_pb2 import Metadata as Metadata
    from envoy.config.core.v3.base_pb2 import Node as Node
    from envoy.config.core.v3.base_pb2 import TransportSocket as TransportSocket
    from envoy.config.core.v3.config_source_pb2 import V3 as V3
    from envoy.config.core.v3.config_source_pb2 import ApiConfigSource as ApiConfigSource
    from envoy.config.core.v3.config_source_pb2 import ConfigSource as ConfigSource
    from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig as TypedExtensionConfig
    from envoy.config.core.v3.grpc_service_pb2 import GrpcService as GrpcService
    from envoy.config.core.v3.protocol_pb2 import Http1ProtocolOptions as Http1ProtocolOptions
    from envoy.config.core.v3.protocol_pb2 import Http2ProtocolOptions as Http2ProtocolOptions
    from envoy.config.core.v3.protocol_pb2 import HttpProtocolOptions as HttpProtocolOptions
    from envoy.config.core.v3.substitution_format_string_pb2 import SubstitutionFormatString as SubstitutionFormatString
    from envoy.config.endpoint.v3.endpoint_components_pb2 import LbEndpoint as LbEndpoint
    from envoy.config.endpoint.v3.endpoint_components_pb2 import LocalityLbEndpoints as LocalityLbEndpoints
    from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment as ClusterLoadAssignment
    from envoy.config.listener.v3.listener_components_pb2 import Filter as Filter
    from envoy.config.listener.v3.listener_components_pb2 import FilterChain as FilterChain
    from envoy.config.listener.v3.listener_pb2 import Listener as Listener
    from envoy.config.overload.v3.overload_pb2 import OverloadManager as OverloadManager
    from envoy.config.route.v3.route_components_pb2 import HeaderMatcher as HeaderMatcher
    from envoy.config.route.v3.route_components_pb2 import RetryPolicy as RetryPolicy
    from envoy.config.route.v3.route_components_pb2 import Route as Route
    from envoy.config.route.v3.route_components_pb2 import RouteAction as RouteAction
    from envoy.config.route.v3.route_components_pb2 import RouteList as RouteList
    from envoy.config.route.v3.route_components_pb2 import VirtualHost as VirtualHost
    from envoy.config.route.v3.route_components_pb2 import WeightedCluster as WeightedCluster
    from envoy.config.route.v3.route_pb2 import RouteConfiguration as RouteConfiguration
    from envoy.config.trace.v3.http_tracer_pb2 import Tracing as Tracing
    from envoy.config.trace.v3.opentelemetry_pb2 import OpenTelemetryConfig as OpenTelemetryConfig
    from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogCommon as AccessLogCommon
    from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry as HTTPAccessLogEntry
    from envoy.data.accesslog.v3.accesslog_pb2 import ResponseFlags as ResponseFlags
    from envoy.extensions.access_loggers.grpc.v3.als_pb2 import HttpGrpcAccessLogConfig as HttpGrpcAccessLogConfig
    from envoy.extensions.bootstrap.internal_listener.v3.internal_listener_pb2 import (
        InternalListener as InternalListener,
    )
    from envoy.extensions.clusters.aggregate.v3.cluster_pb2 import ClusterConfig as AggregateClusterConfig
    from envoy.extensions.dynamic_modules.v3.dynamic_modules_pb2 import DynamicModuleConfig as DynamicModuleConfig
    from envoy.extensions.filters.http.dynamic_modules.v3.dynamic_modules_pb2 import (
        DynamicModuleFilter as DynamicModuleFilter,
    )
    from envoy.extensions.filters.http.header_mutation.v3.header_mutation_pb2 import (
        HeaderMutation as HeaderMutationFilter,
    )
    from envoy.extensions.filters.http.router.v3.router_pb2 import Router as Router
    from envoy.extensions.filters.http.upstream_codec.v3.upstream_codec_pb2 import UpstreamCodec as UpstreamCodec
    from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
        HttpConnectionManager as HttpConnectionManager,
    )
    from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
        LocalReplyConfig as LocalReplyConfig,
    )
    from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
        ResponseMapper as ResponseMapper,
    )
    from envoy.extensions.http.early_header_mutation.header_mutation.v3.header_mutation_pb2 import (
        HeaderMutation as EarlyHeaderMutation,
    )
    from envoy.extensions.request_id.uuid.v3.uuid_pb2 import UuidRequestIdConfig as UuidRequestIdConfig
    from envoy.extensions.resource_monitors.downstream_connections.v3.downstream_connections_pb2 import (
        DownstreamConnectionsConfig as DownstreamConnectionsConfig,
    )
    from envoy.extensions.resource_monitors.fixed_heap.v3.fixed_heap_pb2 import FixedHeapConfig as FixedHeapConfig
    from envoy.extensions.retry.host.previous_hosts.v3.previous_hosts_pb2 import (
        PreviousHostsPredicate as PreviousHostsPredicate,
    )
    from envoy.extensions.retry.priority.previous_priorities.v3.previous_priorities_config_pb2 import (
        PreviousPrioritiesConfig as PreviousPrioritiesConfig,
    )
    from envoy.extensions.transport_sockets.internal_upstream.v3.internal_upstream_pb2 import (
        InternalUpstreamTransport as InternalUpstreamTransport,
    )
    from envoy.extensions.transport_sockets.raw_buffer.v3.raw_buffer_pb2 import RawBuffer as RawBuffer
    from envoy.extensions.upstreams.http.v3.http_protocol_options_pb2 import HttpProtocolOptions as UpstreamHttpOptions
    from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage as StreamAccessLogsMessage
    from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsResponse as StreamAccessLogsResponse
    from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest as DeltaDiscoveryRequest
    from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse as DeltaDiscoveryResponse
    from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest as DiscoveryRequest
    from envoy.service.discovery.v3.discovery_pb2 import DiscoveryResponse as DiscoveryResponse
    from envoy.service.discovery.v3.discovery_pb2 import Resource as Resource
    from envoy.type.matcher.v3.http_inputs_pb2 import HttpRequestHeaderMatchInput as HttpRequestHeaderMatchInput
    from google.protobuf.any_pb2 import Any as Any
    from google.protobuf.struct_pb2 import Struct as Struct
    from google.protobuf.wrappers_pb2 import StringValue as StringValue
    from google.rpc.status_pb2 import Status as Status

    from xds.type.matcher.v3.matcher_pb2 import Matcher as Matcher
    from xds.type.v3.typed_struct_pb2 import TypedStruct as TypedStruct

    _POOL: descriptor_pool.DescriptorPool
else:
    V3 = 2

    def _load_pool() -> descriptor_pool.DescriptorPool:
        data = resources.files(__package__).joinpath("envoy_api.binpb")
        if not data.is_file():
            raise ImportError(
                "xds/envoy_api.binpb is missing: the build makes it, run `make setup` (or reinstall pointsman)"
            )
        pool = descriptor_pool.DescriptorPool()
        for proto in descriptor_pb2.FileDescriptorSet.FromString(data.read_bytes()).file:
            pool.Add(proto)
        return pool

    _POOL = _load_pool()

    def _message_class(full_name: str) -> type[Message]:
        return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full_name))

    AccessLog = _message_class("envoy.config.accesslog.v3.AccessLog")
    ComparisonFilter = _message_class("envoy.config.accesslog.v3.ComparisonFilter")
    Bootstrap = _message_class("envoy.config.bootstrap.v3.Bootstrap")
    Cluster = _message_class("envoy.config.cluster.v3.Cluster")
    CircuitBreakers = _message_class("envoy.config.cluster.v3.CircuitBreakers")
    Address = _message_class("envoy.config.core.v3.Address")
    ApiConfigSource = _message_class("envoy.config.core.v3.ApiConfigSource")
    ConfigSource = _message_class("envoy.config.core.v3.ConfigSource")
    DataSource = _message_class("envoy.config.core.v3.DataSource")
    GrpcService = _message_class("envoy.config.core.v3.GrpcService")
    HeaderValueOption = _message_class("envoy.config.core.v3.HeaderValueOption")
    Http1ProtocolOptions = _message_class("envoy.config.core.v3.Http1ProtocolOptions")
    Http2ProtocolOptions = _message_class("envoy.config.core.v3.Http2ProtocolOptions")
    HttpProtocolOptions = _message_class("envoy.config.core.v3.HttpProtocolOptions")
    Metadata = _message_class("envoy.config.core.v3.Metadata")
    Node = _message_class("envoy.config.core.v3.Node")
    SubstitutionFormatString = _message_class("envoy.config.core.v3.SubstitutionFormatString")
    TransportSocket = _message_class("envoy.config.core.v3.TransportSocket")
    TypedExtensionConfig = _message_class("envoy.config.core.v3.TypedExtensionConfig")
    ClusterLoadAssignment = _message_class("envoy.config.endpoint.v3.ClusterLoadAssignment")
    LbEndpoint = _message_class("envoy.config.endpoint.v3.LbEndpoint")
    LocalityLbEndpoints = _message_class("envoy.config.endpoint.v3.LocalityLbEndpoints")
    Filter = _message_class("envoy.config.listener.v3.Filter")
    FilterChain = _message_class("envoy.config.listener.v3.FilterChain")
    Listener = _message_class("envoy.config.listener.v3.Listener")
    OverloadManager = _message_class("envoy.config.overload.v3.OverloadManager")
    HeaderMatcher = _message_class("envoy.config.route.v3.HeaderMatcher")
    Route = _message_class("envoy.config.route.v3.Route")
    RouteAction = _message_class("envoy.config.route.v3.RouteAction")
    RouteConfiguration = _message_class("envoy.config.route.v3.RouteConfiguration")
    RouteList = _message_class("envoy.config.route.v3.RouteList")
    RetryPolicy = _message_class("envoy.config.route.v3.RetryPolicy")
    VirtualHost = _message_class("envoy.config.route.v3.VirtualHost")
    WeightedCluster = _message_class("envoy.config.route.v3.WeightedCluster")
    OpenTelemetryConfig = _message_class("envoy.config.trace.v3.OpenTelemetryConfig")
    Tracing = _message_class("envoy.config.trace.v3.Tracing")
    AccessLogCommon = _message_class("envoy.data.accesslog.v3.AccessLogCommon")
    HTTPAccessLogEntry = _message_class("envoy.data.accesslog.v3.HTTPAccessLogEntry")
    ResponseFlags = _message_class("envoy.data.accesslog.v3.ResponseFlags")
    HttpGrpcAccessLogConfig = _message_class("envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig")
    InternalListener = _message_class("envoy.extensions.bootstrap.internal_listener.v3.InternalListener")
    AggregateClusterConfig = _message_class("envoy.extensions.clusters.aggregate.v3.ClusterConfig")
    DynamicModuleConfig = _message_class("envoy.extensions.dynamic_modules.v3.DynamicModuleConfig")
    DynamicModuleFilter = _message_class("envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter")
    HeaderMutation = _message_class("envoy.config.common.mutation_rules.v3.HeaderMutation")
    HeaderMutationFilter = _message_class("envoy.extensions.filters.http.header_mutation.v3.HeaderMutation")
    Router = _message_class("envoy.extensions.filters.http.router.v3.Router")
    UpstreamCodec = _message_class("envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec")
    HttpConnectionManager = _message_class(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    )
    LocalReplyConfig = _message_class("envoy.extensions.filters.network.http_connection_manager.v3.LocalReplyConfig")
    ResponseMapper = _message_class("envoy.extensions.filters.network.http_connection_manager.v3.ResponseMapper")
    EarlyHeaderMutation = _message_class(
        "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
    )
    UuidRequestIdConfig = _message_class("envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig")
    DownstreamConnectionsConfig = _message_class(
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    )
    FixedHeapConfig = _message_class("envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig")
    PreviousHostsPredicate = _message_class("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate")
    PreviousPrioritiesConfig = _message_class(
        "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig"
    )
    InternalUpstreamTransport = _message_class(
        "envoy.extensions.transport_sockets.internal_upstream.v3.InternalUpstreamTransport"
    )
    RawBuffer = _message_class("envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer")
    UpstreamHttpOptions = _message_class("envoy.extensions.upstreams.http.v3.HttpProtocolOptions")
    StreamAccessLogsMessage = _message_class("envoy.service.accesslog.v3.StreamAccessLogsMessage")
    StreamAccessLogsResponse = _message_class("envoy.service.accesslog.v3.StreamAccessLogsResponse")
    DeltaDiscoveryRequest = _message_class("envoy.service.discovery.v3.DeltaDiscoveryRequest")
    DeltaDiscoveryResponse = _message_class("envoy.service.discovery.v3.DeltaDiscoveryResponse")
    DiscoveryRequest = _message_class("envoy.service.discovery.v3.DiscoveryRequest")
    DiscoveryResponse = _message_class("envoy.service.discovery.v3.DiscoveryResponse")
    Resource = _message_class("envoy.service.discovery.v3.Resource")
    HttpRequestHeaderMatchInput = _message_class("envoy.type.matcher.v3.HttpRequestHeaderMatchInput")
    Any = _message_class("google.protobuf.Any")
    StringValue = _message_class("google.protobuf.StringValue")
    Struct = _message_class("google.protobuf.Struct")
    Status = _message_class("google.rpc.Status")
    Matcher = _message_class("xds.type.matcher.v3.Matcher")
    TypedStruct = _message_class("xds.type.v3.TypedStruct")

TYPE_URL_PREFIX = "type.googleapis.com/"

M = TypeVar("M", bound=Message)
"""Any message."""


def message_pool() -> descriptor_pool.DescriptorPool:
    """Return the private pool, for json_format and the like."""
    return _POOL


def type_url(message: Message | type[Message]) -> str:
    """Return the type URL under which the message travels in an Any."""
    return TYPE_URL_PREFIX + message.DESCRIPTOR.full_name


def pack(message: Message) -> Any:
    """Return the message in an Any, serialised deterministically so that equal content has equal bytes."""
    return Any(type_url=type_url(message), value=message.SerializeToString(deterministic=True))


def unpack(packed: Any, message_type: type[M]) -> M:
    """Return the message in the Any; ValueError when it holds another type."""
    if packed.type_url != type_url(message_type):
        raise ValueError(f"expected {type_url(message_type)}, found {packed.type_url}")
    return message_type.FromString(packed.value)


__all__ = [
    "TYPE_URL_PREFIX",
    "V3",
    "AccessLog",
    "AccessLogCommon",
    "Address",
    "AggregateClusterConfig",
    "Any",
    "ApiConfigSource",
    "Bootstrap",
    "CircuitBreakers",
    "Cluster",
    "ClusterLoadAssignment",
    "ComparisonFilter",
    "ConfigSource",
    "DataSource",
    "DeltaDiscoveryRequest",
    "DeltaDiscoveryResponse",
    "DiscoveryRequest",
    "DiscoveryResponse",
    "DownstreamConnectionsConfig",
    "DynamicModuleConfig",
    "DynamicModuleFilter",
    "EarlyHeaderMutation",
    "Filter",
    "FilterChain",
    "FixedHeapConfig",
    "GrpcService",
    "HTTPAccessLogEntry",
    "HeaderMatcher",
    "HeaderMutation",
    "HeaderMutationFilter",
    "HeaderValueOption",
    "Http1ProtocolOptions",
    "Http2ProtocolOptions",
    "HttpConnectionManager",
    "HttpGrpcAccessLogConfig",
    "HttpProtocolOptions",
    "HttpRequestHeaderMatchInput",
    "InternalListener",
    "InternalUpstreamTransport",
    "LbEndpoint",
    "Listener",
    "LocalReplyConfig",
    "LocalityLbEndpoints",
    "M",
    "Matcher",
    "Metadata",
    "Node",
    "OpenTelemetryConfig",
    "OverloadManager",
    "PreviousHostsPredicate",
    "PreviousPrioritiesConfig",
    "RawBuffer",
    "Resource",
    "ResponseFlags",
    "ResponseMapper",
    "RetryPolicy",
    "Route",
    "RouteAction",
    "RouteConfiguration",
    "RouteList",
    "Router",
    "Status",
    "StreamAccessLogsMessage",
    "StreamAccessLogsResponse",
    "StringValue",
    "Struct",
    "SubstitutionFormatString",
    "Tracing",
    "TransportSocket",
    "TypedExtensionConfig",
    "TypedStruct",
    "UpstreamCodec",
    "UpstreamHttpOptions",
    "UuidRequestIdConfig",
    "VirtualHost",
    "WeightedCluster",
    "message_pool",
    "pack",
    "type_url",
    "unpack",
]
