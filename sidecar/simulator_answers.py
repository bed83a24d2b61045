"""The bytes that a simulated model server answers with, in the shapes of OpenAI's API.

Decides nothing about timing: a stream is a series of events, and those that carry a token say so. An answer never
repeats a word of the prompt, so a leak found elsewhere was not made here. Pure; called by the simulator's shell.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pointsman.sidecar.simulator_asks import Ask, Kind

WORDS = (
    *("This", "answer", "comes", "from", "a", "simulated", "model", "and"),
    *("says", "the", "same", "thing", "to", "everyone", "who", "asks."),
)
"""Said over and over until the answer is long enough."""

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells one answer from another: `id` without its prefix, the time, and how much of the prompt was cached."""

    id: str
    created_unix_s: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. `carries_token` events are paced; the others go out with what precedes them."""

    data: bytes
    carries_token: bool = False


def error_body(message: str, *, status: int, code: str | None = None, param: str | None = None) -> bytes:
    """An error in OpenAI's shape."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return _json({"error": {"message": message, "type": kind, "param": param, "code": code}})


def models_body(accepts: Sequence[str], *, created_unix_s: int) -> bytes:
    """What GET /v1/models answers: every name that is accepted."""
    return _json({"object": "list", "data": [_model(name, created_unix_s) for name in accepts]})


def model_body(name: str, *, created_unix_s: int) -> bytes:
    """What GET /v1/models/NAME answers."""
    return _json(_model(name, created_unix_s))


def answer_body(ask: Ask, stamp: Stamp) -> bytes:
    """A whole answer to `ask`, not streamed."""
    if ask.kind is Kind.EMBEDDING:
        return _embedding_body(ask)
    text = "".join(words(ask.output_tokens))
    choices = [_whole_choice(ask, index, text) for index in range(ask.choices)]
    return _json({**_head(ask, stamp, is_chunk=False), "choices": choices, "usage": usage(ask, stamp)})


def answer_events(ask: Ask, stamp: Stamp) -> Iterator[Event]:
    """A streamed answer to `ask`: tokens, how each choice ended, the usage if asked for, and the end mark."""
    head = json.dumps(_head(ask, stamp, is_chunk=True), separators=(",", ":"))[:-1]
    # Clients that ask for usage get it in the last chunk and null in the others.
    tail = b',"usage":null}\n\n' if ask.includes_usage else b"}\n\n"
    if ask.kind is Kind.CHAT:
        for index in range(ask.choices):
            yield Event(_chunk(head, {"index": index, "delta": {"role": "assistant", "content": ""}}, tail))
    # Only the words differ between a choice's chunks: the rest is encoded once.
    frames = [_token_frame(ask, head, index) for index in range(ask.choices)]
    for word in words(ask.output_tokens):
        raw = word.encode("ascii")
        for before, after in frames:
            yield Event(before + raw + after + tail, carries_token=True)
    for index in range(ask.choices):
        ended: dict[str, object] = {"delta": {}} if ask.kind is Kind.CHAT else {"text": ""}
        yield Event(_chunk(head, {"index": index, **ended, "finish_reason": ask.finish_reason}, tail))
    if ask.includes_usage:
        data = head + ',"choices":[],"usage":' + json.dumps(usage(ask, stamp), separators=(",", ":"))
        yield Event(b"data: " + data.encode() + b"}\n\n")
    yield Event(DONE)


def usage(ask: Ask, stamp: Stamp) -> dict[str, object]:
    """The tokens of `ask` and of its answer, by the rule of simulator_asks."""
    counts: dict[str, object] = {
        "prompt_tokens": ask.prompt_tokens,
        "total_tokens": ask.prompt_tokens + generated_tokens(ask),
    }
    if ask.kind is not Kind.EMBEDDING:
        counts["completion_tokens"] = generated_tokens(ask)
        counts["prompt_tokens_details"] = {"cached_tokens": stamp.cached_tokens}
    return counts


def generated_tokens(ask: Ask) -> int:
    """How many tokens the answer to `ask` has, all choices together."""
    return ask.output_tokens * ask.choices


def words(count: int) -> Iterator[str]:
    """`count` words, each but the first with the space before it: their sum has `count` tokens."""
    for index in range(count):
        word = WORDS[index % len(WORDS)]
        yield f" {word}" if index else word


def _model(name: str, created_unix_s: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created_unix_s, "owned_by": "pointsman-simulate"}


def _head(ask: Ask, stamp: Stamp, *, is_chunk: bool) -> dict[str, object]:
    if ask.kind is Kind.CHAT:
        prefix, name = "chatcmpl", "chat.completion.chunk" if is_chunk else "chat.completion"
    else:
        prefix, name = "cmpl", "text_completion"
    return {"id": f"{prefix}-{stamp.id}", "object": name, "created": stamp.created_unix_s, "model": ask.model}


def _whole_choice(ask: Ask, index: int, text: str) -> dict[str, object]:
    said: dict[str, object] = {"text": text}
    if ask.kind is Kind.CHAT:
        said = {"message": {"role": "assistant", "content": text, "refusal": None}}
    return {"index": index, **said, "logprobs": None, "finish_reason": ask.finish_reason}


def _chunk(head: str, choice: dict[str, object], tail: bytes) -> bytes:
    whole = {"logprobs": None, "finish_reason": None, **choice}
    return f'data: {head},"choices":[{json.dumps(whole, separators=(",", ":"))}]'.encode() + tail


def _token_frame(ask: Ask, head: str, index: int) -> tuple[bytes, bytes]:
    opening = '"delta":{"content":"' if ask.kind is Kind.CHAT else '"text":"'
    closing = '"}' if ask.kind is Kind.CHAT else '"'
    before = f'data: {head},"choices":[{{"index":{index},{opening}'
    return before.encode(), f'{closing},"logprobs":null,"finish_reason":null}}]'.encode()


def _embedding_body(ask: Ask) -> bytes:
    data = []
    for index, text in enumerate(ask.inputs):
        vector = _vector(text, ask.dimensions)
        embedding: object = list(vector)
        if ask.is_base64:
            embedding = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    return _json({"object": "list", "data": data, "model": ask.model, "usage": usage(ask, Stamp("", 0))})


def _vector(text: str, dimensions: int) -> tuple[float, ...]:
    """A vector of length 1 that depends on the text alone."""
    raw = hashlib.shake_128(text.encode("utf-8", "surrogatepass")).digest(dimensions)
    values = [byte - 127.5 for byte in raw]
    length = sum(value * value for value in values) ** 0.5
    return tuple(value / length for value in values)


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
