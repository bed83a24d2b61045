"""A model server of a chaos run: answers as `x-chaos-answer` says, and remembers what it was asked.

Decides nothing by itself; a `status` other than 200 makes it answer that. Counts a request as executed once its whole
body arrived. The ledger compares these counts with what clients saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web
from ask import ANSWER_HEADER, ID_HEADER, events, filling

_PIECE_BYTES = 64 * 1024


@dataclass
class ModelServer:
    """One server process's worth: `name` is the target that it is."""

    name: str
    status: int = 200
    executed: Counter[str] = field(default_factory=Counter)
    """How often each request's whole body arrived, by its id."""

    open_requests: int = 0
    port: int = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ModelServer]:
        """Listen for the time of the block."""
        server = web.Server(self._handle, auto_decompress=False, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.2)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=1_024).start()
            self.port = int(runner.addresses[0][1])
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.open_requests += 1
        try:
            return await self._answer(request)
        finally:
            self.open_requests -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        digest = hashlib.sha256()
        async for piece in request.content.iter_any():
            digest.update(piece)
        ask_id = request.headers.get(ID_HEADER, "")
        self.executed[ask_id] += 1
        own = {"x-served-by": self.name}
        if self.status != 200:
            return web.json_response({"error": {"message": "busy"}}, status=self.status, headers=own)
        if request.path == "/v1/realtime":
            return await self._talk(request)
        what, *numbers = request.headers.get(ANSWER_HEADER, "json").split()
        if what == "json":
            told = {"id": ask_id, "server": self.name, "sha256": digest.hexdigest()}
            return web.json_response(told, headers=own)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **own})
        await response.prepare(request)
        if what == "bytes":
            content = filling(ask_id, int(numbers[0]))
            for at in range(0, len(content), _PIECE_BYTES):
                await response.write(content[at : at + _PIECE_BYTES])
        else:
            count, gap_ms = map(int, numbers)
            for event in events(ask_id, count, self.name):
                await response.write(event)
                await asyncio.sleep(gap_ms / 1000)
        await response.write_eof()
        return response

    async def _talk(self, request: web.BaseRequest) -> web.StreamResponse:
        """Say every text again, with the own name before it."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(f"{self.name}|{message.data}")
        return socket
