"""Access-log entries -> values: recorded entries of a real Envoy against what they are to become, and the odd ones.

Golden pairs lie in log_entries/: `.txtpb` as Envoy sent it (test_logs_envoy.py records it), `.json` what is made of it.
POINTSMAN_RECORD=1 writes the second anew; read the difference before it is kept.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from pointsman.router.entry import RequestEntry, TryEntry
from pointsman.xds.api import HTTPAccessLogEntry, ResponseFlags
from pointsman.xds.log_entries import FLAG_NAMES, MAX_TEXT_CHARS, METHODS, clean, decode_request, decode_try

GOLDEN = sorted((Path(__file__).parent / "log_entries").glob("*.txtpb"))


def read(path: Path) -> HTTPAccessLogEntry:
    return text_format.Parse(path.read_text(), HTTPAccessLogEntry())


def decode(path: Path) -> RequestEntry | TryEntry:
    return (decode_request if ".request." in path.name else decode_try)(read(path))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_recorded_entry_becomes_its_golden_value(path: Path) -> None:
    found = json.loads(json.dumps(asdict(decode(path))))
    golden = path.with_suffix(".json")
    if os.environ.get("POINTSMAN_RECORD"):
        golden.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert json.loads(golden.read_text()) == found


def test_recorded_cases_cover_retry_abort_connect_failure_refusal_and_streams() -> None:
    names = {path.name.partition(".txtpb")[0] for path in GOLDEN}
    assert {
        *("json.request", "sse.request", "cut.request", "canned.request", "no_route.request", "abort.request"),
        *("retry.request", "retry.try_1", "retry.try_2", "dead.request", "dead.try_1", "dead.try_2"),
    } <= names


def test_empty_entry_says_that_nothing_is_known() -> None:
    """Envoy logs a request that it could not parse without a route, a path, and all else."""
    empty = HTTPAccessLogEntry()
    assert decode_request(empty) == RequestEntry(
        started_unix_ns=0,
        duration_ms=0.0,
        row="",
        ladder="",
        target=None,
        endpoint=None,
        status=0,
        flags=(),
        details="",
        attempts=0,
        method="",
        path="",
        request_id="",
    )
    assert decode_try(empty) == TryEntry(
        started_unix_ns=0,
        duration_ms=0.0,
        row="",
        target="",
        endpoint=None,
        status=0,
        flags=(),
        attempt=1,
        request_id="",
    )


def test_times_are_exact() -> None:
    logged = HTTPAccessLogEntry()
    common = logged.common_properties
    common.start_time.seconds, common.start_time.nanos = 1_796_057_612, 275_009_001
    common.duration.seconds, common.duration.nanos = 61, 500_000
    common.time_to_first_upstream_rx_byte.nanos = 250_000
    assert decode_request(logged).started_unix_ns == 1_796_057_612_275_009_001
    assert decode_request(logged).duration_ms == 61_000.5
    assert decode_try(logged).first_byte_ms == 0.25


def test_every_response_flag_has_its_short_name() -> None:
    assert {field.name for field in ResponseFlags.DESCRIPTOR.fields} == FLAG_NAMES.keys()
    assert len(set(FLAG_NAMES.values())) == len(FLAG_NAMES)


@pytest.mark.parametrize("field", FLAG_NAMES)
def test_response_flag_is_read(field: str) -> None:
    logged = HTTPAccessLogEntry()
    flags = logged.common_properties.response_flags
    if field == "unauthorized_details":
        flags.unauthorized_details.SetInParent()
    else:
        setattr(flags, field, True)
    assert decode_try(logged).flags == (FLAG_NAMES[field],)


def test_method_names_are_those_of_envoys_numbers() -> None:
    values = HTTPAccessLogEntry().request.DESCRIPTOR.fields_by_name["request_method"].enum_type.values_by_number
    assert [values[number].name for number in range(1, len(values))] == [METHODS[number] for number in sorted(METHODS)]


@pytest.mark.parametrize(
    ("address", "expected"), [("10.0.0.7", "10.0.0.7:8000"), ("fd00::7", "[fd00::7]:8000")], ids=["v4", "v6"]
)
def test_endpoint_has_host_and_port(address: str, expected: str) -> None:
    logged = HTTPAccessLogEntry()
    socket = logged.common_properties.upstream_remote_address.socket_address
    socket.address, socket.port_value = address, 8000
    assert decode_request(logged).endpoint == expected


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


@pytest.mark.parametrize(
    ("traceparent", "trace_id", "expected"),
    [
        (TRACEPARENT + "01", "0af7", True),
        (TRACEPARENT + "03", "0af7", True),
        (TRACEPARENT + "00", "0af7", False),
        (TRACEPARENT + "02", "0af7", False),
        (TRACEPARENT, "0af7", False),
        ("", "0af7", False),
        (TRACEPARENT + "01", "", False),
    ],
    ids=["sampled", "sampled_random", "not", "random_only", "short", "empty", "no_tracing_here"],
)
def test_sampled_is_the_flag_of_a_trace_that_envoy_made(traceparent: str, trace_id: str, expected: bool) -> None:
    logged = HTTPAccessLogEntry()
    logged.request.request_headers["traceparent"] = traceparent
    if trace_id:
        logged.common_properties.custom_tags["trace_id"] = trace_id
    assert decode_request(logged).is_sampled is expected


COLUMNS = (
    *("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty", "seed", "n"),
    *("stop_count", "stream", "model", "reasoning_effort"),
    *("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "first_chunk_ns"),
    *("response_model", "response_id", "finish_reasons", "stream_done"),
)


def logged_text(text: str) -> HTTPAccessLogEntry:
    logged = HTTPAccessLogEntry()
    logged.common_properties.metadata.filter_metadata["pointsman"].update({"said": text})
    return logged


def said(**values: str) -> RequestEntry:
    """Return what becomes of an entry in which the scanner's text has these columns."""
    assert values.keys() <= set(COLUMNS)
    return decode_request(logged_text("\n".join(values.get(name, "") for name in COLUMNS)))


