"""The ADS server: clients connect, in either variant of the protocol, and are sent the snapshot of their group.

Decides nothing about resources: each stream's state machine (stream.py) does, fed here with what arrives and what is
published. Refuses to serve before a snapshot is published, because a control plane that knows less than its clients
takes away what they have; ends streams that break the protocol or a bound, and leaves the others alone. Each stream
has one reader and one writer and no queue between them. Serves on a unix socket that only our own user can open, and
on a loopback address where one is asked for. Never logs: the agent gets values (status.py). Used by the agent and the
control plane, from the event loop's own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import grpc
from grpc import aio
from pointsman.xds.delta import DELTA_WIRE
from pointsman.xds.nodes import Node, NodeRegistry, Session
from pointsman.xds.snapshot import Snapshot
from pointsman.xds.sotw import SOTW_WIRE
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
from pointsman.xds.wire import RequestRefused, Wire

DEFAULT_GROUP = "default"

_SERVICE = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"
_WIRES: Mapping[str, Wire] = {
    _SERVICE + "DeltaAggregatedResources": DELTA_WIRE,
    _SERVICE + "StreamAggregatedResources": SOTW_WIRE,
}

_TCP_OPTIONS = (
    # Else a second server on the address would start and take half of the clients.
    ("grpc.so_reuseport", 0),
    # A peer that vanished without closing is noticed within a minute.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)

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
        "a response was left unanswered; connect again and state what you have",
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
    """An ADS server on one unix socket and, if asked, on a loopback address."""

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        *,
        address: str | None = None,
        group_of: Callable[[NodeIdentity], str] = lambda _: DEFAULT_GROUP,
        on_event: Callable[[XdsEvent], None] = lambda _: None,
        limits: ServerLimits | None = None,
    ) -> None:
        """Make a server; `on_event` is called in the event loop and must neither block nor raise.

        `address` is `host:port` with a loopback IP, port 0 for any free one; nothing there is encrypted or asked who
        it is, so another host is refused.
        """
        self._path = Path(socket_path)
        self._wanted_address = _loopback(address) if address is not None else None
        self.address: str | None = None
        """Where the server listens besides its socket, once it is started."""
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
        """Serve; AdsRefused when nothing was published yet, or the path or the address cannot be had."""
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
                *(_TCP_OPTIONS if self._wanted_address is not None else ()),
            ),
        )
        server.add_generic_rpc_handlers((_Methods(self._serve),))
        try:
            if self._wanted_address is not None:
                self.address = _listen(server, self._wanted_address)
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
        refused = tuple(node.identity.node_id for node in nodes if node.settled_outcome is Outcome.REFUSED)
        accepted = tuple(node.identity.node_id for node in nodes if node.settled_outcome is not Outcome.REFUSED)
        return Acknowledgement(version, accepted, refused)

    def _note_progress(self) -> None:
        # Wakes those who wait now; they look at the nodes again.
        self._progress.set()
        self._progress.clear()

    # ---- one stream

    async def _serve(self, requests: AsyncIterator[bytes], context: _StreamContext, wire: Wire) -> None:
        try:
            identity, session = await self._open(requests, wire)
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

    async def _open(self, requests: AsyncIterator[bytes], wire: Wire) -> tuple[NodeIdentity, Session | None]:
        """Read the first request and take the node from it (xDS point 1); no session when the client closed at once."""
        async for raw in requests:
            incoming = wire.decode(raw)
            identity = incoming.identity
            if identity is None:
                raise RequestRefused(EndReason.NODE_MISSING, "the first request has no node.id; state it")
            group = self._group_of(identity)
            session = self._nodes.open(
                identity, group, wire, rate=self._limits.requests_per_s, burst=self._limits.request_burst
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
                        await context.write(session.wire.encode(response))
                    continue
            except TimeoutError:
                return EndReason.NOT_READING, ""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(session.stream.deadline_s(now_s)):
                    await session.wake.wait()


def _behind(nodes: tuple[Node, ...], sequence: int) -> list[str]:
    return [node.identity.node_id for node in nodes if node.settled < sequence]


def _loopback(address: str) -> str:
    """Return the address if it is a loopback IP with a port, or raise AdsRefused."""
    host, _, port = address.rpartition(":")
    try:
        is_loopback = ipaddress.ip_address(host.strip("[]")).is_loopback and 0 <= int(port) <= 65_535
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise AdsRefused(f"address {address!r} is no loopback IP with a port; use 127.0.0.1:PORT or [::1]:PORT")
    return address


def _listen(server: aio.Server, address: str) -> str:
    """Have the server listen on the address and return it with the port that it got; OSError where that cannot be."""
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}; end what listens there or choose another port") from error
    return f"{address.rpartition(':')[0]}:{port}"


class _Methods(grpc.GenericRpcHandler):
    """The two methods of the aggregated service, on raw bytes; any other is unimplemented (xDS point 42)."""

    def __init__(self, serve: Callable[[AsyncIterator[bytes], _StreamContext, Wire], Awaitable[None]]) -> None:
        self._handlers = {method: _handler(serve, wire) for method, wire in _WIRES.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handlers.get(handler_call_details.method)


def _handler(
    serve: Callable[[AsyncIterator[bytes], _StreamContext, Wire], Awaitable[None]], wire: Wire
) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def serve_variant(requests: AsyncIterator[bytes], context: _StreamContext) -> None:
        await serve(requests, context, wire)

    return grpc.stream_stream_rpc_method_handler(serve_variant)
