"""scan_request.h: what it accepts is what json.loads accepts, what it reports is what a server would read."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_pure import NUMBERS, Refusal, Request, Scanner

CHAT = (
    b'{"model":"support-chat","messages":[{"role":"user",'
    b'"content":"say \\"hi\\" to C:\\\\dir\\n \\u00e9 \xe9\x98\xb4"}],'
    b'"temperature":0.2,"top_p":1,"stop":["a",["b"],{"c":[1]}],"stream":true,"max_tokens":5,"seed":-7,"n":1e0}'
)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b"", Refusal.EMPTY),
        (b" \r\n\t", Refusal.EMPTY),
        (b"\xef\xbb\xbf", Refusal.EMPTY),
        (b"[]", Refusal.NOT_OBJECT),
        (b'"x"', Refusal.NOT_OBJECT),
        (b"1", Refusal.NOT_OBJECT),
        (b"null", Refusal.NOT_OBJECT),
        (b"true", Refusal.NOT_OBJECT),
        (b"hello", Refusal.MALFORMED),
        (b"NaN", Refusal.MALFORMED),
        (b"nope", Refusal.NOT_OBJECT),  # judged by its first letter; refused either way
        (b"\x00", Refusal.MALFORMED),
        (b"{", Refusal.ENDED_EARLY),
        (b'{"a":"', Refusal.ENDED_EARLY),
        (b'{"a":1', Refusal.ENDED_EARLY),
        (b'{"a":[1}', Refusal.MALFORMED),
        (b'{"a":[1]]}', Refusal.MALFORMED),
        (b'{"a" 1}', Refusal.MALFORMED),
        (b'{"a":}', Refusal.MALFORMED),
        (b'{"a":1,}', Refusal.MALFORMED),
        (b'{"a":[1,]}', Refusal.MALFORMED),
        (b'{,"a":1}', Refusal.MALFORMED),
        (b"{1:2}", Refusal.MALFORMED),
        (b"{'a':1}", Refusal.MALFORMED),
        (b"{}x", Refusal.MALFORMED),
        (b"{}{}", Refusal.MALFORMED),
        (b"\xef\xbb\xbf\xef\xbb\xbf{}", Refusal.MALFORMED),
        (b'{"a":NaN}', Refusal.MALFORMED),
        (b'{"a":Infinity}', Refusal.MALFORMED),
        (b'{"a":-Infinity}', Refusal.MALFORMED),
        (b'{"a":01}', Refusal.MALFORMED),
        (b'{"a":1.}', Refusal.MALFORMED),
        (b'{"a":.5}', Refusal.MALFORMED),
        (b'{"a":+1}', Refusal.MALFORMED),
        (b'{"a":-}', Refusal.MALFORMED),
        (b'{"a":1e}', Refusal.MALFORMED),
        (b'{"a":0x1}', Refusal.MALFORMED),
        (b'{"a":tru}', Refusal.MALFORMED),
        (b'{"a":nulL}', Refusal.MALFORMED),
        (b'{"a":"\n"}', Refusal.MALFORMED),
        (b'{"a":["\x1f"]}', Refusal.MALFORMED),
        (b'{"a":"\\x"}', Refusal.MALFORMED),
        (b'{"a":"\\u12g4"}', Refusal.MALFORMED),
        (b'{"a":"\\u12"}', Refusal.MALFORMED),
        (b'{"a":"\xff"}', Refusal.NOT_UTF8),
        (b'{"a":"\xed\xa0\x80"}', Refusal.NOT_UTF8),
        (b'{"a":"\xc0\xaf"}', Refusal.NOT_UTF8),
        (b'{"\xe9":1}', Refusal.NOT_UTF8),
        (b'{"a":' + b"[" * 511 + b"]" * 511 + b"}", Refusal.ACCEPTED),
        (b'{"a":' + b"[" * 512 + b"]" * 512 + b"}", Refusal.TOO_DEEP),
        (b'{"a":' * 512 + b"1" + b"}" * 512, Refusal.ACCEPTED),
        (b'{"a":' * 100_000, Refusal.TOO_DEEP),
        (b"{}", Refusal.ACCEPTED),
        (b' {"a":[1,-0.5e+3,true,false,null,{}]} \n', Refusal.ACCEPTED),
        (b"\xef\xbb\xbf{}", Refusal.ACCEPTED),
        (b'{"a":1e400,"b":' + b"9" * 5000 + b',"c":"\\ud800"}', Refusal.ACCEPTED),
        (b'{"a":"\x7f\xf4\x8f\xbf\xbf"}', Refusal.ACCEPTED),
        (b'{"model":null}', Refusal.MODEL_NOT_STRING),
        (b'{"model":1}', Refusal.MODEL_NOT_STRING),
        (b'{"model":{"model":"a"}}', Refusal.MODEL_NOT_STRING),
        (b'{"model":["a"]}', Refusal.MODEL_NOT_STRING),
        (b'{"model":true}', Refusal.MODEL_NOT_STRING),
        (b'{"model":"' + b"a" * 1024 + b'"}', Refusal.ACCEPTED),
        (b'{"model":"' + b"a" * 1025 + b'"}', Refusal.MODEL_TOO_LONG),
        (b'{"model":"' + b"\\u0061" * 1024 + b'"}', Refusal.ACCEPTED),
        (b'{"model":"' + b"\\u0061" * 1025 + b'"}', Refusal.MODEL_TOO_LONG),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, bytes) else value.name,
)
def test_accepts_and_refuses(scanner: Scanner, body: bytes, refusal: Refusal) -> None:
    assert refusal == scanner.request(body).refusal


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b"{}", None),
        (b'{"model":"m1"}', b"m1"),
        (b'{"mo\\u0064el":"m1"}', b"m1"),
        (b'{"\\u006D\\u006f\\u0064\\u0065\\u006C" : "m1"}', b"m1"),
        (b'{"Model":"m1"}', None),
        (b'{"model ":"m1"}', None),
        (b'{"a":{"model":"m1"}}', None),
        (b'{"a":"\\"model\\":\\"m1\\""}', None),
        (b'{"a":"x\\\\","model":"m1"}', b"m1"),
        (b'{"model":"a/b:c-1.0"}', b"a/b:c-1.0"),
        (b'{"model":"a\\/b\\"\\\\\\n"}', b'a/b"\\\n'),
        (b'{"model":"\\ud83d\\ude00"}', "\U0001f600".encode()),
        (b'{"model":"\\ud83dx\\ude00"}', b"\xed\xa0\xbdx\xed\xb8\x80"),
        (b'{"model":"\\ud83d\\ud83d\\ude00\\ud83d"}', b"\xed\xa0\xbd\xf0\x9f\x98\x80\xed\xa0\xbd"),
        (b'{"model":""}', b""),
    ],
)
def test_model_is_read_unescaped_from_the_top_level_only(scanner: Scanner, body: bytes, model: bytes | None) -> None:
    result = scanner.request(body)
    assert (Refusal.ACCEPTED, model) == (result.refusal, result.model)


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"a","model":"b"}', b"b"),
        (b'{"model":1,"model":"b"}', b"b"),
        (b'{"model":"a","mo\\u0064el":"b"}', b"b"),
        (b'{"model":"' + b"a" * 2000 + b'","model":"b"}', b"b"),
    ],
)
def test_last_duplicate_of_model_wins(scanner: Scanner, body: bytes, model: bytes) -> None:
    result = scanner.request(body)
    assert (Refusal.ACCEPTED, model) == (result.refusal, result.model)


def test_last_duplicate_of_model_is_judged_even_if_an_earlier_one_was_fine(scanner: Scanner) -> None:
    assert Refusal.MODEL_NOT_STRING == scanner.request(b'{"model":"a","model":null}').refusal


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b'{"temperature":0.2,"top_p":1,"top_k":-1}', {"temperature": 0.2, "top_p": 1, "top_k": -1}),
        (b'{"temperature":"hot","top_p":null,"seed":true,"n":[1],"top_k":{}}', {}),
        (b'{"temperature":1,"temperature":"hot"}', {}),
        (b'{"temperature":"hot","temperature":2e-1}', {"temperature": 0.2}),
        (b'{"temperature":1e400,"seed":12345678901234567890}', {"seed": 12345678901234567890.0}),
        (b'{"n":' + b"1" * 64 + b"}", {}),
        (b'{"max_tokens":1}', {"max_tokens": 1}),
        (b'{"max_completion_tokens":3,"max_output_tokens":2,"max_tokens":1}', {"max_tokens": 3}),
        (b'{"max_tokens":1,"max_output_tokens":2}', {"max_tokens": 2}),
        (b'{"max_tokens":1,"max_completion_tokens":null}', {"max_tokens": 1}),
        (b'{"stream":true}', {"stream": True}),
        (b'{"stream":false}', {"stream": False}),
        (b'{"stream":null}', {}),
        (b'{"stream":"true"}', {}),
        (b'{"stop":"a"}', {"stop_count": 1}),
        (b'{"stop":[]}', {"stop_count": 0}),
        (b'{"stop":["a",["b","c"],{"d":1},null]}', {"stop_count": 4}),
        (b'{"stop":null}', {}),
        (b'{"stop":{"a":["b"]}}', {}),
        (b'{"stop":["a","b"],"stop":"a"}', {"stop_count": 1}),
        (b'{"stop":["a","b"],"x":["a","b"]}', {"stop_count": 2}),
        (b'{"reasoning_effort":"low"}', {"reasoning_effort": b"low"}),
        (b'{"reasoning_effort":"' + b"a" * 65 + b'"}', {}),
        (b'{"frequency_penalty":-2.0,"presence_penalty":0}', {"frequency_penalty": -2, "presence_penalty": 0}),
        (b'{"a":{"temperature":1,"stream":true,"stop":"x"},"b":[{"seed":1}]}', {}),
    ],
)
def test_parameters(scanner: Scanner, body: bytes, fields: dict[str, float | bool | bytes]) -> None:
    result = scanner.request(body)
    assert (Refusal.ACCEPTED, fields) == (result.refusal, result.fields)


def test_every_cut_gives_the_same_result(scanner: Scanner) -> None:
    whole = scanner.request(CHAT)
    assert (Refusal.ACCEPTED, b"support-chat") == (whole.refusal, whole.model)
    for cut in range(len(CHAT) + 1):
        assert whole == scanner.request(CHAT, [cut])
    assert whole == scanner.request(CHAT, range(1, len(CHAT)))


@pytest.mark.parametrize("body", [b'\xef\xbb\xbf{"a":"\xc3\xa9"}', b'{"mo\\u0064el":"\\ud83d\\ude00\xf0\x9f\x98\x80"}'])
def test_every_byte_alone_gives_the_same_result(scanner: Scanner, body: bytes) -> None:
    whole = scanner.request(body)
    assert Refusal.ACCEPTED == whole.refusal
    assert whole == scanner.request(body, range(1, len(body)))


@pytest.mark.parametrize("padding", range(130))
def test_backslashes_at_block_borders(scanner: Scanner, padding: int) -> None:
    for run in range(1, 6):
        body = b'{"a":"' + b"x" * padding + b"\\" * (2 * run) + b'","model":"m"}'
        assert b"m" == scanner.request(body).model
        odd = b'{"a":"' + b"x" * padding + b"\\" * (2 * run - 1) + b'","model":"m"}'
        assert scanner.request(odd).refusal != Refusal.ACCEPTED


def test_known_bug_3_characters_cut_inside(scanner: Scanner) -> None:
    value = {"messages": [{"content": "阴气渐重，露凝 \U0001f600"}], "model": "m"}
    body = json.dumps(value, ensure_ascii=False).encode()
    for cut in range(len(body) + 1):
        result = scanner.request(body, [cut])
        assert (Refusal.ACCEPTED, b"m") == (result.refusal, result.model)


def test_spans_are_the_bytes_of_each_top_level_model(scanner: Scanner) -> None:
    body = b'{"model":"a","x":{"model":"no"},"mo\\u0064el" : "b\\"c","model":""}'
    for cut in range(len(body) + 1):
        spans = scanner.request(body, [cut]).spans
        assert [b"a", b'b\\"c', b""] == [body[start:end] for start, end in spans]


def test_position_tells_where_the_error_is(scanner: Scanner) -> None:
    body = b'{"a":[1,2,x]}'
    for cut in range(len(body) + 1):
        assert body.index(b"x") == scanner.request(body, [cut]).position


# ---- json.loads as the judge ----

tokens = (
    st.sampled_from('{}[],:"\\ \n01-.e\x01\x7f\ufeffé')
    | st.sampled_from(["E+", "true", "false", "null", "NaN", "[[", "]]", '{"', '":', '"a":', '"model":', ',"n":'])
    | st.sampled_from(['"model"', '"mo\\u0064el"', '"m1"', '"stop"', '"temperature"', '"stream"'])
    | st.sampled_from(["\\u", "d83d", "\\ude00", "x" * 20, "y" * 70, '\\"', "\\\\", "\\n"])
)
numbers = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
known = ["model", "temperature", "stream", "stop", "max_tokens", "reasoning_effort", "n", "a"]
objects = st.builds(
    lambda pairs, ascii_only, indent: json.dumps(dict(pairs), ensure_ascii=ascii_only, indent=indent, allow_nan=False),
    st.lists(st.tuples(st.sampled_from(known) | st.text(), values), max_size=6),
    st.booleans(),
    st.sampled_from([None, 1]),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
changed_bytes = st.sampled_from(b'{}[],:"\\ 0-.eEtfn\x00\x1f\x80\xe9\xff')
mutations = st.lists(st.tuples(st.integers(0, 10**6), changed_bytes), max_size=3)


def refuse_constant(name: str) -> None:
    """Refuse NaN and the infinities, as RFC 8259 does."""
    raise ValueError(name)


def parse(body: bytes) -> object:
    """Parse as a server would; raise ValueError."""
    text = body.decode("utf-8")
    return json.loads(text.removeprefix("\ufeff"), parse_constant=refuse_constant)


def compare(body: bytes, result: Request) -> None:
    """Compare with json.loads: acceptance, model, parameters."""
    try:
        value = parse(body)
    except ValueError:
        assert result.refusal not in (Refusal.ACCEPTED, Refusal.MODEL_NOT_STRING, Refusal.MODEL_TOO_LONG)
        return
    if not isinstance(value, dict):
        assert Refusal.NOT_OBJECT == result.refusal
        return
    model = value.get("model")
    if "model" in value and not isinstance(model, str):
        assert Refusal.MODEL_NOT_STRING == result.refusal
        return
    model_bytes = None if model is None else model.encode("utf-8", "surrogatepass")
    if model_bytes is not None and len(model_bytes) > 1024:
        assert Refusal.MODEL_TOO_LONG == result.refusal
        return
    assert (Refusal.ACCEPTED, model_bytes) == (result.refusal, result.model)
    for name in (*NUMBERS, "stream"):
        wanted = value.get(name)
        if name == "max_tokens" or not isinstance(wanted, bool if name == "stream" else (int, float)):
            continue
        if name != "stream" and (isinstance(wanted, bool) or len(repr(wanted)) > 60 or not math.isfinite(wanted)):
            continue
        assert wanted == result.fields[name]
    stop = value.get("stop")
    stop_count = len(stop) if isinstance(stop, list) else 1 if isinstance(stop, str) else None
    assert stop_count == result.fields.get("stop_count")


@settings(max_examples=1500, deadline=None)
@given(parts=st.lists(tokens, max_size=30), data=st.data())
def test_tokens_are_accepted_as_json_loads_does(scanner: Scanner, parts: list[str], data: st.DataObject) -> None:
    body = ("{" + "".join(parts) + "}").encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=4)))
    whole, cut = scanner.request(body), scanner.request(body, cuts)
    compare(body, whole)
    compare(body, cut)
    if whole.refusal == Refusal.ACCEPTED:
        assert whole == cut


@settings(max_examples=800, deadline=None)
@given(body=objects, changes=mutations, data=st.data())
def test_objects_with_a_few_bytes_changed_are_accepted_as_json_loads_does(
    scanner: Scanner, body: bytes, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    changed = bytearray(body)
    for place, byte in changes:
        changed[place % len(changed)] = byte
    cuts = sorted(data.draw(st.lists(st.integers(0, len(changed)), max_size=4)))
    result = scanner.request(bytes(changed), cuts)
    compare(bytes(changed), result)
