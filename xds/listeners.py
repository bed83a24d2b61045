"""Settings and table -> listeners: the one that clients talk to, and an internal one for each canned rung.

The chain, in order: early header mutation (internal headers out, aliases in), body scanner, router; around it access
logs, tracing, and local replies in the API's error shape. Refuses nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from google.protobuf.struct_pb2 import NULL_VALUE
from pointsman.router.entry import LOGGED_REQUEST_HEADERS, LOGGED_RESPONSE_HEADERS
from pointsman.router.policy import Limits
from pointsman.router.request import (
    CLASS_ALIAS,
    CLASS_HEADER,
    INTERNAL_HEADERS,
    INTERNAL_PREFIXES,
    PIN_ALIAS,
    PIN_HEADER,
)
from pointsman.router.table import AUTO, CannedRung, Reason
from pointsman.xds.api import (
    V3,
    AccessLog,
    ComparisonFilter,
    EarlyHeaderMutation,
    HeaderValueOption,
    HttpConnectionManager,
    HttpGrpcAccessLogConfig,
    Listener,
    OpenTelemetryConfig,
    Router,
    UuidRequestIdConfig,
    pack,
)
from pointsman.xds.clusters import split_address
from pointsman.xds.module_filter import module_filter
from pointsman.xds.names import (
    ATTEMPT_HEADER,
    LADDER_TAG,
    LISTENER,
    LOG_CLUSTER,
    METADATA,
    MODEL_HEADER,
    OTLP_CLUSTER,
    REASON_HEADER,
    REQUEST_LOG,
    ROUTES,
    SCANNER_FILTER,
    SPAN_ID_TAG,
    TARGET_KEY,
    TRACE_ID_TAG,
    TRY_LOG,
)

HCM = "envoy.filters.network.http_connection_manager"

LOG_FLUSH_MS = 50
"""Design section 8: from a try's end to the new table 250 ms, of which the log may take this."""

LOG_BUFFER_BYTES = 65_536
"""Some 80 entries a message under load: a smaller buffer costs the agent 10 us a request (docs/performance.md)."""

BUFFER_MARGIN_BYTES = 8_388_608
"""What a connection may buffer beyond an inspected body: the read in which a chunked body turns out too long comes
on top, and one read takes all that the kernel holds (Linux: up to 6 MiB, tcp_rmem). Less would answer 413 by chance."""

REQUEST_HEADERS_TIMEOUT_MS = 10_000
"""A client that does not finish its headers is cut (slow headers would hold connections)."""

MAX_REQUEST_HEADERS = 200

_INVALID = "invalid_request_error"
_ERROR_KINDS = (
    (404, _INVALID, "not_found"),
    (405, _INVALID, "method_not_allowed"),
    (408, _INVALID, "request_timeout"),
    (413, _INVALID, "request_too_large"),
    (415, _INVALID, "unsupported_media_type"),
    (426, _INVALID, "upgrade_required"),
    (429, "rate_limit_error", "too_many_requests"),
    (431, _INVALID, "request_headers_too_large"),
)
"""Error type and code of local replies with just that status (OpenAI's error object)."""

_OTHER_ERRORS = ((500, "server_error", "service_unavailable"), (400, _INVALID, "bad_request"))
"""The same for statuses from that one up, highest first."""

_ERROR_MESSAGE = '%COALESCE({"operators": ["LOCAL_REPLY_BODY", "RESPONSE_CODE_DETAILS"]})%'
"""Envoy has no text for some of its own refusals (a request without Host); then its word for the cause is told."""


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """What a listener needs besides the table. `sample_ratio` None: no tracing."""

    address: str
    limits: Limits
    sample_ratio: float | None
    has_scanner: bool
    logs_tries: bool = True
    answers_headers: bool = True


def render_listener(spec: ListenerSpec) -> Listener:
    """Return the listener that clients talk to."""
    host, port = split_address(spec.address)
    listener = Listener(name=LISTENER)
    listener.address.socket_address.address = host
    listener.address.socket_address.port_value = port
    listener.per_connection_buffer_limit_bytes.value = spec.limits.inspect_body_bytes + BUFFER_MARGIN_BYTES
    http_filter = listener.filter_chains.add().filters.add(name=HCM)
    http_filter.typed_config.CopyFrom(pack(_connection_manager(spec)))
    return listener


