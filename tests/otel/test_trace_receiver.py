"""The trace receiver keeps spans as plain values with their types, and tells who waits for them."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc import aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status
from pointsman.otel.trace_receiver import EXPORT, MAX_SPANS, ReceivedSpan, TraceReceiver, read_spans, read_value

TRACE = "0af7651916cd43dd8448eb211c80319c"
OTHER_TRACE = "11111111111111111111111111111111"
DEADLINE_S = 10.0


def a_span(number: int = 1, trace: str = TRACE) -> Span:
    return Span(name=f"chat {number}", trace_id=bytes.fromhex(trace), span_id=number.to_bytes(8, "big"))


def a_request(*spans: Span, service: str | None = "pointsman-agent") -> bytes:
    attributes = [KeyValue(key="service.name", value=AnyValue(string_value=service))] if service else []
    resource_spans = ResourceSpans(resource=Resource(attributes=attributes), scope_spans=[ScopeSpans(spans=spans)])
    return ExportTraceServiceRequest(resource_spans=[resource_spans]).SerializeToString()


async def send(receiver: TraceReceiver, request: bytes, method: str = EXPORT) -> bytes:
    async with aio.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        return bytes(await channel.unary_unary(method)(request, timeout=DEADLINE_S))


VALUES = [
    (AnyValue(string_value=""), ""),
    (AnyValue(string_value="a"), "a"),
    (AnyValue(bool_value=False), False),
    (AnyValue(int_value=2**40), 2**40),
    (AnyValue(int_value=0), 0),
    (AnyValue(double_value=0.7), 0.7),
    (AnyValue(double_value=1.0), 1.0),
    (AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="stop"), AnyValue(int_value=1)])), ("stop", 1)),
    (AnyValue(array_value=ArrayValue()), ()),
    (AnyValue(bytes_value=b"x"), None),
    (AnyValue(kvlist_value=KeyValueList()), None),
    (AnyValue(), None),
]


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_value_keeps_its_type(value: AnyValue, expected: object) -> None:
    found = read_value(value)
    assert (expected, type(expected)) == (found, type(found))


def test_span_is_read_whole() -> None:
    sent = a_span(7)
    sent.parent_span_id = (9).to_bytes(8, "big")
    sent.kind = Span.SPAN_KIND_CLIENT
    sent.start_time_unix_nano, sent.end_time_unix_nano = 5, 8
    sent.status.code = Status.STATUS_CODE_ERROR
    sent.attributes.add(key="gen_ai.request.top_k").value.int_value = 40
    sent.events.add(name="retry")
    sent.events.add(name="first_chunk")
    expected = ReceivedSpan(
        service="pointsman-agent",
        name="chat 7",
        kind=3,
        trace_id=TRACE,
        span_id="0000000000000007",
        parent_id="0000000000000009",
        start_unix_ns=5,
        end_unix_ns=8,
        status_code=2,
        attributes={"gen_ai.request.top_k": 40},
        events=("retry", "first_chunk"),
    )
    assert [expected] == read_spans(a_request(sent))


def test_spans_of_several_resources_keep_their_service_and_order() -> None:
    request = ExportTraceServiceRequest.FromString(a_request(a_span(1), a_span(2), service="envoy"))
    request.MergeFrom(ExportTraceServiceRequest.FromString(a_request(a_span(3), service=None)))
    spans = read_spans(request.SerializeToString())
    assert [("envoy", "chat 1"), ("envoy", "chat 2"), ("", "chat 3")] == [(span.service, span.name) for span in spans]


def test_root_span_has_no_parent() -> None:
    (span,) = read_spans(a_request(a_span()))
    assert "" == span.parent_id


async def test_exported_spans_are_kept_and_the_sender_gets_an_answer() -> None:
    async with TraceReceiver() as receiver:
        request = a_request(a_span(1), a_span(2))
        answer = ExportTraceServiceResponse.FromString(await send(receiver, request))
        assert 0 == answer.partial_success.rejected_spans
        assert ["chat 1", "chat 2"] == [span.name for span in receiver.spans]
        assert [request] == list(receiver.raw)


async def test_waiting_ends_when_all_spans_of_the_trace_are_there() -> None:
    async with TraceReceiver() as receiver:
        waiting = asyncio.ensure_future(receiver.wait_for(2, trace_id=TRACE, timeout_s=DEADLINE_S))
        await send(receiver, a_request(a_span(1), a_span(2, OTHER_TRACE), a_span(3, OTHER_TRACE)))
        assert not waiting.done(), "two of the three spans are of another trace"
        await send(receiver, a_request(a_span(4)))
        assert ("chat 1", "chat 4") == tuple(span.name for span in await waiting)


async def test_spans_that_are_there_already_are_not_waited_for() -> None:
    async with TraceReceiver() as receiver:
        await send(receiver, a_request(a_span()))
        assert 1 == len(await receiver.wait_for(1, trace_id=TRACE, timeout_s=DEADLINE_S))


async def test_spans_that_do_not_come_are_a_timeout() -> None:
    async with TraceReceiver() as receiver:
        await send(receiver, a_request(a_span()))
        with pytest.raises(TimeoutError):
            await receiver.wait_for(2, trace_id=TRACE, timeout_s=0.05)


async def test_oldest_spans_go_first() -> None:
    async with TraceReceiver() as receiver:
        for first in range(0, MAX_SPANS + 1_000, 7_000):
            await send(receiver, a_request(*(a_span(number) for number in range(first + 1, first + 7_001))))
        assert MAX_SPANS == len(receiver.spans)
        assert ("chat 1001", "chat 21000") == (receiver.spans[0].name, receiver.spans[-1].name)


@pytest.mark.parametrize("method", ["/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", "/other/X"])
async def test_other_services_are_not_there(method: str) -> None:
    async with TraceReceiver() as receiver:
        with pytest.raises(aio.AioRpcError) as refused:
            await send(receiver, b"", method)
        assert grpc.StatusCode.UNIMPLEMENTED == refused.value.code()
        assert 0 == len(receiver.raw)


async def test_what_is_no_export_request_is_an_error_and_the_next_is_taken() -> None:
    async with TraceReceiver() as receiver:
        with pytest.raises(aio.AioRpcError):
            await send(receiver, b"\xff\xff")
        await send(receiver, a_request(a_span()))
        assert 1 == len(receiver.spans)


async def test_nobody_listens_after_the_end() -> None:
    async with TraceReceiver() as receiver:
        assert receiver.port > 0
    with pytest.raises(aio.AioRpcError) as refused:
        await send(receiver, a_request(a_span()))
    assert grpc.StatusCode.UNAVAILABLE == refused.value.code()
