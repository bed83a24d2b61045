"""Access-log entries of Envoy -> the core's values: one function for finished requests, one for tries.

Decides what is taken from an entry and how text that clients or servers
chose is made harmless: cut, and control characters replaced. Refuses nothing: what an entry does not say is None, "" or
0 as the value's text tells; a number that is none counts as not said. Called by logs.py for every entry, so it is
written for speed: each submessage is fetched once, maps are asked for known keys only, and times are read as numbers.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING

from pointsman.router.entry import Param, RequestEntry, TryEntry
from pointsman.xds.names import ATTEMPT_HEADER, CANNED_TARGET, LADDER_TAG, METADATA, SPAN_ID_TAG, TRACE_ID_TAG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pointsman.xds.api import AccessLogCommon, HTTPAccessLogEntry

    _Said = tuple[
        dict[str, Param],
        int | None,
        int | None,
        int | None,
        int | None,
        int | None,
        str | None,
        str | None,
        tuple[str, ...],
        float | None,
    ]
    """RequestEntry's fields from params to first_chunk_ms."""

MAX_TEXT_CHARS = 256
"""Longest text taken from a header, a body or an answer: they are the caller's to choose, the memory is ours."""

FLAG_NAMES = {
    "failed_local_healthcheck": "LH",
    "no_healthy_upstream": "UH",
    "upstream_request_timeout": "UT",
    "local_reset": "LR",
    "upstream_remote_reset": "UR",
    "upstream_connection_failure": "UF",
    "upstream_connection_termination": "UC",
    "upstream_overflow": "UO",
    "no_route_found": "NR",
    "delay_injected": "DI",
    "fault_injected": "FI",
    "rate_limited": "RL",
    "unauthorized_details": "UAEX",
    "rate_limit_service_error": "RLSE",
    "downstream_connection_termination": "DC",
    "upstream_retry_limit_exceeded": "URX",
    "stream_idle_timeout": "SI",
    "invalid_envoy_request_headers": "IH",
    "downstream_protocol_error": "DPE",
    "upstream_max_stream_duration_reached": "UMSDR",
    "response_from_cache_filter": "RFCF",
    "no_filter_config_found": "NFCF",
    "duration_timeout": "DT",
    "upstream_protocol_error": "UPE",
    "no_cluster_found": "NC",
    "overload_manager": "OM",
    "dns_resolution_failure": "DF",
    "downstream_remote_reset": "DR",
}
"""Envoy's short name of each response flag, by the field of ResponseFlags."""

METHODS: dict[int, str] = dict(
    enumerate(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"), start=1)
)
"""Method by its number in envoy.config.core.v3.RequestMethod; an entry's is "" where it is another."""

SAID = "said"
"""Key of the scanner's metadata: one text in columns, which sidecar/scan_metadata.h describes."""

NUMBER_PARAMS = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "n",
)
"""What the text's first columns are."""

SAID_COLUMNS = 20
"""How many columns are read: what follows is of no use here, or of a newer module."""

MAX_COUNT = 2**53
"""From here on a double does not hold every integer, so it is no count."""

_FIRST_NUMBERS = len(NUMBER_PARAMS)
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # controls, line separators, text direction
_TRACE_FLAG = 54  # where a traceparent's last flag digit is
_ODD_DIGITS = frozenset("13579bdf")


def decode_request(logged: HTTPAccessLogEntry) -> RequestEntry:
    """Return what the entry of the request log says."""
    common = logged.common_properties
    request = logged.request
    response = logged.response
    started = common.start_time
    duration = common.duration
    tags = common.custom_tags
    headers = _texts(request.request_headers)
    trace_id = tags.get(TRACE_ID_TAG) or None
    namespaces = common.metadata.filter_metadata
    said: _Said = ({}, None, None, None, None, None, None, None, (), None)
    if METADATA in namespaces and SAID in (fields := namespaces[METADATA].fields):
        said = _read(fields[SAID].string_value)
    return RequestEntry(  # by position, in the order of its fields: 30 keywords cost 0.9 us more
        started.seconds * 1_000_000_000 + started.nanos,
        duration.seconds * 1e3 + duration.nanos / 1e6,
        common.route_name,
        tags.get(LADDER_TAG) or "",
        _target(common.upstream_cluster) or None,
        _endpoint(common),
        response.response_code.value,
        _flags(common),
        clean(response.response_code_details),
        common.upstream_request_attempt_count,
        METHODS.get(request.request_method, ""),
        clean(request.path.partition("?")[0]),
        clean(request.request_id),
        trace_id,
        tags.get(SPAN_ID_TAG) or None,
        trace_id is not None and _is_sampled(headers.get("traceparent")),
        headers,
        _texts(response.response_headers),
        *said,
        request.request_body_bytes,
        response.response_body_bytes,
    )


