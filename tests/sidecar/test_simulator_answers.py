"""Answer bodies and streams, without a server."""

from __future__ import annotations

import base64
import json
import struct

import pytest
from pointsman.sidecar.simulator_answers import DONE, Stamp, answer_body, answer_events, words
from pointsman.sidecar.simulator_asks import Ask, Kind, count_tokens

STAMP = Stamp("abc", 1_700_000_000, cached_tokens=2)


def _documents(ask: Ask) -> list[dict[str, object]]:
    events = [event.data for event in answer_events(ask, STAMP)]
    assert events[-1] == DONE
    assert all(data.startswith(b"data: ") and data.endswith(b"\n\n") for data in events)
    return [json.loads(data[6:]) for data in events[:-1]]


def _ask(kind: Kind = Kind.CHAT, *, choices: int = 1, includes_usage: bool = False) -> Ask:
    return Ask(
        kind, "m", 5, "p", choices=choices, output_tokens=20, includes_usage=includes_usage, finish_reason="stop"
    )


def test_words_obey_the_token_rule() -> None:
    assert [count_tokens(["".join(words(count))]) for count in (0, 1, 40)] == [0, 1, 40]


def test_usage_adds_up_over_choices() -> None:
    document = json.loads(answer_body(_ask(choices=3), STAMP))
    assert document["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 60,
        "total_tokens": 65,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETION])
@pytest.mark.parametrize("choices", [1, 2])
def test_stream_says_what_the_whole_answer_says(kind: Kind, choices: int) -> None:
    ask = _ask(kind, choices=choices)
    whole = json.loads(answer_body(ask, STAMP))
    texts = [""] * choices
    finished = []
    for document in _documents(ask):
        assert (whole["id"], "m") == (document["id"], document["model"])
        for choice in document["choices"]:  # type: ignore[attr-defined]
            texts[choice["index"]] += choice["delta"].get("content", "") if kind is Kind.CHAT else choice["text"]
            finished += [choice["finish_reason"]] if choice["finish_reason"] else []
    said = [c["message"]["content"] if kind is Kind.CHAT else c["text"] for c in whole["choices"]]
    assert (said, ["stop"] * choices) == (texts, finished)


def test_usage_comes_last_without_choices_and_only_when_asked_for() -> None:
    assert not any("usage" in document for document in _documents(_ask()))
    *others, last = _documents(_ask(includes_usage=True))
    assert all(document["usage"] is None for document in others)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 25)  # type: ignore[index]


def test_only_tokens_are_paced() -> None:
    assert sum(event.carries_token for event in answer_events(_ask(), STAMP)) == 20


def test_embeddings_depend_on_the_text_alone_in_both_encodings() -> None:
    ask = Ask(Kind.EMBEDDING, "m", 2, "", inputs=("a", "b", "a"), dimensions=4)
    plain = [one["embedding"] for one in json.loads(answer_body(ask, STAMP))["data"]]
    assert (plain[0] == plain[2], plain[0] == plain[1]) == (True, False)
    packed_ask = Ask(Kind.EMBEDDING, "m", 2, "", inputs=("a",), dimensions=4, is_base64=True)
    packed = json.loads(answer_body(packed_ask, STAMP))["data"][0]["embedding"]
    assert struct.unpack("<4f", base64.b64decode(packed)) == pytest.approx(plain[0])
    assert sum(value**2 for value in plain[0]) == pytest.approx(1)
