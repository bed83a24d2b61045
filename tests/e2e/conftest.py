"""The stacks of this folder's tests: one that all share and nobody changes, one whose policy tests may change."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from grpc import aio
from pointsman.sidecar.simulator import SimulatorOptions
from pointsman.sidecar.simulator_behaviour import Behaviour
from stack import CANARY_SERVERS, Mirror, Stack, running

POLICY = Path(__file__).with_name("policy.yaml")

SERVERS = {
    **CANARY_SERVERS,
    "SMALL": replace(CANARY_SERVERS["SMALL"], accepts=("small-chat", "support-chat", "down-chat", "busy-chat")),
    "EMBED": SimulatorOptions("127.0.0.1", 0, "embedder@v1", ("embedder",)),
    "BUSY": SimulatorOptions("127.0.0.1", 0, "busy-chat@v1", ("busy-chat",), behaviour=Behaviour(error_ratio=1.0)),
    "HUNG": SimulatorOptions("127.0.0.1", 0, "hung-chat@v1", ("hung-chat",), behaviour=Behaviour(hang=True)),
    "CUT": SimulatorOptions("127.0.0.1", 0, "cut-chat@v1", ("cut-chat",), behaviour=Behaviour(reset_after_chunks=3)),
}


class Echo(grpc.GenericRpcHandler):
    """Answers any method of pmtest.Echo with the request's own bytes; Count streams it thrice, Fail refuses."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "/pmtest.Echo/Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "/pmtest.Echo/Count": grpc.unary_stream_rpc_method_handler(self.count),
            "/pmtest.Echo/Talk": grpc.stream_stream_rpc_method_handler(self.talk),
            "/pmtest.Echo/Fail": grpc.unary_unary_rpc_method_handler(self.fail),
        }
        return handlers.get(handler_call_details.method)

    async def unary(self, request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        context.set_trailing_metadata((("x-echo-trailer", "kept"),))
        return request

    async def count(self, request: bytes, _context: aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        for number in range(3):
            yield request + b"%d" % number

    async def talk(
        self, requests: AsyncIterator[bytes], _context: aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def fail(self, _request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the model is not loaded")


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    """A gRPC server; yields its port."""
    server = aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0.2)


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port that is ours and refuses connections: bound, but nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def mirrors() -> AsyncIterator[dict[str, Mirror]]:
    async with contextlib.AsyncExitStack() as held:
        yield {
            name: await held.enter_async_context(Mirror(name=f"{name.lower()}@v1").serving())
            for name in ("MIRROR", "MIRROR_BUSY")
        }


@pytest.fixture
def mirror(mirrors: dict[str, Mirror]) -> Iterator[Mirror]:
    """The backend that tells what it got; as new for each test."""
    mirrors["MIRROR"].reset()
    yield mirrors["MIRROR"]
    mirrors["MIRROR"].reset()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory, mirrors: dict[str, Mirror]) -> AsyncIterator[Stack]:
    """The shared stack: tests leave its policy alone."""
    async with contextlib.AsyncExitStack() as held:
        values: dict[str, object] = {name: mirror.port for name, mirror in mirrors.items()}
        values["DOWN"] = held.enter_context(refusing_port())
        values["GRPC"] = await held.enter_async_context(echoing())
        folder = tmp_path_factory.mktemp("stack")
        yield await held.enter_async_context(running(folder, POLICY.read_text(), servers=SERVERS, values=values))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def changing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack whose policy tests change, and put back."""
    async with running(tmp_path_factory.mktemp("changing")) as stack:
        yield stack
