"""scan_answer.h: counts, finish reasons, id and model, the same wherever the answer is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_pure import Answer, Scanner

COMPLETED = (
    b"event: response.completed\n"
    b'data: {"type":"response.completed","response":{"id":"resp_1","model":"m-1","usage":'
    b'{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":5,'
    b'"output_tokens_details":{"reasoning_tokens":2},"total_tokens":14}}}\n\n'
)
USAGE_ONLY = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":26,"completion_tokens":8,"total_tokens":34}}\n\n'
    b"data: [DONE]\n\n"
)
CHAT = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m-1",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": 'a "quoted" \\ text'}, "finish_reason": "stop"},
            {"index": 1, "message": {"role": "assistant", "content": ""}, "finish_reason": "length"},
        ],
        "usage": {
            "prompt_tokens": 26,
            "completion_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 16},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
    }
).encode()


def counts(input_tokens: int, output_tokens: int, **more: int) -> dict[str, float]:
    """Return the counts that an answer with this usage gives."""
    return {"input_tokens": input_tokens, "output_tokens": output_tokens, **more}


def same_at_every_cut(scanner: Scanner, body: bytes, expected: Answer, *, sse: bool) -> None:
    """Feed the answer cut once at every offset, and byte by byte."""
    for cut in range(len(body) + 1):
        assert expected == scanner.answer(body, [cut], sse=sse)
    assert expected == scanner.answer(body, range(1, len(body)), sse=sse)


def test_known_bug_1_usage_cut_at_every_byte(scanner: Scanner) -> None:
    expected = Answer(counts(9, 5, cached_tokens=4, reasoning_tokens=2), b"", b"resp_1", b"m-1", done=False)
    same_at_every_cut(scanner, COMPLETED, expected, sse=True)
    same_at_every_cut(scanner, COMPLETED.replace(b"\n", b"\r\n"), expected, sse=True)
    same_at_every_cut(scanner, COMPLETED.replace(b"\n", b"\r"), expected, sse=True)


def test_known_bug_3_characters_cut_inside(scanner: Scanner) -> None:
    event = json.dumps({"choices": [{"delta": {"content": "阴气渐重，露凝\U0001f600"}}]}, ensure_ascii=False)
    body = f"data: {event}\n\n".encode() + USAGE_ONLY
    same_at_every_cut(scanner, body, Answer(counts(26, 8), b"stop", b"", b"", done=True), sse=True)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_known_bug_8_usage_only_chunk_with_empty_choices(scanner: Scanner, line_end: bytes) -> None:
    body = USAGE_ONLY.replace(b"\n", line_end)
    same_at_every_cut(scanner, body, Answer(counts(26, 8), b"stop", b"", b"", done=True), sse=True)


def test_json_answer_cut_at_every_byte(scanner: Scanner) -> None:
    expected = Answer(
        counts(26, 8, cached_tokens=16, reasoning_tokens=3), b"stop,length", b"chatcmpl-1", b"m-1", done=False
    )
    same_at_every_cut(scanner, CHAT, expected, sse=False)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", {}),
        (b"null", {}),
        (b"[]", {}),
        (b'[{"usage":{"prompt_tokens":1}}]', {}),
        (b'{"usage":null,"choices":[]}', {}),
        (b'{"usage":{}}', {}),
        (b'{"usage":[1]}', {}),
        (b'{"usage":{"prompt_tokens":null,"completion_tokens":"8"}}', {}),
        (b'{"usage":{"prompt_tokens":-1,"completion_tokens":1.5}}', {}),
        (b'{"usage":{"prompt_tokens":1e3}}', {}),
        (b'{"usage":{"prompt_tokens":0}}', {"input_tokens": 0}),
        (b'{"usage":{"prompt_tokens" : 5\n}}', {"input_tokens": 5}),
        (b'{"us\\u0061ge":{"prompt_tokens":5}}', {"input_tokens": 5}),
        (b'{"usage":{"prompt_tokens":9999999999999999}}', {}),
        (b'{"usage":{"x":{"prompt_tokens":5}}}', {}),
        (b'{"data":{"usage":{"prompt_tokens":5}}}', {}),
        (b'{"choices":[{"usage":{"prompt_tokens":5}}]}', {}),
        (b'{"prompt_tokens":5}', {}),
        (b'{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}', {"input_tokens": 2}),
        (b'{"usage":{"total_tokens":3,"prompt_tokens_details":null,"prompt_tokens":1}}', {"input_tokens": 1}),
        (b'{"type":"message","stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":2}}', counts(1, 2)),
    ],
)
def test_counts_are_read_where_they_belong(scanner: Scanner, body: bytes, expected: dict[str, float]) -> None:
    assert expected == scanner.answer(body).counts


@pytest.mark.parametrize(
    "content",
    [
        '"usage":{"prompt_tokens":99}',
        '{"usage":{"prompt_tokens":99}}',
        '"},"usage":{"prompt_tokens":99},"x":{"y":"',
        '\\","usage":{"prompt_tokens":99},"',
        '\ndata: {"usage":{"prompt_tokens":99}}\n\ndata: [DONE]\n\n',
    ],
)
def test_usage_inside_a_text_fools_nobody(scanner: Scanner, content: str) -> None:
    body = json.dumps({"choices": [{"message": {"content": content}}], "usage": {"prompt_tokens": 3}}).encode()
    assert {"input_tokens": 3} == scanner.answer(body).counts
    assert {"input_tokens": 3} == scanner.answer(b"data: " + body + b"\n\n", sse=True).counts
    assert not scanner.answer(b"data: " + body + b"\n\n", sse=True).done


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["stop"], b"stop"),
        (["stop", "stop", "length", "stop"], b"stop,stop,length,stop"),
        ([None, "tool_calls"], b"tool_calls"),
        (["Stop", "a b", "", "a" * 33, "a,b", "x1"], b""),
        (["a" * 32], b"a" * 32),
        (["sto", "stop", "st"], b"sto,stop,st"),
        ([chr(97 + i) for i in range(12)], b"a,b,c,d,e,f,g,h"),
    ],
)
def test_finish_reasons_are_a_list_of_words_one_a_choice(
    scanner: Scanner, reasons: list[str | None], expected: bytes
) -> None:
    choices = [{"index": i, "finish_reason": reason} for i, reason in enumerate(reasons)]
    assert expected == scanner.answer(json.dumps({"choices": choices}).encode()).finish_reasons
    events = b"".join(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" for choice in choices)
    assert expected == scanner.answer(events, sse=True).finish_reasons


def test_first_id_and_model_count(scanner: Scanner) -> None:
    body = b'data: {"id":"a","model":"m"}\n\ndata: {"id":"b","model":"n"}\n\n'
    answer = scanner.answer(body, sse=True)
    assert (b"a", b"m") == (answer.answer_id, answer.model)


@pytest.mark.parametrize("text", ["", "a" * 129, "a\nb", "é", "\x7f"])
def test_id_that_is_no_label_is_left_out(scanner: Scanner, text: str) -> None:
    assert scanner.answer(json.dumps({"id": text}).encode()).answer_id == b""


@pytest.mark.parametrize(
    ("body", "done"),
    [
        (b"data: [DONE]\n\n", True),
        (b"data:[DONE]\n", True),
        (b"data: [DONE]", True),
        (b"data: {}\n\ndata: [DONE]\r\n\r\n", True),
        (b"\xef\xbb\xbfdata: [DONE]\n\n", True),
        (b"data: [DONE] \n\n", False),
        (b"data: [DONE\n\n", False),
        (b"data: [DONE]]\n\n", False),
        (b"data:  [DONE]\n\n", False),
        (b": data: [DONE]\n\n", False),
        (b"event: [DONE]\n\n", False),
        (b"dat: [DONE]\n\n", False),
        (b"dataa: [DONE]\n\n", False),
        (b"data\n\n", False),
        (b"x\ndata: [DONE]\n\n", True),
    ],
)
def test_done_is_the_whole_data(scanner: Scanner, body: bytes, done: bool) -> None:
    for cut in range(len(body) + 1):
        assert done == scanner.answer(body, [cut], sse=True).done


def test_data_lines_of_one_event_are_one_text(scanner: Scanner) -> None:
    body = b'data: {"usage":\r\ndata: {"prompt_tokens":\r\ndata: 5}}\r\n\r\n'
    same_at_every_cut(scanner, body, Answer({"input_tokens": 5}, b"", b"", b"", done=False), sse=True)


def test_a_broken_event_does_not_spoil_the_next(scanner: Scanner) -> None:
    body = b'data: {"choices":[{"delta":{"content":"x\n\n' + USAGE_ONLY
    assert counts(26, 8) == scanner.answer(body, sse=True).counts


def test_usage_in_two_events_is_merged(scanner: Scanner) -> None:
    body = (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","model":"m","usage":'
        b'{"input_tokens":7,"output_tokens":1}}}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"output_tokens":12}}\n\n'
    )
    same_at_every_cut(scanner, body, Answer(counts(7, 12), b"end_turn", b"msg_1", b"m", done=False), sse=True)


def test_usage_at_the_head_of_a_large_answer_is_found(scanner: Scanner) -> None:
    data = [{"embedding": [0.5] * 1000} for _ in range(50)]
    body = json.dumps({"usage": {"prompt_tokens": 3}, "data": data}).encode()
    assert {"input_tokens": 3} == scanner.answer(body, range(16384, len(body), 16384)).counts


@settings(max_examples=500, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from('{}[],:"\\\n\r1-.')
        | st.sampled_from(["data: ", "data:", "[DONE]", " " * 20, '"usage":{', '"prompt_tokens":', '"choices":['])
        | st.sampled_from(['"finish_reason":"stop"', '"id":"x"', '"response":{', '"\\u0069d":"x"']),
        max_size=40,
    ),
    data=st.data(),
)
def test_any_text_in_any_pieces_is_the_same(scanner: Scanner, parts: list[str], data: st.DataObject) -> None:
    body = "".join(parts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=5)))
    for sse in (False, True):
        assert scanner.answer(body, sse=sse) == scanner.answer(body, cuts, sse=sse)
