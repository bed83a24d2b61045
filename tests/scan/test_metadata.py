"""scan_metadata.h against xds/log_entries.py: what the module writes is what the agent reads, whatever a body holds."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pointsman.router.entry import RequestEntry
from pointsman.xds.api import HTTPAccessLogEntry
from pointsman.xds.log_entries import decode_request
from scan_lab import COLUMNS
from scan_pure import Scanner

BODY = (
    b'{"model":"m","temperature":0.20,"top_p":1e0,"top_k":-1,"max_tokens":5,"max_output_tokens":6,'
    b'"seed":9007199254740993,"frequency_penalty":-0.5,"presence_penalty":0,"n":2,'
    b'"stream":false,"reasoning_effort":"low","stop":["a","b"]}'
)
ANSWER = (
    b'{"id":"c 1","model":"m-1","choices":[{"finish_reason":"stop"},{"finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":3},'
    b'"completion_tokens_details":{"reasoning_tokens":4}}}'
)
BODY_SAYS = ["0.20", "1e0", "-1", "6", "-0.5", "0", "9007199254740993", "2", "2", "0", "m", "low"]
ANSWER_SAYS = ["1", "0", "3", "4", "", "m-1", "c 1", "stop,length", ""]
NOTHING = [""] * 9


def read(text: str) -> RequestEntry:
    """Return what the agent makes of the text."""
    logged = HTTPAccessLogEntry()
    logged.common_properties.metadata.filter_metadata["pointsman"].update({"said": text})
    return decode_request(logged)


@pytest.mark.parametrize(
    ("body", "answer", "columns"),
    [
        (BODY, ANSWER, [*BODY_SAYS, *ANSWER_SAYS]),
        (BODY, None, [*BODY_SAYS, *NOTHING]),
        (None, ANSWER, [*[""] * 12, *ANSWER_SAYS]),
        (BODY, b"{}", [*BODY_SAYS, *NOTHING]),
        (b'{"n":1}', None, [*[""] * 7, "1", *[""] * 13]),
        (b'{"stop":[]}', None, [*[""] * 8, "0", *[""] * 12]),
    ],
    ids=["both", "no_answer", "no_request", "answer_says_nothing", "one_number", "zero_is_said"],
)
def test_columns(scanner: Scanner, body: bytes | None, answer: bytes | None, columns: list[str]) -> None:
    assert columns == (scanner.said(body, answer) or "").split("\n")
    assert len(COLUMNS) == len(columns)


@pytest.mark.parametrize(("body", "answer"), [(None, None), (b"{}", None), (None, b"{}"), (b'{"a":1}', b"[]")])
def test_nothing_is_said_of_nothing(scanner: Scanner, body: bytes | None, answer: bytes | None) -> None:
    assert scanner.said(body, answer) is None


def test_agent_reads_every_column(scanner: Scanner) -> None:
    entry = read(scanner.said(BODY, ANSWER, 16_500_000) or "")
    numbers = {"temperature": 0.2, "top_p": 1.0, "top_k": -1.0, "max_tokens": 6.0, "seed": 2.0**53, "n": 2.0}
    penalties = {"frequency_penalty": -0.5, "presence_penalty": 0.0}
    assert numbers | penalties | {"stream": False, "model": "m", "reasoning_effort": "low"} == entry.params
    assert (2, 1, 0) == (entry.stop_sequence_count, entry.input_tokens, entry.output_tokens)
    assert (3, 4, 16.5) == (entry.cached_tokens, entry.reasoning_tokens, entry.first_chunk_ms)
    assert ("m-1", "c 1", ("stop", "length")) == (entry.response_model, entry.response_id, entry.finish_reasons)


def test_end_of_a_stream_is_the_last_column(scanner: Scanner) -> None:
    said = scanner.said(None, b"data: [DONE]\n\n", 7, sse=True)
    assert [*[""] * 16, "7", *[""] * 3, "1"] == (said or "").split("\n")


def test_everything_at_its_longest_fits(scanner: Scanner) -> None:
    number = b"-" + b"9" * 62
    names = (
        "temperature",
        "top_p",
        "top_k",
        "max_completion_tokens",
        "frequency_penalty",
        "presence_penalty",
        "seed",
        "n",
    )
    numbers = b",".join(b'"%b":%b' % (name.encode(), number) for name in names)
    body = b'{%b,"model":"%b","reasoning_effort":"%b","stop":[%b0],"stream":true}'
    body %= numbers, b"m" * 1024, b"e" * 64, b"0," * 99_999
    choices = b",".join([b'{"finish_reason":"%b"}' % (b"f" * 32)] * 8)
    usage = b'"prompt_tokens":%b,"completion_tokens":%b' % (b"9" * 15, b"9" * 15)
    details = b'"prompt_tokens_details":{"cached_tokens":%b},"completion_tokens_details":{"reasoning_tokens":%b}'
    details %= b"9" * 15, b"9" * 15
    answer = b'data: {"id":"%b","model":"%b","choices":[%b],"usage":{%b,%b}}\n\ndata: [DONE]\n\n'
    answer %= b"i" * 128, b"a" * 128, choices, usage, details
    said = scanner.said(body, answer, 2**64 - 1, sse=True)
    assert [
        *[number.decode()] * 8,
        *("100000", "1", "m" * 1024, "e" * 64),
        *["9" * 15] * 4,
        *(str(2**64 - 1), "a" * 128, "i" * 128, ",".join(["f" * 32] * 8), "1"),
    ] == (said or "").split("\n")


hostile = st.text(st.sampled_from("\n\r\x00,;=01azé\u2028\x85 ") | st.sampled_from(string.printable), max_size=40)
values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), hostile)
PRINTABLE = frozenset(map(chr, range(0x21, 0x7F)))


@settings(max_examples=500, deadline=None)
@given(model=hostile, effort=values, answer_id=hostile, answered_by=hostile, reason=hostile, seed=values)
def test_no_text_can_pose_as_a_column(
    scanner: Scanner, model: str, effort: object, answer_id: str, answered_by: str, reason: str, seed: object
) -> None:
    body = {"model": model, "reasoning_effort": effort, "seed": seed, "top_k": 3}
    answer = {
        "id": answer_id,
        "model": answered_by,
        "choices": [{"finish_reason": reason}],
        "usage": {"prompt_tokens": 7},
    }
    said = scanner.said(json.dumps(body).encode(), json.dumps(answer).encode())
    assert said is not None
    assert len(COLUMNS) == len(said.split("\n"))
    entry = read(said)
    expected: dict[str, object] = {"top_k": 3.0}
    if model and set(model) <= PRINTABLE:
        expected["model"] = model
    if isinstance(effort, str) and effort and set(effort) <= PRINTABLE:
        expected["reasoning_effort"] = effort
    if isinstance(seed, int | float) and not isinstance(seed, bool) and len(json.dumps(seed)) <= 63:
        expected["seed"] = float(seed)
    assert expected == entry.params
    label = PRINTABLE | {" "}
    assert (answer_id if set(answer_id) <= label and answer_id else None) == entry.response_id
    assert (answered_by if set(answered_by) <= label and answered_by else None) == entry.response_model
    assert ((reason,) if reason and set(reason) <= set(string.ascii_lowercase + "_") else ()) == entry.finish_reasons
    assert (7, None) == (entry.input_tokens, entry.output_tokens)
