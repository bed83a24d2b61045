"""What a simulated server got lately, for GET /_seen: the last 1,000 requests, big bodies cut.

Rendering is left to the reader's request, so that recording costs a request one tuple. Drops the oldest, silently: the
number of requests kept is part of its contract.
"""

from __future__ import annotations

import base64
import codecs
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

MAX_REQUESTS = 1_000
MAX_BODY_BYTES = 65_536
"""1,000 cut bodies are at most 64 MB."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request as it came in. `body` is at most MAX_BODY_BYTES of `body_bytes`."""

    method: str
    path: str
    raw_headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    body_bytes: int


class Record:
    """The requests got lately, oldest first."""

    def __init__(self) -> None:
        self._requests: deque[SeenRequest] = deque(maxlen=MAX_REQUESTS)

    def add(self, request: SeenRequest) -> None:
        """Keep `request`; the oldest goes when 1,000 are kept."""
        self._requests.append(request)

    def clear(self) -> None:
        """Forget all."""
        self._requests.clear()

    def rendered(self) -> dict[str, object]:
        """What GET /_seen answers."""
        return {"requests": [rendered_request(request) for request in self._requests]}


def rendered_request(request: SeenRequest) -> dict[str, object]:
    """One request as JSON: `body` where it is UTF-8, else `bodyBase64`; `bodyBytes` where it was cut."""
    is_cut = request.body_bytes > len(request.body)
    answer: dict[str, object] = {
        "method": request.method,
        "path": request.path,
        "headers": joined_headers(request.raw_headers),
    }
    try:
        # A cut may split a character: not final means that its first bytes are left out instead of refused.
        answer["body"] = codecs.getincrementaldecoder("utf-8")().decode(request.body, not is_cut)
    except UnicodeDecodeError:
        answer["bodyBase64"] = base64.b64encode(request.body).decode("ascii")
    if is_cut:
        answer["bodyBytes"] = request.body_bytes
    return answer


def joined_headers(raw_headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by lower-case name; the values of a repeated one joined by ", "."""
    joined: dict[str, str] = {}
    for raw_name, raw_value in raw_headers:
        name, value = raw_name.decode("latin-1").lower(), _text(raw_value)
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")
