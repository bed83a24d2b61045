"""A request to be explained, from what a person or a query string says of it. For `explain` and the admin page."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pointsman.router.request import Request, on_the_wire

BODYLESS_METHODS = ("GET", "HEAD")


class QuestionRefused(ValueError):
    """The question cannot be understood; the text names the part, what was found and what is expected."""


def ask(
    *, method: str = "POST", path: str, headers: Iterable[str] = (), model: str | None = None, body: bytes | None = None
) -> Request:
    """Return the request. Without a body it is an empty object, or names the model; JSON unless a header says else."""
    if not path.startswith("/"):
        raise QuestionRefused(f"path: found {path[:80]!r}, expected one that begins with /")
    if model is not None and body is not None:
        raise QuestionRefused("model and body: found both, expected one; the body's own model counts")
    lines = [_header(text) for text in headers]
    if body is None and method.upper() not in BODYLESS_METHODS:
        body = json.dumps({} if model is None else {"model": model}).encode()
    if body is not None and not any(name == "content-type" for name, _ in lines):
        lines.append(("content-type", "application/json"))
    return Request(method.upper(), path, tuple(lines), body)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise QuestionRefused(f"header: found {text[:80]!r}, expected NAME:VALUE")
    return name.strip().lower(), on_the_wire(value.strip())
