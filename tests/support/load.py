"""A steady load of small chat requests on keep-alive connections; every answer is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType
from typing import Self

from pointsman.router.request import Request
from wire import Client

CHAT = Request(headers=(("content-type", "application/json"),), body=b'{"model": "support-chat", "messages": []}')


class Load:
    """`connections` clients that ask again as soon as they are answered, until the block ends."""

    def __init__(self, port: int, *, connections: int = 4, request: Request = CHAT) -> None:
        self.answers: Counter[str] = Counter()
        self._port = port
        self._request = request
        self._connections = connections
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._answered = asyncio.Condition()

    @property
    def failed(self) -> dict[str, int]:
        """Everything but 200, by status or by error."""
        return {what: count for what, count in self.answers.items() if what != "200"}

    async def _ask(self) -> None:
        client = Client(self._port)
        while not self._stop.is_set():
            try:
                answer = await asyncio.wait_for(client.ask(self._request), 30)
                self.answers[str(answer.status)] += 1
            except (OSError, asyncio.IncompleteReadError) as error:
                self.answers[type(error).__name__] += 1
                await client.close()
            async with self._answered:
                self._answered.notify_all()
        await client.close()

    async def more(self, count: int) -> None:
        """Return when so many more answers came."""
        wanted = self.answers.total() + count
        async with asyncio.timeout(60), self._answered:
            await self._answered.wait_for(lambda: self.answers.total() >= wanted)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(self._connections)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
