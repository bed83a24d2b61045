"""The load of a chaos run: requests at a steady rate whatever the answers take, until it is told to end.

Decides only the pace. Bounded: at most RATE_LIMIT_PER_S, and IN_FLIGHT_LIMIT at a time (what is due then is left out).
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from ask import Draw
from client import Client, Outcome

RATE_LIMIT_PER_S = 200
IN_FLIGHT_LIMIT = 300
_TICK_S = 0.01
_LARGEST_BURST = 10
"""After a stall of the machine the load catches up slowly."""


class Traffic:
    """Use as a context manager; `take` hands over what ended."""

    def __init__(self, client: Client, draw: Draw, *, per_s: int) -> None:
        self._client = client
        self._draw = draw
        self._per_s = min(per_s, RATE_LIMIT_PER_S)
        self._ended: list[Outcome] = []
        self._requests: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._pacing: asyncio.Task[None] | None = None
        self.asked = 0

    def take(self) -> list[Outcome]:
        """Return the outcomes since the last call."""
        ended, self._ended = self._ended, []
        return ended

    async def end(self) -> None:
        """Send nothing more, and wait until everything has its outcome: the client has a deadline for each."""
        self._stop.set()
        if self._pacing is not None:
            await self._pacing
        await asyncio.gather(*self._requests)

    async def __aenter__(self) -> Self:
        self._pacing = asyncio.create_task(self._pace())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for task in (*self._requests, *([self._pacing] if self._pacing else [])):
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def _pace(self) -> None:
        began_s, due_before = time.monotonic(), 0
        while not self._stop.is_set():
            due = int((time.monotonic() - began_s) * self._per_s)
            for _ in range(min(due - due_before, _LARGEST_BURST, IN_FLIGHT_LIMIT - len(self._requests))):
                self.asked += 1
                request = asyncio.create_task(self._ask())
                self._requests.add(request)
                request.add_done_callback(self._requests.discard)
            due_before = due
            await asyncio.sleep(_TICK_S)

    async def _ask(self) -> None:
        self._ended.append(await self._client.ask(self._draw.next()))
