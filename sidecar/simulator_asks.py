"""What a request asks of a simulated model server: the model, how long an answer, streamed or not.

Decides by a JSON body alone and counts tokens by one rule: a token is a word between white space (an id in a list of
ids). Refuses what the real servers refuse in common (broken JSON, a top level that is no object, a model that is not
served, wrong types of the parameters read here) and is lenient elsewhere: unknown parameters, and prompts left out.
Pure; called by the simulator's shell.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from pointsman.sidecar.simulator_prefixes import PREFIX_CHARS

DEFAULT_OUTPUT_TOKENS = 16
"""The length of an answer that no limit cuts and nothing prolongs."""

MAX_OUTPUT_TOKENS = 131_072
"""A context window's worth; longer answers are cut to it."""

MAX_BODY_BYTES = 256 * 1024 * 1024
"""Bounds a JSON body, unpacked too; more than any prompt."""

MAX_CHOICES = 16
DEFAULT_DIMENSIONS = 16
MAX_DIMENSIONS = 8_192


class Kind(Enum):
    """The API calls that are answered like a model's."""

    CHAT = "/v1/chat/completions"
    COMPLETION = "/v1/completions"
    EMBEDDING = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class Ask:
    """One call, understood. `prefix` is what the prefix cache looks at; `inputs` holds the words of each embedding."""

    kind: Kind
    model: str
    prompt_tokens: int
    prefix: str
    is_streaming: bool = False
    includes_usage: bool = False
    choices: int = 1
    output_tokens: int = 0
    finish_reason: str = "stop"
    inputs: tuple[str, ...] = ()
    dimensions: int = DEFAULT_DIMENSIONS
    is_base64: bool = False