def _connection_manager(spec: ListenerSpec) -> HttpConnectionManager:
    manager = HttpConnectionManager(stat_prefix="pointsman", codec_type=HttpConnectionManager.AUTO)
    manager.server_header_transformation = HttpConnectionManager.PASS_THROUGH
    manager.skip_xff_append = True
    manager.use_remote_address.value = False
    manager.preserve_external_request_id = True
    manager.request_headers_timeout.FromMilliseconds(REQUEST_HEADERS_TIMEOUT_MS)
    manager.common_http_protocol_options.max_headers_count.value = MAX_REQUEST_HEADERS
    manager.http2_protocol_options.allow_connect = True
    manager.upgrade_configs.add(upgrade_type="websocket")
    request_id = UuidRequestIdConfig()
    request_id.pack_trace_reason.value = False
    request_id.use_request_id_for_trace_sampling.value = False
    manager.request_id_extension.typed_config.CopyFrom(pack(request_id))
    manager.rds.route_config_name = ROUTES
    manager.rds.config_source.ads.SetInParent()
    manager.rds.config_source.resource_api_version = V3
    early = manager.early_header_mutation_extensions.add(name="envoy.http.early_header_mutation.header_mutation")
    early.typed_config.CopyFrom(pack(_early_mutations()))
    _add_local_replies(manager, answers_headers=spec.answers_headers)
    if spec.has_scanner:
        manager.http_filters.add(name="pointsman.scan").typed_config.CopyFrom(
            pack(module_filter(SCANNER_FILTER, spec.limits))
        )
    router = Router(suppress_envoy_headers=True)
    if spec.logs_tries:
        router.upstream_log.append(_try_log())
    manager.http_filters.add(name="envoy.filters.http.router").typed_config.CopyFrom(pack(router))
    manager.access_log.append(_request_log())
    if spec.sample_ratio is not None:
        _add_tracing(manager, spec.sample_ratio)
    return manager


def _early_mutations() -> EarlyHeaderMutation:
    early = EarlyHeaderMutation()
    names = "|".join([*(f"{prefix}.*" for prefix in INTERNAL_PREFIXES), *INTERNAL_HEADERS])
    remove = early.mutations.add().remove_on_match.key_matcher.safe_regex
    remove.regex = names
    for name, value, action in (
        (MODEL_HEADER, AUTO, HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD),
        (PIN_HEADER, f"%REQ({PIN_ALIAS})%", HeaderValueOption.APPEND_IF_EXISTS_OR_ADD),
        (CLASS_HEADER, f"%REQ({CLASS_ALIAS})%", HeaderValueOption.ADD_IF_ABSENT),
    ):
        option = early.mutations.add().append
        option.append_action = action
        option.header.key = name
        option.header.value = value
    return early


def _log(name: str, config: HttpGrpcAccessLogConfig) -> AccessLog:
    common = config.common_config
    common.log_name = name
    common.transport_api_version = V3
    common.grpc_service.envoy_grpc.cluster_name = LOG_CLUSTER
    common.buffer_flush_interval.FromMilliseconds(LOG_FLUSH_MS)
    common.buffer_size_bytes.value = LOG_BUFFER_BYTES
    log = AccessLog(name="envoy.access_loggers.http_grpc")
    log.typed_config.CopyFrom(pack(config))
    return log


def _request_log() -> AccessLog:
    config = HttpGrpcAccessLogConfig()
    config.additional_request_headers_to_log.extend(LOGGED_REQUEST_HEADERS)
    config.additional_response_headers_to_log.extend(LOGGED_RESPONSE_HEADERS)
    for tag, value in (
        (TRACE_ID_TAG, "%TRACE_ID%"),
        (SPAN_ID_TAG, "%SPAN_ID%"),
        (LADDER_TAG, "%UPSTREAM_CLUSTER%"),
    ):
        config.common_config.custom_tags.add(tag=tag, value=value)
    return _log(REQUEST_LOG, config)


def _try_log() -> AccessLog:
    """Tries that failed, were flagged, or came after another; a request that went well at once stands for its try
    (router/outcome.py), which saves a third of the logging.
    """
    config = HttpGrpcAccessLogConfig()
    config.additional_request_headers_to_log.append(ATTEMPT_HEADER)
    config.additional_response_headers_to_log.extend(("x-model-confidence", "retry-after"))
    log = _log(TRY_LOG, config)
    told = log.filter.or_filter.filters
    failed = told.add().status_code_filter.comparison
    failed.op = ComparisonFilter.GE
    failed.value.default_value = 400
    failed.value.runtime_key = "pointsman.try_log.status"
    told.add().response_flag_filter.SetInParent()
    later = told.add().header_filter.header
    later.name = ATTEMPT_HEADER
    later.string_match.exact = "1"
    later.invert_match = True
    return log


