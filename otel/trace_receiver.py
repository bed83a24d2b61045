"""A small OTLP trace receiver: keeps the last spans as plain values, for the demo and for tests.

Not a collector: no storage, no export. Bounded: the oldest spans go first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

AttributeValue: TypeAlias = "str | bool | int | float | tuple[AttributeValue, ...] | None"

MAX_SPANS = 20_000


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span. `kind` is OTLP's number (2 server, 3 client); attributes keep their OTLP types."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_unix_ns: int
    end_unix_ns: int
    status_code: int
    attributes: dict[str, AttributeValue]
    events: tuple[str, ...]


class TraceReceiver:
    """Listens on `address` (`127.0.0.1:0` takes any port); `raw` keeps the requests as received."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        """Does not listen yet."""
        self._address = address
        self._server = aio.server()
        self._arrived = asyncio.Condition()
        self.spans: deque[ReceivedSpan] = deque(maxlen=MAX_SPANS)
        self.raw: deque[bytes] = deque(maxlen=1_000)
        self.port = 0
        self.unreadable = 0

    async def __aenter__(self) -> TraceReceiver:
        """Listen."""
        self._server.add_generic_rpc_handlers((_Handler(self),))
        self.port = self._server.add_insecure_port(self._address)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        await self._server.stop(0.2)

    async def take(self, request: bytes, _context: aio.ServicerContext[bytes, bytes]) -> bytes:
        """Keep one export request."""
        self.raw.append(request)
        try:
            self.spans.extend(read_spans(request))
        except DecodeError:
            self.unreadable += 1
            raise
        async with self._arrived:
            self._arrived.notify_all()
        return ExportTraceServiceResponse().SerializeToString()

    async def wait_for(self, count: int, *, trace_id: str, timeout_s: float) -> tuple[ReceivedSpan, ...]:
        """Return the trace's spans once there are `count`; TimeoutError when they do not come."""

        def found() -> list[ReceivedSpan]:
            return [span for span in self.spans if span.trace_id == trace_id]

        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(lambda: len(found()) >= count)
        return tuple(found())


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, receiver: TraceReceiver) -> None:
        self._method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(receiver.take)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._method if handler_call_details.method == EXPORT else None


def read_spans(request: bytes) -> list[ReceivedSpan]:
    """Return the spans of one serialised ExportTraceServiceRequest."""
    spans = []
    for resource_spans in ExportTraceServiceRequest.FromString(request).resource_spans:
        resource = {item.key: read_value(item.value) for item in resource_spans.resource.attributes}
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                spans.append(
                    ReceivedSpan(
                        service=str(resource.get("service.name", "")),
                        name=span.name,
                        kind=span.kind,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        start_unix_ns=span.start_time_unix_nano,
                        end_unix_ns=span.end_time_unix_nano,
                        status_code=span.status.code,
                        attributes={item.key: read_value(item.value) for item in span.attributes},
                        events=tuple(event.name for event in span.events),
                    )
                )
    return spans


def read_value(value: AnyValue) -> AttributeValue:
    """Return an OTLP value with its type kept; None for kinds that spans of ours do not have."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "int_value":
        return value.int_value
    if kind == "double_value":
        return value.double_value
    if kind == "array_value":
        return tuple(read_value(item) for item in value.array_value.values)
    return None