class AskRefused(ValueError):
    """The caller's fault, in the API's own terms."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


def read_ask(kind: Kind, body: bytes, *, own_model: str, accepts: Sequence[str]) -> Ask:
    """What `body` asks for; raises AskRefused. A model left out, null or `auto` is `own_model`."""
    document = _read_object(body)
    model = read_model(document.get("model"), own_model=own_model, accepts=accepts)
    if kind is Kind.EMBEDDING:
        return _read_embedding(document, model)
    param = "messages" if kind is Kind.CHAT else "prompt"
    texts = tuple(_message_texts(document) if kind is Kind.CHAT else _prompt_texts(document.get(param), param))
    prompts = max(1, len(texts)) if kind is Kind.COMPLETION else 1
    output_tokens, finish_reason = _read_length(document)
    return Ask(
        kind=kind,
        model=model,
        prompt_tokens=count_tokens(texts),
        prefix=_prefix(texts),
        is_streaming=_read_flag(document, "stream"),
        includes_usage=_reads_usage(document),
        choices=prompts * (_read_count(document, "n", MAX_CHOICES) or 1),
        output_tokens=output_tokens,
        finish_reason=finish_reason,
    )


def read_model(model: object, *, own_model: str, accepts: Sequence[str]) -> str:
    """The name that is answered to; raises AskRefused for a name that is not served here."""
    if model is None or model == "auto":
        return own_model
    if not isinstance(model, str):
        raise AskRefused(400, "model: expected a text", param="model")
    if model not in accepts:
        message = f"The model `{model[:256]}` does not exist. Served here: {', '.join(accepts)}"
        raise AskRefused(404, message, code="model_not_found", param="model")
    return model


def count_tokens(texts: Sequence[str]) -> int:
    """Tokens by the rule: words between white space."""
    return sum(len(text.split()) for text in texts)


def unpacked(body: bytes, encoding: str | None) -> bytes:
    """`body` without its content encoding; raises AskRefused for a broken, an unknown or an endless one."""
    if encoding is None or encoding.strip().lower() in ("", "identity"):
        return body
    window_bits = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}.get(encoding.strip().lower())
    if window_bits is None:
        raise AskRefused(415, "content-encoding: expected identity, gzip or deflate")
    unpacker = zlib.decompressobj(window_bits)
    try:
        plain = unpacker.decompress(body, MAX_BODY_BYTES)
    except zlib.error as error:
        raise AskRefused(400, "body: broken content encoding") from error
    if unpacker.unconsumed_tail:
        raise AskRefused(413, f"body: over {MAX_BODY_BYTES} bytes unpacked")
    return plain


def _read_object(body: bytes) -> dict[str, object]:
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        where = f" at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise AskRefused(400, f"body: expected JSON, found something that does not parse{where}") from error
    if not isinstance(document, dict):
        raise AskRefused(400, "body: expected a JSON object at the top level")
    return document


def _read_flag(document: dict[str, object], param: str) -> bool:
    value = document.get(param)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise AskRefused(400, f"{param}: expected true or false", param=param)
    return value


def _read_count(document: dict[str, object], param: str, highest: int) -> int | None:
    value = document.get(param)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise AskRefused(400, f"{param}: expected a whole number from 1", param=param)
    return min(value, highest)


def _reads_usage(document: dict[str, object]) -> bool:
    options = document.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise AskRefused(400, "stream_options: expected an object", param="stream_options")
    return _read_flag(options, "include_usage")


def _read_length(document: dict[str, object]) -> tuple[int, str]:
    """How many tokens the answer has, and why it ends: a limit that cuts it is `length`."""
    limit = _read_count(document, "max_completion_tokens", MAX_OUTPUT_TOKENS)
    limit = limit or _read_count(document, "max_tokens", MAX_OUTPUT_TOKENS)
    wanted = max(DEFAULT_OUTPUT_TOKENS, _read_count(document, "min_tokens", MAX_OUTPUT_TOKENS) or 0)
    if _read_flag(document, "ignore_eos"):
        return limit or wanted, "length"
    if limit is not None and limit < wanted:
        return limit, "length"
    return wanted, "stop"


def _message_texts(document: dict[str, object]) -> Iterator[str]:
    messages = document.get("messages")
    if messages is None:
        return
    if not isinstance(messages, list):
        raise AskRefused(400, "messages: expected a list", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise AskRefused(400, f"messages[{index}]: expected an object", param="messages")
        yield from _content_texts(message.get("content"), index)


def _content_texts(content: object, index: int) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        # Parts that are no text (pictures, sound) count for nothing.
        yield from (part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    elif content is not None:
        raise AskRefused(400, f"messages[{index}].content: expected a text or a list of parts", param="messages")


def _prompt_texts(prompt: object, param: str) -> tuple[str, ...]:
    """A prompt or several, each a text or a list of token ids (rendered as words, so that the rule holds)."""
    if prompt is None:
        return ()
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        if _are_ids(prompt):
            return (" ".join(map(str, prompt)),)
        if all(isinstance(one, str) for one in prompt):
            return tuple(prompt)
        if all(isinstance(one, list) and _are_ids(one) for one in prompt):
            return tuple(" ".join(map(str, one)) for one in prompt)
    raise AskRefused(400, f"{param}: expected a text, texts, token ids or lists of token ids", param=param)


def _are_ids(values: list[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _prefix(texts: Sequence[str]) -> str:
    """The first characters of the prompt; a separator keeps ("ab", "c") and ("a", "bc") apart."""
    parts: list[str] = []
    missing = PREFIX_CHARS
    for text in texts:
        parts.append(text[:missing])
        missing -= len(parts[-1])
        if not missing:
            break
    return "\n".join(parts)


def _read_embedding(document: dict[str, object], model: str) -> Ask:
    inputs = _prompt_texts(document.get("input"), "input")
    encoding = document.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise AskRefused(400, "encoding_format: expected float or base64", param="encoding_format")
    return Ask(
        kind=Kind.EMBEDDING,
        model=model,
        prompt_tokens=count_tokens(inputs),
        prefix=_prefix(inputs),
        inputs=inputs,
        dimensions=_read_count(document, "dimensions", MAX_DIMENSIONS) or DEFAULT_DIMENSIONS,
        is_base64=encoding == "base64",
    )
