"""Sends spans to an OTLP gRPC receiver: batches, retries, and counts what it had to drop.

Decides when a batch goes out and whether a failed one is tried again; refuses to block the caller or to grow without
bound: a span that finds the queue full is dropped and counted. Owned by the sidecar, which starts `run` in its task
group, calls `record` for each finished request on the same event loop, and `close` at the end.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import grpc
import grpc.aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from opentelemetry.sdk.resources import Resource
from pointsman.otel import names
from pointsman.otel.genai_span import Routed, build_span
from pointsman.router.entry import RequestEntry, TryEntry

_LOG = logging.getLogger(__name__)

EXPORT_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

RETRYABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""OTLP's retryable codes. RESOURCE_EXHAUSTED is one only with the server's RetryInfo, which we do not read: not
retried."""

# Tags of length-delimited fields. Encoded spans are framed and joined here: kept as messages they would take more
# memory, and copying them into a request costs 10 us each.
_RESOURCE_SPANS = b"\x0a"  # ExportTraceServiceRequest.resource_spans
_SCOPE_SPANS = b"\x12"  # ResourceSpans.scope_spans
_SPANS = b"\x12"  # ScopeSpans.spans


class DropReason(StrEnum):
    """Why spans were lost; the label of `pointsman_spans_dropped_total`."""

    QUEUE_FULL = "queue_full"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Bounds and times of the export.

    The queue holds 8 MiB (about 6,000 spans); a batch stays well under gRPC's 4 MiB message limit. A batch that the
    receiver does not take is tried again for `retry_for_ms`, with pauses that double from `first_pause_ms` to
    `longest_pause_ms`.
    """

    queue_bytes: int = 8 * 1024 * 1024
    batch_spans: int = 512
    batch_bytes: int = 2 * 1024 * 1024
    batch_delay_ms: int = 500
    call_timeout_ms: int = 10_000
    first_pause_ms: int = 500
    longest_pause_ms: int = 8_000
    retry_for_ms: int = 60_000


class SpanExporter:
    """Queue and sender of one receiver (`host:port`, without TLS). Not thread-safe: one event loop, one `run`."""

    def __init__(
        self,
        endpoint: str,
        *,
        service_name: str = "pointsman-agent",
        service_version: str = "",
        instance_id: str | None = None,
        settings: ExportSettings | None = None,
        on_drop: Callable[[DropReason, int], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._resource = _encode_resource(service_name, service_version, instance_id or str(uuid.uuid4()))
        self._scope = _encode_scope(service_version)
        self._settings = settings or ExportSettings()
        self._on_drop = on_drop
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._in_flight = 0
        self._has_spans = asyncio.Event()
        self._is_batch_ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_reachable = True
        self.exported_count = 0
        self.dropped: dict[DropReason, int] = dict.fromkeys(DropReason, 0)

    @property
    def queued_count(self) -> int:
        """How many spans wait to be sent."""
        return len(self._queue)

    def record(self, entry: RequestEntry, routed: Routed, tries: Sequence[TryEntry] = ()) -> bytes | None:
        """Queue the request's GenAI span and return its id; None where there is no span to make or no room for it."""
        if not entry.is_sampled:
            return None
        span_id = random.getrandbits(64).to_bytes(8, "big")
        span = build_span(entry, routed, span_id=span_id, tries=tries)
        return span_id if span is not None and self.offer(span) else None

    def offer(self, span: Span) -> bool:
        """Queue a span and return whether it was taken. Never waits."""
        if self._closing.is_set():
            self._drop(DropReason.CLOSED, 1)
            return False
        part = _field(_SPANS, span.SerializeToString())
        if self._queued_bytes + len(part) > self._settings.queue_bytes:
            self._drop(DropReason.QUEUE_FULL, 1)
            return False
        self._queue.append(part)
        self._queued_bytes += len(part)
        if len(self._queue) == 1:
            self._has_spans.set()
        if len(self._queue) >= self._settings.batch_spans or self._queued_bytes >= self._settings.batch_bytes:
            self._is_batch_ready.set()
        return True

    @property
    def is_running(self) -> bool:
        """Whether `run` has begun and not ended."""
        return self._task is not None and not self._ended.is_set()

    async def run(self) -> None:
        """Send batches until `close`; meant for the owner's task group. What is left when it ends counts as dropped."""
        self._task = asyncio.current_task()
        options = (
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
        )  # we retry; the receiver is ours, no proxy
        try:
            async with grpc.aio.insecure_channel(self._endpoint, options=options) as channel:
                export: Export = channel.unary_unary(
                    EXPORT_METHOD,
                    request_serializer=_as_is,
                    response_deserializer=ExportTraceServiceResponse.FromString,
                )
                while await self._wait_for_batch():
                    batch = self._take_batch()
                    self._in_flight = len(batch)
                    await self._deliver(export, batch)
                    self._in_flight = 0
        finally:
            self._drop(DropReason.CLOSED, self._in_flight + len(self._queue))
            self._in_flight = 0
            self._queue.clear()
            self._queued_bytes = 0
            self._closing.set()
            self._ended.set()

    async def close(self, deadline_s: float) -> None:
        """Send what is queued within the deadline, one try a batch, then end `run`. The rest counts as dropped."""
        self._closing.set()
        self._has_spans.set()
        self._is_batch_ready.set()
        if self._task is None:
            self._drop(DropReason.CLOSED, len(self._queue))
            self._queue.clear()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._ended.wait()
        if not self._ended.is_set():
            self._task.cancel()
            await self._ended.wait()

    async def _wait_for_batch(self) -> bool:
        """Wait until a batch is full or old enough; False once closing and empty."""
        await self._has_spans.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.batch_delay_ms / 1_000):
                await self._is_batch_ready.wait()
        return bool(self._queue)

    def _take_batch(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        while self._queue and len(batch) < self._settings.batch_spans and size < self._settings.batch_bytes:
            part = self._queue.popleft()
            batch.append(part)
            size += len(part)
        self._queued_bytes -= size
        if not self._closing.is_set():
            if not self._queue:
                self._has_spans.clear()
            if len(self._queue) < self._settings.batch_spans and self._queued_bytes < self._settings.batch_bytes:
                self._is_batch_ready.clear()
        return batch

    async def _deliver(self, export: Export, batch: list[bytes]) -> None:
        settings = self._settings
        scope_spans = _field(_SCOPE_SPANS, self._scope + b"".join(batch))
        request = _field(_RESOURCE_SPANS, self._resource + scope_spans)
        pause_ms = float(settings.first_pause_ms)
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + settings.retry_for_ms / 1_000
        while True:
            try:
                answer = await export(request, timeout=settings.call_timeout_ms / 1_000)
            except grpc.aio.AioRpcError as error:
                self._note_failure(error)
                if error.code() not in RETRYABLE:
                    self._drop(DropReason.REFUSED, len(batch))
                    return
            else:
                self._note_success()
                rejected = min(answer.partial_success.rejected_spans, len(batch))
                self._drop(DropReason.REFUSED, rejected)
                self.exported_count += len(batch) - rejected
                return
            if self._closing.is_set() or clock() >= give_up_at:
                self._drop(DropReason.UNAVAILABLE, len(batch))
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms * random.uniform(0.8, 1.2) / 1_000):
                    await self._closing.wait()
            pause_ms = min(pause_ms * 2, settings.longest_pause_ms)

    def _drop(self, reason: DropReason, count: int) -> None:
        if count <= 0:
            return
        self.dropped[reason] += count
        if self._on_drop is not None:
            self._on_drop(reason, count)

    def _note_failure(self, error: grpc.aio.AioRpcError) -> None:
        if self.is_reachable:
            self.is_reachable = False
            _LOG.warning(
                "spans: %s answered %s, expected OK from an OTLP gRPC receiver; check Settings tracing.otlp",
                self._endpoint,
                error.code().name,
            )

    def _note_success(self) -> None:
        if not self.is_reachable:
            self.is_reachable = True
            _LOG.info("spans: %s takes spans again", self._endpoint)


