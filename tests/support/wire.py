"""Raw HTTP/1.1 for tests: a backend that names the port it answers from, and a client that sends any bytes."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pointsman.router.request import Request


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def read_message(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    """Return start line, headers (lower-case; the last line wins) and body of one message."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    start, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = b""
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    return start, headers, body


class Backend:
    """Answers every request with `status` and `x-served-by: PORT`; keeps connections alive."""

    def __init__(self) -> None:
        self.port = 0
        self.status = 200
        self.extra: dict[str, str] = {}
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.seen.append(await read_message(reader))
                extra = "".join(f"{name}: {value}\r\n" for name, value in self.extra.items()).encode()
                writer.write(
                    b"HTTP/1.1 %d Any\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
                    b"x-served-by: %d\r\n%s\r\n{}" % (self.status, self.port, extra)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@dataclass(frozen=True)
class Answer:
    """What a client saw."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One keep-alive connection; opened again when the server closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that the server has not closed."""
        return self._streams is not None and not self._streams[0].at_eof()

    async def ask(self, request: Request) -> Answer:
        """Send the request, header lines in order, and return the answer."""
        lines = [f"{request.method} {request.path} HTTP/1.1", "host: test"]
        lines += [f"{name}: {value}" for name, value in request.headers]
        if request.body is not None or request.method in ("POST", "PUT", "PATCH"):
            lines.append(f"content-length: {len(request.body or b'')}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        reader, writer = self._streams
        writer.write(head + (request.body or b""))
        start, headers, body = await read_message(reader)
        if headers.get("connection") == "close":
            await self.close()
        return Answer(int(start.split()[1]), headers, body)

    async def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
