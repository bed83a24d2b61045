"""The log receiver against a gRPC client: what becomes a gap, and what does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from pointsman.router.entry import LogGap, RequestEntry, TryEntry
from pointsman.xds import logs
from pointsman.xds.api import StreamAccessLogsMessage
from pointsman.xds.logs import BROKEN, METHOD, SERVICE, UNREADABLE, LogCounts, Logged, LogReceiver

DEADLINE_S = 10


class Consumer:
    """Keeps what it gets; lets tests wait for it; raises where it is told to."""

    def __init__(self) -> None:
        self.got: list[Logged] = []
        self.error: Exception | None = None
        self._changed = asyncio.Condition()
        self._notes: set[asyncio.Task[None]] = set()

    def __call__(self, entries: Sequence[Logged]) -> None:
        task = asyncio.get_running_loop().create_task(self._note())
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)
        if self.error is not None:
            raise self.error
        self.got.extend(entries)

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, is_met: Callable[[], bool]) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(is_met), DEADLINE_S)

    def ids(self) -> list[str]:
        return [entry.request_id for entry in self.got if not isinstance(entry, LogGap)]

    def gaps(self) -> list[LogGap]:
        return [entry for entry in self.got if isinstance(entry, LogGap)]


class Setup:
    """A receiver, its consumer, and a client's channel to it."""

    def __init__(self, path: Path) -> None:
        self.consumer = Consumer()
        self.receiver = LogReceiver(path, self.consumer)
        self.channel = grpc.aio.insecure_channel(f"unix:{path}", options=(("grpc.max_send_message_length", -1),))

    def open(self) -> grpc.aio.StreamUnaryCall[bytes, bytes]:
        return self.channel.stream_unary(f"/{SERVICE}/{METHOD}")()

    @property
    def counts(self) -> LogCounts:
        return self.receiver.counts


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Setup]:
    setup = Setup(path)
    await setup.receiver.start()
    try:
        yield setup
    finally:
        await setup.channel.close()
        await setup.receiver.stop(0)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with running(tmp_path / "log.sock") as made:
        yield made


def message(*ids: str, log_name: str | None = "request", node: str = "node-1") -> bytes:
    """Return a message with an entry for each id; `log_name` None: not the stream's first."""
    made = StreamAccessLogsMessage()
    if log_name is not None:
        made.identifier.log_name = log_name
        made.identifier.node.id = node
    for one in ids:
        made.http_logs.log_entry.add().request.request_id = one
    return made.SerializeToString()


async def test_request_and_try_entries_arrive_as_values_in_order(setup: Setup) -> None:
    requests, tries = setup.open(), setup.open()
    await requests.write(message("a", "b"))
    await requests.write(message("c", log_name=None))
    await setup.consumer.until(lambda: setup.consumer.ids() == ["a", "b", "c"])
    await tries.write(message("d", log_name="try"))
    await setup.consumer.until(lambda: len(setup.consumer.got) == 4)
    assert [RequestEntry] * 3 + [TryEntry] == [type(entry) for entry in setup.consumer.got]
    assert LogCounts(entries=4, gaps=0, unreadable=0, ignored=0, failures=0, open_streams=2) == setup.counts


async def test_stream_that_the_client_closes_is_no_gap(setup: Setup) -> None:
    call = setup.open()
    await call.write(message("a"))
    await call.done_writing()
    assert await asyncio.wait_for(call, DEADLINE_S) == b""
    assert setup.counts.gaps == 0
    assert setup.counts.open_streams == 0


async def test_cancelled_stream_is_a_gap_of_its_node(setup: Setup) -> None:
    call = setup.open()
    await call.write(message("a"))
    await setup.consumer.until(lambda: setup.consumer.ids() == ["a"])
    call.cancel()
    await setup.consumer.until(lambda: setup.consumer.gaps() == [LogGap("node-1", BROKEN)])
    assert setup.counts.gaps == 1


async def test_broken_connection_is_a_gap_for_each_stream(setup: Setup) -> None:
    for log_name in ("request", "try"):
        await setup.open().write(message(log_name, log_name=log_name))
    await setup.consumer.until(lambda: len(setup.consumer.ids()) == 2)
    await setup.channel.close()
    await setup.consumer.until(lambda: setup.consumer.gaps() == [LogGap("node-1", BROKEN)] * 2)


