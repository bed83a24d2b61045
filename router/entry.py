"""What Envoy's logs say about a request and about each of its tries, as values of the core.

Made by xds/logs.py from access-log entries, read by otel/ (spans, metrics) and by the loops. Nothing of a prompt or an
answer is in here: only parameters, counts and names. None means "not known", never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LOGGED_REQUEST_HEADERS = (
    "x-intent",
    "x-context-id",
    "x-session-id",
    "x-trace-intent",
    "x-prompt-template",
    "x-prompt-template-version",
    "x-trace-id",
    "traceparent",
)
"""Request headers that Envoy puts into a request's log entry, besides what is always there (method, path, id).

Pin and class are told by the row's name, so their headers are not logged.
"""

LOGGED_RESPONSE_HEADERS = ("x-model-confidence", "x-model-logit-entropy", "retry-after", "x-pointsman-reason")
"""Answer headers that Envoy puts into log entries."""

Param = str | float | bool
"""A top-level scalar of the request body, as the scanner saw it; JSON numbers are floats."""


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """One finished request, as the client saw it.

    `row` is the route table's row name, `ladder` the cluster that the row's split chose, `target` who answered.
    `flags` are Envoy's short response flags (`UF`, `DC`, `UT`, …). `trace_id` and `span_id` (hex) are those of Envoy's
    SERVER span; `is_sampled` is the trace's flag. Times count from the request's arrival.
    """

    started_unix_ns: int
    duration_ms: float
    row: str
    ladder: str
    target: str | None
    endpoint: str | None
    status: int
    flags: tuple[str, ...]
    details: str
    attempts: int
    method: str
    path: str
    request_id: str
    trace_id: str | None = None
    span_id: str | None = None
    is_sampled: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Param] = field(default_factory=dict)
    stop_sequence_count: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    response_model: str | None = None
    response_id: str | None = None
    finish_reasons: tuple[str, ...] = ()
    first_chunk_ms: float | None = None
    request_bytes: int = 0
    response_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TryEntry:
    """One try at one endpoint. `attempt` counts from 1; `failure` is Envoy's transport failure text, if any."""

    started_unix_ns: int
    duration_ms: float
    row: str
    target: str
    endpoint: str | None
    status: int
    flags: tuple[str, ...]
    attempt: int
    request_id: str
    first_byte_ms: float | None = None
    failure: str | None = None
    answer_headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogGap:
    """Entries may be missing: a stream broke or a batch was unreadable. Loops go blind, they do not assume health."""

    node: str
    reason: str
