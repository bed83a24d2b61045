"""The place of an Envoy under test: its backend, state directory and address."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from aiohttp import web
from envoy_lab import Backend, Lab
from pointsman.sidecar.process_identity import living_envoys
from pointsman.sidecar.state_dir import StateDir


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    finish = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/stream":
            return web.Response(text="whole")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begin ")
        await finish.wait()
        await response.write(b"end")
        await response.write_eof()
        return response

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield Backend(f"{host}:{port}", finish)
    finish.set()
    await runner.cleanup()


@pytest.fixture
def state() -> Iterator[StateDir]:
    with TemporaryDirectory(prefix="pm-") as folder:
        with StateDir(Path(folder) / "state", runtime=Path(folder) / "run") as held:
            yield held
            # Whatever a failed test left behind.
            for record in living_envoys(held.envoy_pids):
                os.kill(record.process.pid, signal.SIGKILL)


@pytest.fixture
async def lab(state: StateDir, backend: Backend) -> Lab:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return Lab(state, backend, f"127.0.0.1:{port}")
