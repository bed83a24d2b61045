"""What a body asks for, and what is refused."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest
from pointsman.sidecar.simulator_asks import Ask, AskRefused, Kind, read_ask, unpacked


def _ask(document: object, kind: Kind = Kind.CHAT) -> Ask:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_ask(kind, body, own_model="support-chat", accepts=("support-chat", "small-chat"))


@pytest.mark.parametrize(
    ("document", "model"),
    [
        ({}, "support-chat"),
        ({"model": None}, "support-chat"),
        ({"model": "auto"}, "support-chat"),
        ({"model": "small-chat"}, "small-chat"),
    ],
)
def test_missing_model_or_auto_is_the_targets(document: object, model: str) -> None:
    assert model == _ask(document).model


@pytest.mark.parametrize(
    ("document", "status", "code", "param"),
    [
        (b"", 400, None, None),
        (b"{", 400, None, None),
        (b"\xff\xfe", 400, None, None),
        (b"[" * 100_000, 400, None, None),
        ([], 400, None, None),
        ("x", 400, None, None),
        ({"model": 3}, 400, None, "model"),
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"messages": "hi"}, 400, None, "messages"),
        ({"messages": ["hi"]}, 400, None, "messages"),
        ({"messages": [{"content": 5}]}, 400, None, "messages"),
        ({"stream": "yes"}, 400, None, "stream"),
        ({"stream_options": 1}, 400, None, "stream_options"),
        ({"max_tokens": 0}, 400, None, "max_tokens"),
        ({"max_tokens": 1.5}, 400, None, "max_tokens"),
        ({"n": True}, 400, None, "n"),
    ],
)
def test_refusals_are_in_the_apis_terms(document: object, status: int, code: str | None, param: str | None) -> None:
    with pytest.raises(AskRefused) as refused:
        _ask(document)
    assert (status, code, param) == (refused.value.status, refused.value.code, refused.value.param)


def test_numbers_that_only_a_server_can_judge_pass() -> None:
    body = b'{"model": "support-chat", "temperature": 1e400, "seed": 9007199254740993, "x": "\\ud800", "unknown": {}}'
    assert _ask(body).model == "support-chat"


def test_tokens_are_words_of_every_text_part() -> None:
    parts = [{"type": "text", "text": "two words"}, {"type": "image_url", "image_url": {"url": "data:a b c"}}]
    messages = [
        {"role": "system", "content": "You  are\nhelpful"},
        {"role": "user", "content": parts},
        {"content": None},
    ]
    assert _ask({"messages": messages}).prompt_tokens == 5


@pytest.mark.parametrize(
    ("prompt", "tokens", "choices"),
    [("a b", 2, 1), (["a b", "c"], 3, 2), ([1, 2, 3], 3, 1), ([[1, 2], [3]], 3, 2), (None, 0, 1)],
)
def test_every_form_of_prompt_is_counted(prompt: object, tokens: int, choices: int) -> None:
    ask = _ask({"prompt": prompt}, Kind.COMPLETION)
    assert (tokens, choices) == (ask.prompt_tokens, ask.choices)


@pytest.mark.parametrize(
    ("document", "length"),
    [
        ({}, (16, "stop")),
        ({"max_tokens": 3}, (3, "length")),
        ({"max_tokens": 16}, (16, "stop")),
        ({"max_tokens": 500}, (16, "stop")),
        ({"max_completion_tokens": 2, "max_tokens": 9}, (2, "length")),
        ({"max_tokens": 500, "ignore_eos": True}, (500, "length")),
        ({"ignore_eos": True}, (16, "length")),
        ({"min_tokens": 40}, (40, "stop")),
    ],
)
def test_length_follows_limits(document: object, length: tuple[int, str]) -> None:
    ask = _ask(document)
    assert length == (ask.output_tokens, ask.finish_reason)


def test_prefix_is_the_first_256_characters_of_the_messages() -> None:
    def prefix(*texts: str) -> str:
        return _ask({"messages": [{"role": "user", "content": text} for text in texts]}).prefix

    assert prefix("a" * 256, "x") == prefix("a" * 256 + "b", "y")
    assert prefix("a" * 255) != prefix("a" * 256)
    assert prefix("ab", "c") != prefix("a", "bc")


def test_embedding_options_are_read() -> None:
    ask = _ask({"input": ["a b", "c"], "dimensions": 4, "encoding_format": "base64"}, Kind.EMBEDDING)
    assert (ask.inputs, ask.prompt_tokens, ask.dimensions, ask.is_base64) == (("a b", "c"), 3, 4, True)


def test_known_encodings_are_unpacked() -> None:
    plain = b'{"a": 1}'
    packed = ((gzip.compress(plain), "gzip"), (zlib.compress(plain), "Deflate"), (plain, None), (plain, "identity"))
    assert [plain] * 4 == [unpacked(body, encoding) for body, encoding in packed]


@pytest.mark.parametrize(("encoding", "status"), [("zstd", 415), ("gzip", 400)])
def test_other_encodings_are_refused(encoding: str, status: int) -> None:
    with pytest.raises(AskRefused) as refused:
        unpacked(b"not packed", encoding)
    assert status == refused.value.status