def test_known_bug_51_what_the_scanner_did_not_say_is_absent() -> None:
    entry = said(model="m")
    assert entry.params == {"model": "m"}
    assert (entry.input_tokens, entry.response_model, entry.response_id, entry.first_chunk_ms) == (None,) * 4


def test_every_column_has_its_place() -> None:
    numbers = {name: f"{place}.5" for place, name in enumerate(COLUMNS[:8])}
    counts = {name: str(place) for place, name in enumerate(COLUMNS) if name in COLUMNS[12:16]}
    entry = said(
        **numbers,
        **counts,
        stop_count="8",
        stream="1",
        model="m",
        reasoning_effort="low",
        first_chunk_ns="16500000",
        response_model="a",
        response_id="i",
        finish_reasons="stop,length",
        stream_done="1",
    )
    texts = {"stream": True, "model": "m", "reasoning_effort": "low"}
    assert {name: place + 0.5 for place, name in enumerate(COLUMNS[:8])} | texts == entry.params
    assert entry.stop_sequence_count == 8
    assert (12, 13, 14, 15) == (entry.input_tokens, entry.output_tokens, entry.cached_tokens, entry.reasoning_tokens)
    assert (16.5, "a", "i") == (entry.first_chunk_ms, entry.response_model, entry.response_id)
    assert entry.finish_reasons == ("stop", "length")


def test_zero_and_false_are_values() -> None:
    entry = said(temperature="0", stream="0", output_tokens="0", first_chunk_ns="0")
    assert entry.params == {"temperature": 0.0, "stream": False}
    assert (entry.output_tokens, entry.first_chunk_ms) == (0, 0.0)


@pytest.mark.parametrize("token", ["0.2", "-0", "1e-7", "2E+3", "9007199254740993", "1" * 63, "0." + "3" * 61])
def test_number_is_the_double_that_a_server_would_read(token: str) -> None:
    assert said(seed=token).params == {"seed": json.loads(token, parse_int=float)}


def test_value_that_is_none_counts_as_not_said() -> None:
    entry = said(temperature="hot", top_p="1e999", top_k="nan", stream="yes", output_tokens="many", first_chunk_ns="-")
    assert entry.params == {}
    assert (entry.output_tokens, entry.first_chunk_ms) == (None, None)


@pytest.mark.parametrize("number", ["-1", "1.5", "inf", "nan", str(2**53), "9" * 5_000])
def test_number_that_cannot_be_a_count_is_not_known(number: str) -> None:
    assert said(input_tokens=number).input_tokens is None


