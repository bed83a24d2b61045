"""Performs the requests of a chaos run and says what came of each: values for the ledger, no judgement.

Decides how connections are kept and when a client that is to leave does so. Never asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections import deque
from dataclasses import dataclass, field

import aiohttp
from ask import ANSWER_HEADER, ID_HEADER, Ask, Kind, events, filling
from connection import Connection, Head

DEADLINE_S = 60.0
"""Longer than any request of the load takes on a busy machine."""

_SLOW_PAUSE_S = 0.02
_MAX_KEPT = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client saw. `error` is how the connection failed, `wrong` what was not as the server sends it."""

    ask: Ask
    started_s: float
    ended_s: float
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    served_by: str | None = None
    is_whole: bool = False
    has_left: bool = False
    is_refusal_shaped: bool = False
    wrong: str = ""
    error: str = ""


@dataclass(slots=True)
class _Progress:
    """What is known so far; a failure leaves it as it is."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    served_by: str | None = None
    is_whole: bool = False
    is_refusal_shaped: bool = False
    wrong: str = ""
    answer_bytes: int = 0


class Client:
    """All clients of a run: a pool of kept connections, and new ones where a request wants that."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._kept: deque[Connection] = deque()
        self._websockets = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))

    async def close(self) -> None:
        """Close what is kept."""
        while self._kept:
            self._kept.popleft().close()
        await self._websockets.close()

    async def ask(self, ask: Ask) -> Outcome:
        """Perform one request; never raises for what happens on the wire."""
        started_s, seen, error, has_left = time.monotonic(), _Progress(), "", False
        try:
            async with asyncio.timeout(DEADLINE_S):
                if ask.kind is Kind.WEBSOCKET:
                    await self._talk(ask, seen)
                else:
                    has_left = await self._exchange(ask, seen)
        except TimeoutError:
            error = f"no end within {DEADLINE_S:.0f} s"
        except (OSError, aiohttp.ClientError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        return Outcome(
            ask, started_s, time.monotonic(), seen.status, seen.headers, seen.served_by, seen.is_whole, has_left,
            seen.is_refusal_shaped, seen.wrong, error,
        )  # fmt: skip

    async def _exchange(self, ask: Ask, seen: _Progress) -> bool:
        """Send and read; tell whether the client left before the answer's end, as it was to."""
        connection = await self._connection(ask)
        try:
            if ask.leave_after_s is None:
                await self._send_and_read(connection, ask, seen)
                return False
            try:
                async with asyncio.timeout(ask.leave_after_s):
                    await self._send_and_read(connection, ask, seen)
                    await asyncio.Event().wait() if ask.leaves_half_sent else None
            except TimeoutError:
                return True
            return False
        finally:
            if connection.is_reusable and seen.is_whole and len(self._kept) < _MAX_KEPT:
                self._kept.append(connection)
            else:
                connection.close(with_reset=ask.id.endswith(("1", "3", "5")))

    async def _connection(self, ask: Ask) -> Connection:
        while self._kept and not ask.on_new_connection:
            connection = self._kept.popleft()
            if connection.is_reusable:
                return connection
            connection.close()
        return await Connection.open(self._port, is_slow=ask.kind is Kind.SLOW_READER)

    async def _send_and_read(self, connection: Connection, ask: Ask, seen: _Progress) -> None:
        body = ask.body()
        lines = [f"{ask.method} {ask.path} HTTP/1.1", "host: chaos", f"{ID_HEADER}: {ask.id}"]
        lines += [f"{ANSWER_HEADER}: {ask.answer}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in ask.headers]
        head = "\r\n".join([*lines, "", ""]).encode()
        if ask.leaves_half_sent:
            await connection.send(head + body[: len(body) // 2])
            return
        answer = await connection.exchange(head + body)
        seen.status, seen.headers = answer.status, answer.headers
        seen.served_by = answer.headers.get("x-served-by")
        if answer.status == 200 and seen.served_by and ask.answer != "json":
            await self._read_stream(connection, ask, answer, seen)
        else:
            content = b"".join([piece async for piece in connection.body(answer)])
            seen.wrong = _judge_json(ask, body, seen, content)
        seen.is_whole = True

    async def _read_stream(self, connection: Connection, ask: Ask, answer: Head, seen: _Progress) -> None:
        what, first, *_ = ask.answer.split()
        if what == "bytes":
            expected = filling(ask.id, int(first))
        else:
            expected = b"".join(events(ask.id, int(first), seen.served_by or ""))
        got = hashlib.sha256()
        async for piece in connection.body(answer):
            seen.answer_bytes += len(piece)
            got.update(piece)
            if ask.kind is Kind.SLOW_READER:
                await asyncio.sleep(_SLOW_PAUSE_S)
        if got.digest() != hashlib.sha256(expected).digest():
            seen.wrong = f"{seen.answer_bytes} bytes that are not the {len(expected)} that its server sent"

    async def _talk(self, ask: Ask, seen: _Progress) -> None:
        url = f"ws://127.0.0.1:{self._port}{ask.path}"
        try:
            async with self._websockets.ws_connect(url, headers={ID_HEADER: ask.id}, timeout=_CLOSE) as talk:
                seen.status = 101
                for number in range(ask.messages):
                    text = f"{ask.id}-{number}"
                    await talk.send_str(text)
                    message = await talk.receive()
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        raise ConnectionError(f"the talk ended: {message.type.name}")
                    seen.served_by, _, said = message.data.partition("|")
                    if said != text:
                        seen.wrong = f"another message than the one sent ({number})"
                    await asyncio.sleep(0.02)
                seen.is_whole = True
        except aiohttp.WSServerHandshakeError as refused:
            seen.status, seen.is_whole = refused.status, True


_CLOSE = aiohttp.ClientWSTimeout(ws_close=5.0)


def _judge_json(ask: Ask, body: bytes, seen: _Progress, content: bytes) -> str:
    """Return what is wrong with a JSON answer; empty for nothing."""
    document = None
    with contextlib.suppress(ValueError):
        document = json.loads(content)
    if not isinstance(document, dict):
        return f"status {seen.status} with a body of {len(content)} bytes that is no JSON object"
    if seen.served_by is None or seen.status != 200:
        error = document.get("error")
        shape = {"message", "type", "param", "code"}
        seen.is_refusal_shaped = isinstance(error, dict) and shape <= error.keys()
        return ""
    expected = {"id": ask.id, "server": seen.served_by, "sha256": hashlib.sha256(body).hexdigest()}
    return "" if document == expected else "an answer to another request, or to another body"
