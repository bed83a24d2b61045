from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pointsman.otel.exporter import DropReason, ExportSettings, SpanExporter

FAST = ExportSettings(batch_delay_ms=10, first_pause_ms=5, longest_pause_ms=20)
DEADLINE_S = 10.0


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP receiver that keeps what it gets and answers as its script says; after the script it accepts."""

    def __init__(self, script: list[grpc.StatusCode] | None = None, rejected: int = 0, hangs: bool = False) -> None:
        self.script = script or []
        self.rejected = rejected
        self.hangs = hangs
        self.requests: list[ExportTraceServiceRequest] = []
        self.calls = 0
        self.called = asyncio.Event()

    async def Export(self, request, context):  # noqa: N802  the service's name
        self.calls += 1
        self.called.set()
        if self.hangs:
            await asyncio.Event().wait()
        if self.script:
            await context.abort(self.script.pop(0), "as the script says")
        self.requests.append(request)
        answer = ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = self.rejected
        return answer

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource_spans in request.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]


@asynccontextmanager
async def listening(receiver: Receiver, port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


@asynccontextmanager
async def exporting(port: int, settings: ExportSettings = FAST, **more) -> AsyncIterator[SpanExporter]:
    exporter = SpanExporter(f"127.0.0.1:{port}", settings=settings, **more)
    async with asyncio.TaskGroup() as group:
        group.create_task(exporter.run())
        try:
            yield exporter
        finally:
            await exporter.close(DEADLINE_S)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_true():  # noqa: ASYNC110  a counter, not an event, is what the test waits for
            await asyncio.sleep(0.002)


def span(number: int = 0, size: int = 0) -> Span:
    return Span(name=f"chat {number}" + "x" * size, trace_id=bytes(15) + b"\x01", span_id=bytes(7) + b"\x01")


async def test_request_arrives_as_a_span_with_the_processs_resource(entry, routed, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=not-ours")
    receiver = Receiver()
    async with listening(receiver) as port:
        async with exporting(port, service_version="1.2.3", instance_id="i-1") as exporter:
            span_id = exporter.record(entry(), routed())
            await until(lambda: exporter.exported_count == 1)
    (resource_spans,) = receiver.requests[0].resource_spans
    resource = {attribute.key: attribute.value.string_value for attribute in resource_spans.resource.attributes}
    assert resource["service.name"] == "pointsman-agent"
    assert resource["service.version"] == "1.2.3"
    assert resource["service.instance.id"] == "i-1"
    assert resource["deployment.environment.name"] == "test"
    assert resource_spans.scope_spans[0].scope.name == "pointsman.otel"
    (arrived,) = receiver.spans()
    assert (arrived.name, arrived.span_id) == ("chat support-chat", span_id)


async def test_unsampled_request_is_not_queued(entry, routed):
    exporter = SpanExporter("127.0.0.1:1")
    assert exporter.record(entry(is_sampled=False), routed()) is None
    assert exporter.queued_count == 0


async def test_every_span_has_its_own_id(entry, routed):
    exporter = SpanExporter("127.0.0.1:1")
    assert len({exporter.record(entry(), routed()) for _ in range(100)}) == 100


async def test_full_batch_goes_out_before_its_time(entry):
    receiver = Receiver()
    settings = ExportSettings(batch_spans=3, batch_delay_ms=60_000)
    async with listening(receiver) as port, exporting(port, settings) as exporter:
        for number in range(3):
            exporter.offer(span(number))
        await until(lambda: exporter.exported_count == 3)
    assert [len(request.resource_spans[0].scope_spans[0].spans) for request in receiver.requests] == [3]


async def test_batches_are_bounded_by_bytes(entry):
    receiver = Receiver()
    settings = ExportSettings(batch_bytes=10_000, batch_delay_ms=10)
    async with listening(receiver) as port, exporting(port, settings) as exporter:
        for number in range(6):
            exporter.offer(span(number, size=4_000))
        await until(lambda: exporter.exported_count == 6)
    assert all(request.ByteSize() < 15_000 for request in receiver.requests)


async def test_spans_keep_their_order_and_content(entry):
    receiver = Receiver()
    sent = [span(number, size=number) for number in range(300)]
    async with listening(receiver) as port, exporting(port) as exporter:
        for one in sent:
            exporter.offer(one)
        await until(lambda: exporter.exported_count == 300)
    assert receiver.spans() == sent


async def test_full_queue_drops_the_new_span_and_counts_it():
    lost = []
    exporter = SpanExporter(
        "127.0.0.1:1", settings=ExportSettings(queue_bytes=1_000), on_drop=lambda *drop: lost.append(drop)
    )
    taken = [exporter.offer(span(number, size=300)) for number in range(5)]
    assert taken == [True, True, False, False, False]
    assert exporter.dropped[DropReason.QUEUE_FULL] == 3
    assert lost == [(DropReason.QUEUE_FULL, 1)] * 3


async def test_unavailable_receiver_is_tried_again_until_it_takes_the_batch():
    receiver = Receiver(script=[grpc.StatusCode.UNAVAILABLE] * 3)
    async with listening(receiver) as port, exporting(port) as exporter:
        exporter.offer(span())
        await until(lambda: exporter.exported_count == 1)
    assert receiver.calls == 4
    assert sum(exporter.dropped.values()) == 0


async def test_receiver_that_comes_later_gets_what_waited():
    async with listening(Receiver()) as free_port:
        pass
    receiver = Receiver()
    async with exporting(free_port) as exporter:
        exporter.offer(span())
        await until(lambda: not exporter.is_reachable)
        async with listening(receiver, free_port):
            await until(lambda: exporter.exported_count == 1)
    assert len(receiver.spans()) == 1


async def test_batch_is_given_up_when_its_time_is_over():
    receiver = Receiver(script=[grpc.StatusCode.UNAVAILABLE] * 1_000)
    settings = ExportSettings(batch_delay_ms=5, first_pause_ms=5, longest_pause_ms=5, retry_for_ms=30)
    async with listening(receiver) as port, exporting(port, settings) as exporter:
        exporter.offer(span())
        await until(lambda: exporter.dropped[DropReason.UNAVAILABLE] == 1)


async def test_refused_batch_is_not_tried_again():
    receiver = Receiver(script=[grpc.StatusCode.INVALID_ARGUMENT])
    async with listening(receiver) as port, exporting(port) as exporter:
        exporter.offer(span())
        await until(lambda: exporter.dropped[DropReason.REFUSED] == 1)
    assert receiver.calls == 1


async def test_spans_that_the_receiver_rejects_count_as_dropped():
    receiver = Receiver(rejected=2)
    async with listening(receiver) as port, exporting(port) as exporter:
        for number in range(5):
            exporter.offer(span(number))
        await until(lambda: exporter.exported_count == 3)
    assert exporter.dropped[DropReason.REFUSED] == 2


async def test_close_sends_what_is_queued():
    receiver = Receiver()
    settings = ExportSettings(batch_delay_ms=60_000)
    async with listening(receiver) as port, exporting(port, settings) as exporter:
        exporter.offer(span())
        await until(lambda: exporter.is_running)
    assert exporter.exported_count == 1


async def test_close_ends_at_its_deadline_when_the_receiver_hangs():
    receiver = Receiver(hangs=True)
    loop = asyncio.get_running_loop()
    async with listening(receiver) as port, exporting(port) as exporter:
        exporter.offer(span())
        await asyncio.wait_for(receiver.called.wait(), DEADLINE_S)
        exporter.offer(span())
        begun = loop.time()
        await exporter.close(0.05)
        assert loop.time() - begun < DEADLINE_S / 2
    assert exporter.dropped[DropReason.CLOSED] == 2


async def test_close_does_not_wait_for_a_receiver_that_is_away():
    async with listening(Receiver()) as free_port:
        pass
    settings = ExportSettings(batch_delay_ms=5, first_pause_ms=60_000)
    async with exporting(free_port, settings) as exporter:
        exporter.offer(span())
        await until(lambda: not exporter.is_reachable)
        await exporter.close(DEADLINE_S)
    assert exporter.dropped[DropReason.UNAVAILABLE] == 1


async def test_span_after_close_counts_as_dropped():
    exporter = SpanExporter("127.0.0.1:1")
    exporter.offer(span())
    await exporter.close(1.0)
    assert exporter.offer(span()) is False
    assert exporter.dropped[DropReason.CLOSED] == 2


async def test_cancelled_run_counts_what_it_leaves():
    exporter = SpanExporter("127.0.0.1:1", settings=ExportSettings(batch_delay_ms=60_000))
    task = asyncio.create_task(exporter.run())
    exporter.offer(span())
    await until(lambda: exporter.is_running)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert exporter.dropped[DropReason.CLOSED] == 1


async def test_unreachable_receiver_is_logged_once_and_its_return_too(caplog):
    receiver = Receiver(script=[grpc.StatusCode.UNAVAILABLE] * 3)
    with caplog.at_level("INFO", logger="pointsman.otel.exporter"):
        async with listening(receiver) as port, exporting(port) as exporter:
            exporter.offer(span())
            await until(lambda: exporter.exported_count == 1)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