def decode_try(logged: HTTPAccessLogEntry) -> TryEntry:
    """Return what the entry of the per-try log says. Its byte counts are the wrong way round, so they are not taken."""
    common = logged.common_properties
    request = logged.request
    response = logged.response
    started = common.start_time
    duration = common.duration
    first_byte_ms = None
    if common.HasField("time_to_first_upstream_rx_byte"):
        first_byte = common.time_to_first_upstream_rx_byte
        first_byte_ms = first_byte.seconds * 1e3 + first_byte.nanos / 1e6
    return TryEntry(
        started_unix_ns=started.seconds * 1_000_000_000 + started.nanos,
        duration_ms=duration.seconds * 1e3 + duration.nanos / 1e6,
        row=common.route_name,
        target=_target(common.upstream_cluster),
        endpoint=_endpoint(common),
        status=response.response_code.value,
        flags=_flags(common),
        attempt=_attempt(request.request_headers.get(ATTEMPT_HEADER)),
        request_id=clean(request.request_id),
        first_byte_ms=first_byte_ms,
        failure=clean(common.upstream_transport_failure_reason) or None,
        answer_headers=_texts(response.response_headers),
    )


def clean(text: str) -> str:
    """Return the text, cut at MAX_TEXT_CHARS, with `?` for each character that could act on a terminal or a log."""
    if len(text) > MAX_TEXT_CHARS:
        text = text[:MAX_TEXT_CHARS]
    return text if text.isprintable() else _UNSAFE.sub("?", text)


def _texts(headers: Mapping[str, str]) -> dict[str, str]:
    texts = {}
    for name in headers:
        text = headers[name]
        texts[name] = text if len(text) <= MAX_TEXT_CHARS and text.isprintable() else clean(text)
    return texts


def _flags(common: AccessLogCommon) -> tuple[str, ...]:
    if not common.HasField("response_flags"):
        return ()
    return tuple(FLAG_NAMES[field.name] for field, _ in common.response_flags.ListFields())


def _target(cluster: str) -> str:
    """The target's name: its cluster's, but for canned rungs, which clients see as one."""
    return CANNED_TARGET if cluster.startswith("canned:") else cluster


def _endpoint(common: AccessLogCommon) -> str | None:
    """`host:port` of who was asked; None for a canned rung, whose listener is inside Envoy, and where nobody was."""
    address = common.upstream_remote_address.socket_address
    port = address.port_value
    if not port:
        return None
    host = address.address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _attempt(header: str | None) -> int:
    """Envoy writes this header itself, over any that a client sent; without it there was one try that we know of."""
    return int(header) if header and len(header) < 6 and header.isascii() and header.isdigit() else 1


def _is_sampled(traceparent: str | None) -> bool:
    return traceparent is not None and len(traceparent) > _TRACE_FLAG and traceparent[_TRACE_FLAG] in _ODD_DIGITS


def _read(said: str) -> _Said:
    """Return what the scanner's text says. Never raises: a column that is not as described says nothing."""
    columns = said.split("\n")
    if len(columns) < SAID_COLUMNS:
        columns += [""] * (SAID_COLUMNS - len(columns))
    params: dict[str, Param] = {}
    for name, text in zip(NUMBER_PARAMS, columns, strict=False):
        if text and (number := _number(text)) is not None:
            params[name] = number
    stops, stream, model, effort, asked, told, cached, thought, first_chunk, answered_by, answer_id, reasons = columns[
        _FIRST_NUMBERS:SAID_COLUMNS
    ]
    if stream == "0" or stream == "1":
        params["stream"] = stream == "1"
    if model:
        params["model"] = clean(model)
    if effort:
        params["reasoning_effort"] = clean(effort)
    first_chunk_ns = _count(first_chunk) if first_chunk else None
    return (  # most columns are empty, and a call costs more than the question
        params,
        _count(stops) if stops else None,
        _count(asked) if asked else None,
        _count(told) if told else None,
        _count(cached) if cached else None,
        _count(thought) if thought else None,
        clean(answered_by) if answered_by else None,
        clean(answer_id) if answer_id else None,
        _words(reasons) if reasons else (),
        None if first_chunk_ns is None else first_chunk_ns / 1e6,
    )


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _count(text: str) -> int | None:
    try:
        count = int(text)
    except ValueError:
        return None
    return count if 0 <= count < MAX_COUNT else None


def _words(text: str) -> tuple[str, ...]:
    if len(text) > MAX_TEXT_CHARS:
        text = text[:MAX_TEXT_CHARS].rpartition(",")[0]  # no half word
    return tuple([word for word in clean(text).split(",") if word])  # a generator costs twice as much
