"""The ADS server: Envoys connect over a unix socket and are sent the snapshot of their group.

Decides nothing about resources: each stream's state machine (stream.py) does, fed here with what arrives and what is
published. Refuses to serve before a snapshot is published, because a control plane that knows less than its clients
takes away what they have; ends streams that break the protocol or a bound, and leaves the others alone. Each stream
has one reader and one writer and no queue between them. Never logs: the agent gets values (status.py). Used by the
agent and the control plane, from the event loop's own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import grpc
from grpc import aio
from pointsman.xds.delta import RequestRefused, decode, encode
from pointsman.xds.nodes import Node, NodeRegistry, Session
from pointsman.xds.snapshot import Snapshot
from pointsman.xds.status import (
    Acknowledgement,
    EndReason,
    NodeConnected,
    NodeDisconnected,
    NodeIdentity,
    NodeStatus,
    Outcome,
    XdsEvent,
)
from pointsman.xds.stream import StreamLimits
from pointsman.xds.unix_socket import SERVER_OPTIONS, SocketFile, listen_on

DEFAULT_GROUP = "default"

_SERVICE = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"
_DELTA_METHOD = _SERVICE + "DeltaAggregatedResources"
_STATE_OF_THE_WORLD_METHOD = _SERVICE + "StreamAggregatedResources"

_VERSIONS_REMEMBERED = 64
"""Published versions that wait_acknowledged still knows; a caller waits for one of the last few."""

_TEXTS: Mapping[EndReason, tuple[grpc.StatusCode, str]] = {
    EndReason.SERVER_STOPPED: (grpc.StatusCode.UNAVAILABLE, "the server stops; connect again"),
    EndReason.TOO_MANY_REQUESTS: (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "more requests than the server takes from one stream; send one for each change or response",
    ),
    EndReason.TOO_MANY_NAMES: (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "more names of one type than the server takes from one stream; use a wildcard",
    ),
    EndReason.NEVER_ACKNOWLEDGED: (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "a response was left unanswered; connect again and state initial_resource_versions",
    ),
    EndReason.NOT_READING: (grpc.StatusCode.DEADLINE_EXCEEDED, "the client does not read; connect again"),
}

_StreamContext: TypeAlias = aio.ServicerContext[bytes, bytes]


class AdsRefused(Exception):
    """The server was asked for what cannot be: the text says what and what to do."""


class NotAcknowledged(TimeoutError):
    """The time ran out before every connected node had answered the snapshot."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of the server; every stream has its own share, so that none can starve another."""

    stream: StreamLimits = field(default_factory=StreamLimits)
    max_streams: int = 1_000
    """Streams at a time; more are refused with RESOURCE_EXHAUSTED."""
    max_request_bytes: int = 16 * 1_024 * 1_024
    """A reconnecting client states all it has in one request."""
    requests_per_s: float = 1_000.0
    request_burst: int = 5_000
    """Requests that may come at once: a push split into its resources brings one answer for each."""
    send_s: float = 20.0
    """How long a client may leave its side of the connection full before it is cut off."""
    max_nodes_remembered: int = 1_024
    """Nodes whose refusals and status outlive their streams."""


@dataclass(frozen=True, slots=True)
class _Published:
    snapshot: Snapshot
    sequence: int


