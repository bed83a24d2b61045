"""The server that Envoy streams its access logs to: messages in, the core's values out.

One stream per Envoy worker and log; only its first message names the log and the node. Entries go to the consumer
message by message, in order of arrival; nothing is queued here, so there is nothing to overflow: a slow consumer makes
Envoy wait, and Envoy counts what it drops. Where entries may be missing the consumer gets a LogGap:

- A message that cannot be parsed: its stream is closed with INVALID_ARGUMENT, the others go on, Envoy opens a new one.
- A stream that is reset or whose connection breaks. Envoy resets its streams also when it is told to stop, with what it
  has not flushed lost, and gRPC shows no difference to a crash; so who stops an Envoy says so first (`expect_end`).

No gap is: an end that the client declares (half-close), our own `stop`, a log whose name is not ours.
Never writes an entry into a log of our own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from pointsman.router.entry import LogGap, RequestEntry, TryEntry
from pointsman.xds.api import HTTPAccessLogEntry, StreamAccessLogsMessage, StreamAccessLogsResponse
from pointsman.xds.log_entries import clean, decode_request, decode_try
from pointsman.xds.names import REQUEST_LOG, TRY_LOG
from pointsman.xds.unix_socket import SERVER_OPTIONS, SocketFile, listen_on

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
METHOD = "StreamAccessLogs"

MAX_MESSAGE_BYTES = 16_777_216
"""Envoy flushes at 16 KiB and adds one entry at most, and its node once: this is far above, and bounds a decode."""

MAX_STREAMS = 256
"""Two logs for each of 128 Envoy workers. More get RESOURCE_EXHAUSTED, and Envoy tries again."""

RESET_NOTICE_MS = 200
"""After the last message a reset looks like a half-close until gRPC cancels the call, 0.1 ms later as measured."""

END_DEADLINE_S = 1.0
"""How long a stop waits for cancelled streams, which have nothing left to wait for."""

DECODERS: dict[str, Callable[[HTTPAccessLogEntry], RequestEntry | TryEntry]] = {
    REQUEST_LOG: decode_request,
    TRY_LOG: decode_try,
}
"""What an entry means, by the name of its log."""

BROKEN = "the log stream broke"
UNREADABLE = "a log message could not be parsed"
"""Reasons of gaps."""

Logged = RequestEntry | TryEntry | LogGap
"""What the consumer gets."""

_OK = StreamAccessLogsResponse().SerializeToString()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogCounts:
    """What happened since the start: `ignored` messages were of other logs, `failures` are batches that raised."""

    entries: int
    gaps: int
    unreadable: int
    ignored: int
    failures: int
    open_streams: int


@dataclass(slots=True, eq=False)
class _Stream:
    """What is known of one stream: who sends it, and whether its end is expected."""

    task: asyncio.Task[object]
    node: str = ""
    log_name: str | None = None
    is_ending: bool = False


class LogReceiver:
    """A gRPC server on a unix socket that hands Envoy's log entries to `on_entries`, on the event loop's thread.

    `on_entries` must not block. When it raises, the batch is lost to it and counted as a failure, the error's type is
    logged once until a batch succeeds again, and the stream goes on.
    """

    def __init__(self, socket_path: Path, on_entries: Callable[[Sequence[Logged]], None]) -> None:
        self._path = socket_path
        self._on_entries = on_entries
        self._server: grpc.aio.Server | None = None
        self._file: SocketFile | None = None
        self._streams: set[_Stream] = set()
        self._is_stopping = False
        self._is_failing = False
        self._entries = self._gaps = self._unreadable = self._ignored = self._failures = 0

    @property
    def counts(self) -> LogCounts:
        """What happened so far."""
        return LogCounts(
            entries=self._entries,
            gaps=self._gaps,
            unreadable=self._unreadable,
            ignored=self._ignored,
            failures=self._failures,
            open_streams=len(self._streams),
        )

    async def start(self) -> None:
        """Listen; OSError where the socket cannot be had."""
        server = grpc.aio.server(
            maximum_concurrent_rpcs=MAX_STREAMS,
            options=(*SERVER_OPTIONS, ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)),
        )
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(self._receive)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        self._file = listen_on(server, self._path)
        await server.start()
        self._server = server

    async def stop(self, grace_s: float) -> None:
        """Read on for the grace, then end the streams (no gap) and remove the socket unless a successor has it."""
        self._is_stopping = True
        if self._server is not None:
            await self._server.stop(grace_s)
            if self._streams:  # gRPC has cancelled them but does not wait
                await asyncio.wait([stream.task for stream in self._streams], timeout=END_DEADLINE_S)
        if self._file is not None:
            self._file.remove()

    def expect_end(self) -> None:
        """Take the end of the streams that are open now as announced: their Envoy is about to be told to stop."""
        for stream in self._streams:
            stream.is_ending = True

    async def _receive(self, messages: AsyncIterable[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        task = asyncio.current_task()
        assert task is not None  # a coroutine always runs in one
        stream = _Stream(task)
        self._streams.add(stream)
        gap: str | None = BROKEN
        try:
            async for data in messages:
                if not self._take(stream, data):
                    self._unreadable += 1
                    gap = UNREADABLE
                    await context.abort(
                        grpc.StatusCode.INVALID_ARGUMENT, "expected envoy.service.accesslog.v3.StreamAccessLogsMessage"
                    )
            await asyncio.sleep(RESET_NOTICE_MS / 1_000)  # cancelled here if it was a reset
            gap = None
            return _OK
        finally:
            self._streams.discard(stream)
            is_announced = self._is_stopping or stream.is_ending
            is_ours = stream.log_name is None or stream.log_name in DECODERS
            if gap is not None and is_ours and (gap is UNREADABLE or not is_announced):
                self._gaps += 1
                self._deliver((LogGap(node=stream.node, reason=gap),))

    def _take(self, stream: _Stream, data: bytes) -> bool:
        """Deliver the message's entries; False where it is no message."""
        try:
            message = StreamAccessLogsMessage.FromString(data)
        except DecodeError:
            return False
        if stream.log_name is None:
            stream.log_name = message.identifier.log_name
            stream.node = clean(
                message.identifier.node.id
            )  # the node lists every extension, 60 KB: only its id is read
        decode = DECODERS.get(stream.log_name)
        if decode is None:
            self._ignored += 1
            return True
        entries = [decode(logged) for logged in message.http_logs.log_entry]
        if entries:
            self._entries += len(entries)
            self._deliver(entries)
        return True

    def _deliver(self, entries: Sequence[Logged]) -> None:
        try:
            self._on_entries(entries)
        except Exception as error:  # noqa: BLE001 - one bad batch must not end the stream; it is counted
            self._failures += 1
            if not self._is_failing:
                _log.error("log entries were not processed: the consumer raised %s", type(error).__name__)
            self._is_failing = True
        else:
            self._is_failing = False
