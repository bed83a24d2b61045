"""Waiting for what has no event to wait for: a file's text, another process's port. The only poll of the tests."""

import asyncio
from collections.abc import Awaitable, Callable

EVERY_S = 0.01


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = 20) -> None:
    """Return once the condition holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(EVERY_S)