Export = grpc.aio.UnaryUnaryMultiCallable[bytes, ExportTraceServiceResponse]


def _as_is(request: bytes) -> bytes:
    return request


def _field(tag: bytes, message: bytes) -> bytes:
    """Return an encoded message as one length-delimited field of another: tag, length as a varint, bytes."""
    head = bytearray(tag)
    size = len(message)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + message


def _encode_scope(version: str) -> bytes:
    scope_spans = ScopeSpans()
    scope_spans.scope.name = names.SCOPE_NAME
    scope_spans.scope.version = version
    return scope_spans.SerializeToString()


def _encode_resource(service_name: str, service_version: str, instance_id: str) -> bytes:
    """Return encoded ResourceSpans with the process's resource; the SDK reads `OTEL_RESOURCE_ATTRIBUTES`, ours win."""
    own = {"service.name": service_name, "service.instance.id": instance_id}
    if service_version:
        own["service.version"] = service_version
    message = ResourceSpans()
    for key, value in Resource.create(own).attributes.items():
        message.resource.attributes.add(key=key).value.CopyFrom(_any_value(value))
    return message.SerializeToString()


def _any_value(value: object) -> AnyValue:
    """Return a resource attribute's value; the SDK's detectors make scalars, anything else is shown as text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=str(value))
