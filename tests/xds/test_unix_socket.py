"""How our gRPC servers take over a unix path."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from pointsman.xds.unix_socket import MAX_PATH_BYTES, SERVER_OPTIONS, SocketFile, listen_on

DEADLINE_S = 10
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
PING = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + b"pingping"
PING_TYPE, GOAWAY_TYPE = 6, 7


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[SocketFile]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    file = listen_on(server, path)
    await server.start()
    try:
        yield file
    finally:
        await server.stop(0)


async def is_served(path: Path) -> bool:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        return bool(await asyncio.wait_for(reader.read(1), DEADLINE_S))
    finally:
        writer.close()


async def test_only_our_user_may_connect_and_no_second_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "log.sock"
    async with serving(path):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        assert [path] == list(tmp_path.iterdir())
        assert await is_served(path)


async def test_successor_takes_the_path_over_and_keeps_it_when_the_first_goes(tmp_path: Path) -> None:
    path = tmp_path / "log.sock"
    async with serving(path) as first:
        async with serving(path) as second:
            first.remove()
            assert await is_served(path)
            second.remove()
            assert not path.exists()
            second.remove()


async def test_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log.sock"
    async with serving(path):
        pass
    async with serving(path):
        assert await is_served(path)


async def test_too_long_path_is_refused_with_its_length(tmp_path: Path) -> None:
    path = tmp_path / ("x" * MAX_PATH_BYTES)
    with pytest.raises(OSError, match=f"a socket's path may have {MAX_PATH_BYTES}"):
        listen_on(grpc.aio.server(), path)


async def test_file_that_is_no_socket_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "log.sock"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="is no socket"):
        listen_on(grpc.aio.server(), path)
    assert path.read_text() == "precious"


async def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="create it"):
        listen_on(grpc.aio.server(), tmp_path / "missing" / "log.sock")


async def test_idle_connection_that_pings_often_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.sock"
    async with serving(path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS)
        for _ in range(20):
            writer.write(PING)
            assert await asyncio.wait_for(next_of(reader, PING_TYPE, GOAWAY_TYPE), DEADLINE_S) == PING_TYPE
        writer.close()


async def next_of(reader: asyncio.StreamReader, *types: int) -> int:
    """Return the type of the next HTTP/2 frame that is of one of the types."""
    while True:
        head = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] in types:
            return head[3]