class AdsServer:
    """A Delta ADS server on one unix socket."""

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        *,
        group_of: Callable[[NodeIdentity], str] = lambda _: DEFAULT_GROUP,
        on_event: Callable[[XdsEvent], None] = lambda _: None,
        limits: ServerLimits | None = None,
    ) -> None:
        """Make a server; `on_event` is called in the event loop and must neither block nor raise."""
        self._path = Path(socket_path)
        self._group_of = group_of
        self._on_event = on_event
        self._limits = limits or ServerLimits()
        self._file: SocketFile | None = None
        self._server: aio.Server | None = None
        self._published: dict[str, _Published] = {}
        self._sequences: dict[tuple[str, str], int] = {}
        self._next_sequence = itertools.count(1)
        self._nodes = NodeRegistry(limits=self._limits.stream, max_remembered=self._limits.max_nodes_remembered)
        self._progress = asyncio.Event()

    # ---- what the owner does

    def publish(self, snapshot: Snapshot, group: str = DEFAULT_GROUP) -> None:
        """Make the snapshot the one that the group's nodes are to hold, and start sending it."""
        sequence = next(self._next_sequence)
        self._published[group] = _Published(snapshot, sequence)
        self._sequences.pop((group, snapshot.version), None)
        self._sequences[(group, snapshot.version)] = sequence
        if len(self._sequences) > _VERSIONS_REMEMBERED:
            del self._sequences[next(iter(self._sequences))]
        for session in self._nodes.sessions(group):
            session.offer(snapshot, sequence)
        self._note_progress()

    async def start(self) -> None:
        """Serve on the socket; AdsRefused when nothing was published yet, or the path cannot hold a socket."""
        if not self._published:
            raise AdsRefused("the ADS server has no snapshot; publish one before start, or clients lose what they have")
        if self._server is not None:
            raise AdsRefused("the ADS server has been started before; make a new one")
        server = aio.server(
            maximum_concurrent_rpcs=self._limits.max_streams,
            options=(
                ("grpc.max_receive_message_length", self._limits.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                *SERVER_OPTIONS,
            ),
        )
        server.add_generic_rpc_handlers((_Methods(self._serve),))
        try:
            self._file = listen_on(server, self._path)
        except OSError as error:
            raise AdsRefused(str(error)) from error
        await server.start()
        self._server = server

    async def stop(self, grace_s: float = 0.5) -> None:
        """End all streams and remove the socket, unless another process has put its own there."""
        if self._server is None:
            return
        for session in self._nodes.sessions():
            session.end(EndReason.SERVER_STOPPED)
        await self._server.stop(grace_s)
        if self._file is not None:
            self._file.remove()

    def status(self) -> tuple[NodeStatus, ...]:
        """Return the state of every node that is connected or still remembered."""
        return tuple(
            node.status(published.snapshot if (published := self._published.get(node.group)) else None)
            for node in self._nodes.nodes()
        )

    def forget_refusals(self, node_id: str) -> None:
        """Let refused content be sent to the node once more: another process or version stands behind its name."""
        self._nodes.forget_refusals(node_id)

    async def wait_acknowledged(
        self, snapshot: Snapshot | str, timeout_s: float, *, group: str = DEFAULT_GROUP
    ) -> Acknowledgement:
        """Wait until every connected node of the group, at least one, has taken or refused the snapshot or a later one.

        Raises NotAcknowledged, naming the nodes that are behind, when the time is over.
        """
        version = snapshot if isinstance(snapshot, str) else snapshot.version
        sequence = self._sequences.get((group, version))
        if sequence is None:
            raise AdsRefused(
                f"snapshot {version} is none of the last {_VERSIONS_REMEMBERED} published to group {group}"
            )
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    nodes = self._nodes.connected(group)
                    if nodes and not _behind(nodes, sequence):
                        break
                    await self._progress.wait()
        except TimeoutError:
            behind = ", ".join(_behind(self._nodes.connected(group), sequence)) or "no node is connected"
            raise NotAcknowledged(f"snapshot {version} not acknowledged within {timeout_s} s: {behind}") from None
        refused = tuple(node.identity.node_id for node in nodes if node.outcome is Outcome.REFUSED)
        accepted = tuple(node.identity.node_id for node in nodes if node.outcome is not Outcome.REFUSED)
        return Acknowledgement(version, accepted, refused)

    def _note_progress(self) -> None:
        # Wakes those who wait now; they look at the nodes again.
        self._progress.set()
        self._progress.clear()

    # ---- one stream

    async def _serve(self, requests: AsyncIterator[bytes], context: _StreamContext) -> None:
        try:
            identity, session = await self._open(requests)
        except RequestRefused as refused:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        if session is None:
            return
        reason, text = EndReason.CLOSED_BY_CLIENT, ""
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read(requests, session))
                reason, text = await self._write(context, session)
                reader.cancel()
        finally:
            is_last = self._nodes.close(session)
            self._on_event(NodeDisconnected(identity, reason, is_last))
            self._note_progress()
        if reason is not EndReason.CLOSED_BY_CLIENT:
            code, default = _TEXTS.get(reason, (grpc.StatusCode.INVALID_ARGUMENT, text))
            await context.abort(code, text or default)

    async def _open(self, requests: AsyncIterator[bytes]) -> tuple[NodeIdentity, Session | None]:
        """Read the first request and take the node from it (facts-xds 1); no session when the client closed at once."""
        async for raw in requests:
            incoming = decode(raw)
            identity = incoming.identity
            if identity is None:
                raise RequestRefused(EndReason.NODE_MISSING, "the first request has no node.id; state it")
            group = self._group_of(identity)
            session = self._nodes.open(
                identity, group, rate=self._limits.requests_per_s, burst=self._limits.request_burst
            )
            published = self._published.get(group)
            if published is not None:
                session.offer(published.snapshot, published.sequence)
            self._on_event(NodeConnected(identity, group))
            self._report(session.take(incoming, asyncio.get_running_loop().time()))
            return identity, session
        return NodeIdentity(""), None

    async def _read(self, requests: AsyncIterator[bytes], session: Session) -> None:
        async for raw in requests:
            try:
                self._report(session.receive(raw, asyncio.get_running_loop().time()))
            except RequestRefused as refused:
                session.end(refused.reason, str(refused))
            if session.ending is not None:
                return
        session.end(EndReason.CLOSED_BY_CLIENT)

    def _report(self, events: tuple[XdsEvent, ...]) -> None:
        for event in events:
            self._on_event(event)
        if events:
            self._note_progress()

    async def _write(self, context: _StreamContext, session: Session) -> tuple[EndReason, str]:
        """Send what is due whenever something changed; return why the stream ends."""
        loop = asyncio.get_running_loop()
        while True:
            session.wake.clear()
            now_s = loop.time()
            overdue = session.stream.end_reason(now_s)
            if overdue is not None:
                session.end(overdue)
            if session.ending is not None:
                return session.ending
            # One response at a time: what is published while it is written changes what comes next.
            response = session.stream.next_response(now_s)
            try:
                if response is not None:
                    async with asyncio.timeout(self._limits.send_s):
                        await context.write(encode(response))
                    continue
            except TimeoutError:
                return EndReason.NOT_READING, ""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(session.stream.deadline_s(now_s)):
                    await session.wake.wait()


def _behind(nodes: tuple[Node, ...], sequence: int) -> list[str]:
    return [node.identity.node_id for node in nodes if node.settled < sequence]


class _Methods(grpc.GenericRpcHandler):
    """The two methods of the aggregated service, on raw bytes: Delta is served, the other one says what to use."""

    def __init__(self, serve: Callable[[AsyncIterator[bytes], _StreamContext], Awaitable[None]]) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            _DELTA_METHOD: grpc.stream_stream_rpc_method_handler(serve),
            _STATE_OF_THE_WORLD_METHOD: grpc.stream_stream_rpc_method_handler(_refuse_state_of_the_world),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handlers.get(handler_call_details.method)


async def _refuse_state_of_the_world(_requests: AsyncIterator[bytes], context: _StreamContext) -> None:
    text = "State-of-the-World is not served; set api_type DELTA_GRPC in the bootstrap's ads_config"
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)
