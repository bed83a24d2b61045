"""A load at a set rate, whatever the answers take: small chat requests, counted by what became of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from types import TracebackType
from typing import Self

from load import CHAT
from wire import Client

_TICK_S = 0.005
_LARGEST_BURST = 20
"""After a stall of the machine the load catches up slowly: a flood would test the backend's accept queue."""


class PacedLoad:
    """So many requests a second until the block ends. Connections are kept and used in turn, or each is used once."""

    def __init__(self, port: int, *, per_s: int = 500, keeps_connections: bool) -> None:
        self.answers: Counter[str] = Counter()
        self._port = port
        self._per_s = per_s
        self._keeps_connections = keeps_connections
        self._idle: deque[Client] = deque()
        self._requests: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._pacing: asyncio.Task[None] | None = None
        self._answered = asyncio.Condition()

    @property
    def failed(self) -> dict[str, int]:
        """Everything but 200, by status or by error."""
        return {what: count for what, count in self.answers.items() if what != "200"}

    async def more(self, count: int) -> None:
        """Return when so many more answers came."""
        wanted = self.answers.total() + count
        async with asyncio.timeout(60), self._answered:
            await self._answered.wait_for(lambda: self.answers.total() >= wanted)

    async def __aenter__(self) -> Self:
        self._pacing = asyncio.create_task(self._pace())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._pacing is not None:
            await self._pacing
        await asyncio.gather(*self._requests)
        for client in self._idle:
            await client.close()

    async def _pace(self) -> None:
        started_s, sent = time.monotonic(), 0
        while not self._stop.is_set():
            due = int((time.monotonic() - started_s) * self._per_s)
            for _ in range(min(due - sent, _LARGEST_BURST)):
                sent += 1
                request = asyncio.create_task(self._ask())
                self._requests.add(request)
                request.add_done_callback(self._requests.discard)
            await asyncio.sleep(_TICK_S)

    async def _ask(self) -> None:
        client = self._connection()
        try:
            answer = await asyncio.wait_for(client.ask(CHAT), 30)
            self.answers[str(answer.status)] += 1
        except (OSError, asyncio.IncompleteReadError) as error:
            self.answers[type(error).__name__] += 1
            await client.close()
        if self._keeps_connections and client.is_open:
            self._idle.append(client)
        else:
            await client.close()
        async with self._answered:
            self._answered.notify_all()

    def _connection(self) -> Client:
        """Return one that is open still, as far as a client can tell: what every client of a pool does."""
        while self._idle:
            client = self._idle.popleft()
            if client.is_open:
                return client
        return Client(self._port)