def _add_tracing(manager: HttpConnectionManager, sample_ratio: float) -> None:
    tracing = manager.tracing
    tracing.spawn_upstream_span.value = True
    tracing.random_sampling.value = sample_ratio * 100
    for tag, value in (
        ("pointsman.target", f"%UPSTREAM_METADATA({METADATA}:{TARGET_KEY})%"),
        ("pointsman.reason", f"%RESP({REASON_HEADER})%"),
        # Envoy's own value has the query and the client's host, which may hold a key or a password.
        ("http.url", "%REQ(:SCHEME)%://%DOWNSTREAM_LOCAL_ADDRESS%%PATH(NQ)%"),
    ):
        tracing.custom_tags.add(tag=tag, value=value)
    # Envoy's own tags of headers outside the contract: whatever a client writes there is no business of a span.
    for tag in ("user_agent", "guid:x-client-trace-id"):
        tracing.custom_tags.add(tag=tag).literal.value = "-"
    tracing.custom_tags.add(tag="gen_ai.prompt.name").request_header.name = "x-prompt-template"
    otel = OpenTelemetryConfig(service_name="pointsman-envoy")
    otel.max_cache_size.value = 4_096
    otel.grpc_service.envoy_grpc.cluster_name = OTLP_CLUSTER
    otel.grpc_service.timeout.FromMilliseconds(1_000)
    tracing.provider.name = "envoy.tracers.opentelemetry"
    tracing.provider.typed_config.CopyFrom(pack(otel))


def _add_local_replies(manager: HttpConnectionManager, *, answers_headers: bool) -> None:
    """Everything that Envoy answers by itself takes the API's error shape; 503 carries Retry-After.

    A 4xx is a refusal whoever found it, the table or the scanner; the row's own reason would be wrong beside it.
    """
    exact = ((ComparisonFilter.EQ, *kind) for kind in _ERROR_KINDS)
    rest = ((ComparisonFilter.GE, *kind) for kind in _OTHER_ERRORS)
    for operator, status, kind, code in (*exact, *rest):
        mapper = manager.local_reply_config.mappers.add()
        comparison = mapper.filter.status_code_filter.comparison
        comparison.op = operator
        comparison.value.default_value = status
        comparison.value.runtime_key = f"pointsman.local_reply.{status}"
        error = mapper.body_format_override.json_format.fields["error"].struct_value.fields
        error["message"].string_value = _ERROR_MESSAGE
        error["type"].string_value = kind
        error["code"].string_value = code
        error["param"].null_value = NULL_VALUE
        _add_reply_header(mapper.headers_to_add.add(), "content-type", "application/json")
        if status < 500 and answers_headers:
            _add_reply_header(mapper.headers_to_add.add(), REASON_HEADER, Reason.REFUSED.value)
        if status == 500:
            retry_after = mapper.headers_to_add.add(append_action=HeaderValueOption.ADD_IF_ABSENT)
            retry_after.header.key = "retry-after"
            retry_after.header.value = "2"


def _add_reply_header(option: HeaderValueOption, key: str, value: str) -> None:
    option.append_action = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    option.header.key = key
    option.header.value = value


def render_canned_listener(rung: CannedRung) -> Listener:
    """Return the internal listener that gives a canned rung's answer."""
    listener = Listener(name=rung.key)
    listener.internal_listener.SetInParent()
    manager = HttpConnectionManager(stat_prefix="canned", codec_type=HttpConnectionManager.AUTO)
    manager.upgrade_configs.add(upgrade_type="websocket")  # else an upgrade gets 403 instead of the canned answer
    host = manager.route_config.virtual_hosts.add(name="canned", domains=["*"])
    manager.route_config.name = rung.key
    route = host.routes.add(name=rung.key)
    route.match.prefix = "/"
    route.direct_response.status = rung.status
    error = {
        "message": "no model can answer this request at the moment",
        "type": "server_error",
        "param": None,
        "code": "service_unavailable",
    }
    route.direct_response.body.inline_string = json.dumps({"error": error})
    for key, value in (("content-type", "application/json"), ("retry-after", str(rung.retry_after_s))):
        _add_reply_header(route.response_headers_to_add.add(), key, value)
    manager.http_filters.add(name="envoy.filters.http.router").typed_config.CopyFrom(pack(Router()))
    http_filter = listener.filter_chains.add().filters.add(name=HCM)
    http_filter.typed_config.CopyFrom(pack(manager))
    return listener
