"""A Delta client that checks the server's protocol on every message, an Envoy's reactions, and a real connection.

Three layers: the checker is pure (fake_checker.py) and makes the requests that it then accounts for; FakeEnvoy reacts
as Envoy does, in any variant; FakeClient puts either on a connection. For tests, not for traffic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from os import PathLike, fspath
from types import TracebackType
from typing import Generic, Self

import grpc
from grpc import aio
from pointsman.xds import api
from pointsman.xds.fake_checker import (
    CDS,
    EDS,
    LDS,
    RDS,
    Ask,
    Checker,
    Judge,
    ProtocolViolation,
    Received,
    RequestT,
    ResponseT,
    Statement,
)

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"


class ProtocolChecker(Checker[api.DeltaDiscoveryRequest, api.DeltaDiscoveryResponse]):
    """The Delta variant of the checker."""

    METHOD = METHOD

    def write(self, ask: Ask, node: api.Node | None) -> api.DeltaDiscoveryRequest:
        """Return the request; `node` is None but for the stream's first."""
        request = api.DeltaDiscoveryRequest(
            node=node,
            type_url=ask.type_url.value,
            resource_names_subscribe=ask.subscribe,
            resource_names_unsubscribe=ask.unsubscribe,
            initial_resource_versions=ask.initial_versions,
            response_nonce=ask.nonce,
        )
        if ask.error_text is not None:
            request.error_detail.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
            request.error_detail.message = ask.error_text
        return request

    def read(self, response: api.DeltaDiscoveryResponse) -> Statement:
        """Return what the response states."""
        return Statement(
            response.type_url,
            response.system_version_info,
            response.nonce,
            tuple(response.resources),
            tuple(response.removed_resources),
            response.ByteSize(),
        )

    def parse(self, raw: bytes) -> api.DeltaDiscoveryResponse:
        """Return the response that the bytes are."""
        return api.DeltaDiscoveryResponse.FromString(raw)


class FakeEnvoy(Generic[RequestT, ResponseT]):
    """Reacts as Envoy does: all clusters and listeners, then the endpoints and routes that these name."""

    def __init__(
        self, checker: Checker[RequestT, ResponseT], *, judge: Judge = lambda _kind, _name, _message: None
    ) -> None:
        self.checker = checker
        self.nacks = 0
        self._judge = judge
        self._is_listening = False

    def start(self) -> list[RequestT]:
        """Return the first requests; a reconnecting Envoy asks for everything that it has."""
        requests = [self.checker.subscribe(CDS)]
        for kind in (EDS, LDS, RDS):
            names = self.checker.needed(kind) if kind is not LDS else frozenset()
            if names or (kind is LDS and self.checker.versions(LDS)):
                requests.append(self.checker.subscribe(kind, *sorted(names)))
                self._is_listening = self._is_listening or kind is LDS
        return requests

    def react(self, response: ResponseT) -> list[RequestT]:
        """Check the response and return the answer to it, with the changes of names that follow."""
        return self.take(response)[1]

    def take(self, response: ResponseT) -> tuple[Received, list[RequestT]]:
        """Do what `react` does, and return what was received besides."""
        received = self.checker.check(response)
        kind = received.type_url
        reasons = [self._judge(kind, name, message) for name, message in received.resources.items()]
        text = "; ".join(reason for reason in reasons if reason is not None)
        if text:
            self.nacks += 1
            requests = [self.checker.refuse(received, text)]
        else:
            requests = [self.checker.acknowledge(received)]
        for other in (EDS, RDS):
            wanted, asked = self.checker.needed(other), self.checker.names(other)
            if wanted - asked:
                requests.append(self.checker.subscribe(other, *sorted(wanted - asked)))
            if asked - wanted:
                requests.append(self.checker.unsubscribe(other, *sorted(asked - wanted)))
        if kind is CDS and not self._is_listening:
            self._is_listening = True
            requests.append(self.checker.subscribe(LDS))
        return received, requests


class FakeClient(Generic[RequestT, ResponseT]):
    """One stream, in the checker's variant, to a server on a unix socket or an address; use with `async with`."""

    def __init__(
        self,
        socket_path: str | PathLike[str] | None,
        checker: Checker[RequestT, ResponseT],
        *,
        address: str | None = None,
    ) -> None:
        self.checker = checker
        self._target = address if socket_path is None or address is not None else f"unix:{fspath(socket_path)}"
        self._channel: aio.Channel | None = None
        self._call: aio.StreamStreamCall[bytes, bytes] | None = None

    async def __aenter__(self) -> Self:
        self._channel = aio.insecure_channel(
            self._target or "",
            options=(
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", -1),
            ),
        )
        self._call = self._channel.stream_stream(self.checker.METHOD)()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream().cancel()
        if self._channel is not None:
            await self._channel.close()

    def _stream(self) -> aio.StreamStreamCall[bytes, bytes]:
        if self._call is None:
            raise RuntimeError("the client is not connected; use it with `async with`")
        return self._call

    async def send(self, *requests: RequestT) -> None:
        """Send requests that the checker made."""
        for request in requests:
            await self._stream().write(request.SerializeToString())

    async def send_raw(self, raw: bytes) -> None:
        """Send bytes that no checker accounts for."""
        await self._stream().write(raw)

    async def receive_raw(self, timeout_s: float = 5.0) -> ResponseT | None:
        """Return the next response unchecked; None when the server ended the stream without an error."""
        async with asyncio.timeout(timeout_s):
            raw = await self._stream().read()
        return self.checker.parse(raw) if isinstance(raw, bytes) else None

    async def receive(self, timeout_s: float = 5.0) -> Received:
        """Return the next response, checked; ConnectionError when the stream has ended."""
        response = await self.receive_raw(timeout_s)
        if response is None:
            raise ConnectionError("the server ended the stream")
        return self.checker.check(response)

    async def half_close(self) -> None:
        """Say that no more requests will come."""
        await self._stream().done_writing()

    async def end_status(self, timeout_s: float = 5.0) -> tuple[grpc.StatusCode, str]:
        """Wait for the end of the stream and return its status."""
        async with asyncio.timeout(timeout_s):
            return await self._stream().code(), await self._stream().details() or ""

    async def follow(
        self, envoy: FakeEnvoy[RequestT, ResponseT], *, until: Callable[[], bool], timeout_s: float = 5.0
    ) -> None:
        """Let the fake Envoy answer what arrives until the condition holds."""
        async with asyncio.timeout(timeout_s):
            while not until():
                response = await self.receive_raw(timeout_s)
                if response is None:
                    raise ConnectionError("the server ended the stream")
                await self.send(*envoy.react(response))


FakeDeltaClient = FakeClient[api.DeltaDiscoveryRequest, api.DeltaDiscoveryResponse]

__all__ = [
    "CDS",
    "EDS",
    "LDS",
    "METHOD",
    "RDS",
    "FakeClient",
    "FakeDeltaClient",
    "FakeEnvoy",
    "Judge",
    "ProtocolChecker",
    "ProtocolViolation",
    "Received",
]
