"""The requests of a chaos run, drawn from its seed: what is sent, and what its sender does besides.

Decides kinds and their shares. The server is told by `x-chaos-answer` what to answer, so that the client knows every
byte that has to come. Pure; performed by client.py, judged by ledger.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from random import Random

from pointsman.router.request import Request

CHAT = "/v1/chat/completions"
ID_HEADER = "x-chaos-id"
ANSWER_HEADER = "x-chaos-answer"
KIB, MIB = 1 << 10, 1 << 20


class Kind(Enum):
    """What a request tries."""

    JSON = "json"
    EVENTS = "sse"
    WEBSOCKET = "websocket"
    LARGE_BODY = "large body"
    SLOW_READER = "slow reader"
    DISCONNECT = "disconnect"
    FALLBACK = "ladder"
    BAD = "bad request"
    PROBE = "probe"


SHARES = {
    Kind.JSON: 48,
    Kind.EVENTS: 14,
    Kind.WEBSOCKET: 7,
    Kind.LARGE_BODY: 5,
    Kind.SLOW_READER: 3,
    Kind.DISCONNECT: 8,
    Kind.FALLBACK: 7,
    Kind.BAD: 8,
}
"""Of a hundred requests. Probes are the script's own."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `pad_bytes` of filling lie between the body's `opening` and `ending`.

    `leave_after_s`: the client goes away so long after its first byte; `leaves_half_sent`: with half of the body sent.
    """

    id: str
    kind: Kind
    method: str = "POST"
    path: str = CHAT
    headers: tuple[tuple[str, str], ...] = ()
    opening: bytes = b""
    pad_bytes: int = 0
    ending: bytes = b""
    answer: str = "json"
    on_new_connection: bool = True
    leave_after_s: float | None = None
    leaves_half_sent: bool = False
    messages: int = 0

    def body(self) -> bytes:
        """Return the whole body."""
        return self.opening + b"x" * self.pad_bytes + self.ending

    def as_table_sees_it(self) -> Request:
        """Return what `decide` judges: the filling makes no difference below the limits that it knows."""
        return Request(self.method, self.path, self.headers, self.opening + self.ending if self.opening else None)


class Draw:
    """The series of requests of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"requests {seed}")
        self._seed = seed
        self._count = 0

    def next(self) -> Ask:
        """Return the next request."""
        draw = self._random
        kind = draw.choices(list(SHARES), weights=list(SHARES.values()))[0]
        maker = {
            Kind.JSON: self._json,
            Kind.EVENTS: self._events,
            Kind.WEBSOCKET: self._websocket,
            Kind.LARGE_BODY: self._large_body,
            Kind.SLOW_READER: self._slow_reader,
            Kind.DISCONNECT: self._disconnect,
            Kind.FALLBACK: self._fallback,
            Kind.BAD: self._bad,
        }[kind]
        return maker()

    def probe(self) -> Ask:
        """Return a plain request on a connection of its own."""
        return self._chat(Kind.PROBE, "json")

    def _id(self) -> str:
        self._count += 1
        return f"{self._seed}-{self._count}"

    def _chat(self, kind: Kind, answer: str, *, leave_after_s: float | None = None) -> Ask:
        headers: list[tuple[str, str]] = [("content-type", "application/json")]
        draw = self._random
        if draw.random() < 0.5:
            headers.append(("x-context-id", f"session-{draw.randrange(50)}"))
        if draw.random() < 0.2:
            headers.append(("x-qos-class", draw.choice(("interactive", "batch", "nobody-knows"))))
        if draw.random() < 0.15:
            headers.append(("model-version", draw.choice(("v2.2", "v2.3-beta", "v3"))))
        if draw.random() < 0.1:
            headers.append(("x-lane", "small"))
        return Ask(
            self._id(), kind, headers=tuple(headers), opening=b'{"model":"support-chat","messages":["',
            pad_bytes=draw.randrange(2 * KIB), ending=b'"]}', answer=answer,
            on_new_connection=kind is Kind.PROBE or draw.random() < 0.4, leave_after_s=leave_after_s,
        )  # fmt: skip

    def _json(self) -> Ask:
        return self._chat(Kind.JSON, "json")

    def _events(self) -> Ask:
        return self._chat(Kind.EVENTS, f"events {self._random.randint(2, 40)} {self._random.choice((0, 5, 50, 150))}")

    def _slow_reader(self) -> Ask:
        return self._chat(Kind.SLOW_READER, f"bytes {self._random.randint(1, 3) * MIB}")

    def _websocket(self) -> Ask:
        return Ask(self._id(), Kind.WEBSOCKET, "GET", "/v1/realtime", messages=self._random.randint(1, 30))

    def _large_body(self) -> Ask:
        draw = self._random
        path, kind = draw.choice(((CHAT, "application/json"), ("/store/file", "application/octet-stream")))
        # JSON stays below what is inspected, and now and then a body is above what is taken at all.
        size = draw.choice((300 * KIB, MIB, MIB + 700_001)) if path == CHAT else draw.choice((3, 7, 7, 9)) * MIB
        opening, ending = (b'{"model":"support-chat","x":"', b'"}') if path == CHAT else (b"FILE", b"END")
        return Ask(
            self._id(), Kind.LARGE_BODY, path=path, headers=(("content-type", kind),), opening=opening,
            pad_bytes=size, ending=ending, on_new_connection=draw.random() < 0.5,
        )  # fmt: skip

    def _disconnect(self) -> Ask:
        draw = self._random
        leave_after_s = draw.choice((0.0, draw.random() * 0.3))
        if draw.random() < 0.3:
            return Ask(
                self._id(), Kind.DISCONNECT, path="/store/file", opening=b"FILE", pad_bytes=256 * KIB, ending=b"END",
                headers=(("content-type", "application/octet-stream"),), leaves_half_sent=True,
                leave_after_s=leave_after_s,
            )  # fmt: skip
        return self._chat(Kind.DISCONNECT, "events 40 25", leave_after_s=leave_after_s)

    def _fallback(self) -> Ask:
        model = self._random.choice((b"busy-chat", b"dead-chat"))
        return Ask(
            self._id(), Kind.FALLBACK, headers=(("content-type", "application/json"),),
            opening=b'{"model":"' + model + b'"', ending=b"}", on_new_connection=False,
        )  # fmt: skip

    def _bad(self) -> Ask:
        json_type = ("content-type", "application/json")
        headers, path, body = self._random.choice(
            (
                ((json_type,), CHAT, b'{"model":"nobody"}'),
                ((json_type,), CHAT, b'{"model":'),
                ((json_type,), CHAT, b"[]"),
                ((json_type, ("model-version", "v2.2"), ("model-version", "v9")), CHAT, b'{"model":"support-chat"}'),
                ((json_type, ("model-version", "v9")), CHAT, b'{"model":"support-chat"}'),
                ((("content-type", "text/plain"),), CHAT, b'{"model":"support-chat"}'),
                ((json_type, ("x-session-ttl", "soon")), CHAT, b'{"model":"support-chat"}'),
                ((json_type,), "/nowhere", b"{}"),
            )
        )
        return Ask(self._id(), Kind.BAD, path=path, headers=headers, opening=body, on_new_connection=False)


def filling(ask_id: str, size_bytes: int) -> bytes:
    """Return the bytes of an answer `bytes N` to this request: no two requests have the same."""
    block = hashlib.sha256(ask_id.encode()).hexdigest().encode()
    return (block * (size_bytes // len(block) + 1))[:size_bytes]


def events(ask_id: str, count: int, server: str) -> list[bytes]:
    """Return the events of an answer `events COUNT GAP_MS`."""
    rows = [f'data: {{"id":"{ask_id}","server":"{server}","n":{number}}}\n\n'.encode() for number in range(count)]
    return [*rows, b"data: [DONE]\n\n"]