def test_columns_of_a_newer_scanner_are_left_and_those_of_an_older_one_are_empty() -> None:
    whole = logged_text("\n".join(["0.5", *[""] * 9, "m", *[""] * 10, "new", "newer"]))
    assert decode_request(whole).params == {"temperature": 0.5, "model": "m"}
    assert decode_request(logged_text("0.5\n1")).params == {"temperature": 0.5, "top_p": 1.0}


def test_metadata_without_the_text_says_nothing() -> None:
    logged = HTTPAccessLogEntry()
    logged.common_properties.metadata.filter_metadata["pointsman"].update({"model": "m", "said_": "1"})
    assert decode_request(logged) == decode_request(HTTPAccessLogEntry())
    logged.common_properties.metadata.filter_metadata["pointsman"].update({"said": 3})
    assert decode_request(logged) == decode_request(HTTPAccessLogEntry())


def test_other_namespaces_are_not_read() -> None:
    logged = HTTPAccessLogEntry()
    logged.common_properties.metadata.filter_metadata["someone"].update({"said": "0.5"})
    assert decode_request(logged).params == {}


encodable = st.characters(codec="utf-8")  # protobuf's texts are


@given(st.text(encodable) | st.lists(st.text(encodable)).map("\n".join))
def test_any_text_of_the_scanner_becomes_a_value(text: str) -> None:
    entry = decode_request(logged_text(text))
    assert all(isinstance(value, str | bool) or math.isfinite(value) for value in entry.params.values())
    counts = (entry.stop_sequence_count, entry.input_tokens, entry.output_tokens, entry.cached_tokens)
    assert all(count is None or count >= 0 for count in (*counts, entry.reasoning_tokens, entry.first_chunk_ms))


def test_finish_reasons_are_a_list_and_never_half_a_word() -> None:
    assert said(finish_reasons="stop,length").finish_reasons == ("stop", "length")
    assert said(finish_reasons="").finish_reasons == ()
    assert set(said(finish_reasons=",".join(["length"] * 128)).finish_reasons) == {"length"}


@pytest.mark.parametrize(("header", "expected"), [("1", 1), ("12", 12), ("", 1), ("x", 1), ("²", 1), ("9" * 99, 1)])
def test_attempt_is_envoys_number(header: str, expected: int) -> None:
    logged = HTTPAccessLogEntry()
    logged.request.request_headers["x-envoy-attempt-count"] = header
    assert decode_try(logged).attempt == expected


def test_text_of_others_is_cut_and_harmless_wherever_it_is_taken() -> None:
    evil = "a\x1b[31m\r\n\x85\u2028\u202e" + "z" * 1_000
    harmless = ("a?[31m?????" + "z" * 1_000)[:MAX_TEXT_CHARS]
    column = evil.replace("\n", "\x01")
    texts = {"model", "reasoning_effort", "response_model", "response_id"}
    logged = logged_text("\n".join(column if name in texts else "" for name in COLUMNS))
    logged.request.request_headers["x-context-id"] = evil
    logged.response.response_headers["retry-after"] = evil
    logged.request.path, logged.request.request_id = evil, evil
    logged.response.response_code_details = evil
    logged.common_properties.upstream_transport_failure_reason = evil
    entry, one = decode_request(logged), decode_try(logged)
    assert {harmless} == {
        *(entry.headers["x-context-id"], entry.answer_headers["retry-after"], entry.path, entry.request_id),
        *(entry.details, entry.params["model"], entry.params["reasoning_effort"]),
        *(entry.response_model, entry.response_id, one.failure, one.request_id, one.answer_headers["retry-after"]),
    }


def test_text_in_any_script_is_kept() -> None:
    assert clean("阴气渐重 🙂 naïve") == "阴气渐重 🙂 naïve"


@given(st.text())
def test_cleaned_text_is_short_and_has_no_control_characters(text: str) -> None:
    cleaned = clean(text)
    assert len(cleaned) == min(len(text), MAX_TEXT_CHARS)
    assert all(ord(char) >= 32 and not 127 <= ord(char) < 160 for char in cleaned)
    assert clean(cleaned) == cleaned


@given(st.sampled_from(GOLDEN), st.data())
@settings(max_examples=300)
def test_any_bytes_that_parse_become_a_value(path: Path, data: st.DataObject) -> None:
    encoded = bytearray(read(path).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        logged = HTTPAccessLogEntry.FromString(bytes(encoded))
    except DecodeError:  # the receiver's to refuse
        return
    assert isinstance(decode_request(logged), RequestEntry)
    assert isinstance(decode_try(logged), TryEntry)