async def test_announced_end_is_no_gap_but_only_for_streams_open_then(setup: Setup) -> None:
    first = setup.open()
    await first.write(message("a"))
    await setup.consumer.until(lambda: setup.consumer.ids() == ["a"])
    setup.receiver.expect_end()
    first.cancel()
    second = setup.open()
    await second.write(message("b", node="node-2"))
    await setup.consumer.until(lambda: setup.consumer.ids() == ["a", "b"])
    second.cancel()
    await setup.consumer.until(lambda: setup.counts.gaps > 0)
    assert [LogGap("node-2", BROKEN)] == setup.consumer.gaps()


async def test_own_stop_is_no_gap(tmp_path: Path) -> None:
    async with running(tmp_path / "log.sock") as setup:
        await setup.open().write(message("a"))
        await setup.consumer.until(lambda: setup.consumer.ids() == ["a"])
        await setup.receiver.stop(0)
        assert LogCounts(entries=1, gaps=0, unreadable=0, ignored=0, failures=0, open_streams=0) == setup.counts
        assert not (tmp_path / "log.sock").exists()


@pytest.mark.parametrize("node", ["node-1", ""])
async def test_unreadable_message_closes_its_stream_and_no_other(setup: Setup, node: str) -> None:
    good, bad = setup.open(), setup.open()
    await good.write(message("a"))
    if node:
        await bad.write(message("b", node=node))
    await bad.write(b"\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(bad, DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await good.write(message("c", log_name=None))
    await setup.consumer.until(lambda: "c" in setup.consumer.ids())
    assert [LogGap(node, UNREADABLE)] == setup.consumer.gaps()
    assert setup.counts.unreadable == 1


async def test_message_over_the_limit_is_a_gap(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    call = setup.open()
    await call.write(message("a"))
    await setup.consumer.until(lambda: setup.consumer.ids() == ["a"])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.write(bytes(logs.MAX_MESSAGE_BYTES + 1))
        await asyncio.wait_for(call, DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await setup.consumer.until(lambda: setup.consumer.gaps() == [LogGap("node-1", BROKEN)])


async def test_stream_over_the_limit_is_refused(setup: Setup) -> None:
    for _ in range(logs.MAX_STREAMS):
        await setup.open().write(message("a"))
    await setup.consumer.until(lambda: setup.counts.open_streams == logs.MAX_STREAMS)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(setup.open(), DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert setup.counts.gaps == 0


async def test_other_logs_are_ignored_counted_and_never_a_gap(setup: Setup) -> None:
    other, ours = setup.open(), setup.open()
    await other.write(message("a", log_name="audit"))
    await other.write(message("b", log_name=None))
    await other.done_writing()
    await asyncio.wait_for(other, DEADLINE_S)
    cancelled = setup.open()
    await cancelled.write(message("c", log_name="audit"))
    await ours.write(message("d"))
    await setup.consumer.until(lambda: setup.consumer.ids() == ["d"])
    cancelled.cancel()
    ours.cancel()
    await setup.consumer.until(lambda: setup.counts.open_streams == 0)
    assert LogCounts(entries=1, gaps=1, unreadable=0, ignored=3, failures=0, open_streams=0) == setup.counts


async def test_consumer_that_raises_is_counted_and_the_stream_goes_on(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    call = setup.open()
    setup.consumer.error = ValueError("the prompt was 4711")
    with caplog.at_level(logging.DEBUG, logger=logs.__name__):
        await call.write(message("lost"))
        await call.write(message("lost", log_name=None))
        await setup.consumer.until(lambda: setup.counts.failures == 2)
        setup.consumer.error = None
        await call.write(message("kept", log_name=None))
        await setup.consumer.until(lambda: setup.consumer.ids() == ["kept"])
    assert ["log entries were not processed: the consumer raised ValueError"] == caplog.messages
    assert setup.counts.open_streams == 1


async def test_successor_gets_new_streams_while_the_first_drains(tmp_path: Path) -> None:
    path = tmp_path / "log.sock"
    async with running(path) as first:
        await first.open().write(message("a"))
        await first.consumer.until(lambda: first.consumer.ids() == ["a"])
        async with running(path) as second:
            await first.receiver.stop(0)
            await second.open().write(message("b"))
            await second.consumer.until(lambda: second.consumer.ids() == ["b"])
