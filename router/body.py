"""What a request body says about routing: the model's name, or why it is refused.

The same reading as the scanner inside Envoy (sidecar/scan.c), written with the standard library's parser: used by
`explain`, by simulation and by the differential test that holds the two together. Refuses what design section 4 lists.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pointsman.router.intent import JSON_PATHS, strip_query
from pointsman.router.policy import Limits
from pointsman.router.request import Request

MAX_MODEL_BYTES = 1024
"""A longer model name is refused: no policy can hold it, and it would have to travel as a header."""

MAX_NESTING = 512
"""Deeper JSON is refused: servers' own parsers stop near 1,000, and the scanner's stack is bounded."""

UNNAMEABLE = "?"
"""Stands for a model name with bytes outside printable ASCII: no policy can hold such a name."""

_JSON_TYPE = re.compile(r"application/([a-z0-9.+-]*\+)?json\s*(;.*)?", re.IGNORECASE)
_PRINTABLE = re.compile(r"[!-~]+")
_BODY_METHODS = ("POST", "PUT", "PATCH")


@dataclass(frozen=True, slots=True)
class BodyVerdict:
    """`model` None: absent or not read. `status` 0: not refused; otherwise the answer's status, with its cause."""

    model: str | None = None
    status: int = 0
    cause: str = ""
    was_read: bool = False


_PASSED = BodyVerdict()


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _nesting(text: str) -> int:
    depth = deepest = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest


def read_body(request: Request, limits: Limits) -> BodyVerdict:
    """Return what the body says, or the refusal (400 broken, 413 too large, 415 not JSON on a JSON path)."""
    content_type = (request.joined("content-type") or "").strip()
    upgrades = request.joined("upgrade") is not None or request.method == "CONNECT"
    if upgrades or content_type.lower().startswith("application/grpc"):
        return _PASSED
    on_json_path = strip_query(request.path) in JSON_PATHS
    if not request.body:
        if on_json_path and request.method in _BODY_METHODS:
            return BodyVerdict(status=400, cause="the request body is empty, expected a JSON object")
        return _PASSED
    if len(request.body) > limits.body_bytes:
        return BodyVerdict(status=413, cause=f"the request body is larger than {limits.body_bytes} bytes")
    is_json = bool(_JSON_TYPE.fullmatch(content_type))
    if on_json_path and content_type and not is_json:
        return BodyVerdict(status=415, cause="this path takes content-type application/json")
    encoding = (request.joined("content-encoding") or "identity").strip().lower()
    if encoding != "identity" or not (is_json or on_json_path) or len(request.body) > limits.inspect_body_bytes:
        return _PASSED
    return _read_json(request.body)


def _read_json(body: bytes) -> BodyVerdict:
    broken = BodyVerdict(status=400, cause="the request body is not a JSON object")
    try:
        text = body.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogatepass")
        if _nesting(text) > MAX_NESTING:
            return broken
        parsed = json.loads(text, parse_constant=_refuse_constant, parse_int=float)
    except (ValueError, RecursionError):
        return broken
    if not isinstance(parsed, dict):
        return broken
    if "model" not in parsed:
        return BodyVerdict(was_read=True)
    model = parsed["model"]
    if not isinstance(model, str):
        return BodyVerdict(status=400, cause="the body's model is not a string")
    if len(model.encode("utf-8", "surrogatepass")) > MAX_MODEL_BYTES:
        return BodyVerdict(status=400, cause=f"the body's model is longer than {MAX_MODEL_BYTES} bytes")
    return BodyVerdict(model=model if _PRINTABLE.fullmatch(model) else UNNAMEABLE, was_read=True)
