"""One HTTP/1.1 connection of a chaos client: sends whole or half requests, reads answers piece by piece.

Decides when a connection may be used again: only after a whole answer that did not say `connection: close`. Never
tries anything twice: a retry here would hide what happened. Called by client.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

SMALL_BUFFER_BYTES = 8 * 1024
"""Receive buffer of slow readers: the sidecar soon sees that nobody reads."""


class BrokenAnswer(ConnectionError):
    """The connection ended, or what came is no HTTP."""


@dataclass(frozen=True, slots=True)
class Head:
    """An answer's status and headers (lower-case; the last line wins)."""

    status: int
    headers: dict[str, str]


class Connection:
    """Use `open`; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._may_stay = True

    @classmethod
    async def open(cls, port: int, *, is_slow: bool = False) -> Connection:
        """Connect to the sidecar."""
        if not is_slow:
            return cls(*await asyncio.open_connection("127.0.0.1", port))
        raw = socket.socket()
        try:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
            raw.settimeout(0)
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        except BaseException:
            raw.close()
            raise
        return cls(*await asyncio.open_connection(sock=raw, limit=SMALL_BUFFER_BYTES))

    @property
    def is_reusable(self) -> bool:
        """Whether the next request may go here, as far as a client can tell."""
        return self._may_stay and not self._reader.at_eof() and self._reader.exception() is None

    async def send(self, content: bytes) -> None:
        """Send; an error is left to the answer's reader, which sees it too."""
        try:
            self._writer.write(content)
            await self._writer.drain()
        except ConnectionError:
            self._may_stay = False

    async def exchange(self, content: bytes) -> Head:
        """Send and read the answer's head, which may come before everything is sent: a 413 does."""
        sending = asyncio.create_task(self.send(content))
        try:
            return await self.head()
        finally:
            if not sending.done():
                self._may_stay = False
                sending.cancel()

    async def head(self) -> Head:
        """Read an answer's head."""
        try:
            text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            start, *lines = text.rstrip("\r\n").split("\r\n")
            pairs = (line.partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            status = int(start.split()[1])
        except asyncio.IncompleteReadError as error:
            self._may_stay = False
            raise BrokenAnswer(f"closed after {len(error.partial)} bytes of the head") from error
        except (ValueError, IndexError, asyncio.LimitOverrunError) as error:
            self._may_stay = False
            raise BrokenAnswer(f"no HTTP answer: {error}") from error
        if headers.get("connection", "").lower() == "close":
            self._may_stay = False
        return Head(status, headers)

    async def body(self, head: Head) -> AsyncIterator[bytes]:
        """Yield the body's pieces; BrokenAnswer when it ends early."""
        may_stay, self._may_stay = self._may_stay, False  # until its end was seen
        try:
            if "content-length" in head.headers:
                left = int(head.headers["content-length"])
                while left:
                    piece = await self._reader.read(min(left, 65_536))
                    if not piece:
                        raise BrokenAnswer(f"closed {left} bytes before the body's end")
                    left -= len(piece)
                    yield piece
            elif head.headers.get("transfer-encoding") == "chunked":
                while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
                    yield await self._reader.readexactly(size)
                    await self._reader.readexactly(2)
                await self._reader.readuntil(b"\r\n")
            else:
                raise BrokenAnswer("an answer without a length")
        except asyncio.IncompleteReadError as error:
            raise BrokenAnswer("closed in the body") from error
        except (ValueError, asyncio.LimitOverrunError) as error:
            raise BrokenAnswer(f"broken chunks: {error}") from error
        self._may_stay = may_stay

    def close(self, *, with_reset: bool = False) -> None:
        """Close it, politely or not."""
        self._may_stay = False
        if with_reset:
            self._writer.transport.abort()
        else:
            self._writer.close()
