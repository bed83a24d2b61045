"""The places in which a simulated server works on requests; the rest wait in order of arrival.

Refuses nobody: like a real engine it queues without a limit, and says how many wait. One event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Slots:
    """So many requests run at a time; fewer or more while it runs is fine, whoever runs is left alone."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.running = 0

    @property
    def waiting(self) -> int:
        """How many requests wait for a place."""
        return len(self._waiting)

    def resize(self, capacity: int) -> None:
        """Set how many may run; starts those who now fit."""
        self._capacity = capacity
        self._admit()

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for the time of the block, first come first served."""
        if self.running < self._capacity and not self._waiting:
            self.running += 1
        else:
            await self._wait()
        try:
            yield
        finally:
            self.running -= 1
            self._admit()

    async def _wait(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(place)
            else:
                # Cancelled after the place was given but before this task ran: hand it on, or it is lost for good.
                self.running -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and (self._waiting[0].done() or self.running < self._capacity):
            place = self._waiting.popleft()
            if not place.done():
                self.running += 1
                place.set_result(None)
