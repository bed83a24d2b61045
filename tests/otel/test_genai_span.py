from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from pointsman.otel import names
from pointsman.otel.genai_span import MAX_HEADER_CHARS, OPERATIONS, Routed, build_span, error_type_of, operation_of
from pointsman.router.entry import RequestEntry, TryEntry
from pointsman.router.policy import GENERATING_INTENTS, Intent

ENTRY = RequestEntry(
    started_unix_ns=1_790_000_000_000_000_000,
    duration_ms=10.0,
    row="r",
    ladder="l",
    target="m@v",
    endpoint="127.0.0.1:1",
    status=200,
    flags=(),
    details="",
    attempts=1,
    method="POST",
    path="/v1/chat/completions",
    request_id="id",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
    is_sampled=True,
)
ROUTED = Routed("r", "default", None, "chat", "vllm", "m", is_canary=False, is_known_model=False)
SPAN_ID = bytes.fromhex("1122334455667788")
TYPE_FIELDS = {
    names.AttributeType.STRING: "string_value",
    names.AttributeType.INT: "int_value",
    names.AttributeType.DOUBLE: "double_value",
    names.AttributeType.BOOL: "bool_value",
    names.AttributeType.STRINGS: "array_value",
}


def built(entry, routed, **more) -> Span:
    span = build_span(entry, routed, span_id=SPAN_ID, **more)
    assert span is not None
    return span


def attributes(span: Span) -> dict[str, AnyValue]:
    found = {attribute.key: attribute.value for attribute in span.attributes}
    assert len(found) == len(span.attributes), "an attribute stands twice"
    return found


def plain(span: Span) -> dict[str, object]:
    return {key: getattr(value, value.WhichOneof("value") or "") for key, value in attributes(span).items()}


def test_span_is_a_client_span_named_by_operation_and_model(entry, routed):
    span = built(entry(), routed())
    assert span.name == "chat support-chat"
    assert span.kind == Span.SPAN_KIND_CLIENT
    assert span.span_id == SPAN_ID


def test_span_covers_the_request_in_nanoseconds(entry, routed):
    span = built(entry(duration_ms=812.5), routed())
    assert span.start_time_unix_nano == 1_790_000_000_000_000_000
    assert span.end_time_unix_nano == 1_790_000_000_812_500_000


def test_every_attribute_has_the_type_of_the_table(entry, routed):
    span = built(
        entry(
            flags=("UC",),
            headers={
                "x-prompt-template": "refund-answer",
                "x-prompt-template-version": "7",
                "x-context-id": "c1",
                "x-trace-intent": "debug",
                "x-trace-id": "theirs",
            },
            answer_headers={"x-model-confidence": "0.4", "x-model-logit-entropy": "1.5"},
            params={
                "model": "support-chat",
                "temperature": 1.0,
                "top_p": 1,
                "top_k": 40.0,
                "max_tokens": 64.0,
                "seed": 7.0,
                "n": 2.0,
                "stream": True,
                "frequency_penalty": 0.0,
                "presence_penalty": 1.0,
                "reasoning_effort": "low",
            },
            stop_sequence_count=2,
            cached_tokens=64,
            reasoning_tokens=5,
            first_chunk_ms=41.0,
        ),
        routed(),
    )
    aborted = built(entry(flags=("DC",)), routed())
    table = {attribute.name: TYPE_FIELDS[attribute.type] for attribute in names.SPAN_ATTRIBUTES}
    seen = attributes(aborted) | attributes(span)
    assert table == {key: value.WhichOneof("value") for key, value in seen.items()}


@pytest.mark.parametrize(
    ("params", "key", "expected"),
    [
        ({"temperature": 1.0}, names.TEMPERATURE, 1.0),
        ({"temperature": 1}, names.TEMPERATURE, 1.0),
        ({"temperature": 0.0}, names.TEMPERATURE, 0.0),
        ({"temperature": True}, names.TEMPERATURE, None),
        ({"temperature": "hot"}, names.TEMPERATURE, None),
        ({"temperature": float("inf")}, names.TEMPERATURE, None),
        ({"top_k": 40.0}, names.TOP_K, 40),
        ({"top_k": 40.5}, names.TOP_K, None),
        ({"top_k": -1.0}, names.TOP_K, -1),
        ({"top_logprobs": 5.0}, names.TOP_K, None),
        ({"max_tokens": 64.0}, names.MAX_TOKENS, 64),
        ({"max_tokens": 64.0, "max_completion_tokens": 32.0}, names.MAX_TOKENS, 32),
        ({"seed": 2.0**53 - 1}, names.SEED, 2**53 - 1),
        ({"seed": 2.0**53}, names.SEED, None),
        ({"seed": 2.0**63}, names.SEED, None),
        ({"seed": 10**400}, names.SEED, None),
        ({"n": 1.0}, names.CHOICE_COUNT, None),
        ({"n": 3.0}, names.CHOICE_COUNT, 3),
        ({"stream": True}, names.STREAM, True),
        ({"stream": False}, names.STREAM, None),
        ({"stream": 1.0}, names.STREAM, None),
        ({"reasoning_effort": "high"}, names.REASONING_LEVEL, "high"),
        ({"model": "auto"}, names.REQUEST_MODEL, "auto"),
        ({}, names.REQUEST_MODEL, None),
    ],
)
def test_parameter_becomes_a_typed_attribute_or_none(entry, routed, params, key, expected):
    found = plain(built(entry(params=params), routed(is_known_model=False))).get(key)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("path", "intent", "expected"),
    [
        ("/v1/chat/completions", "chat", "chat"),
        ("/v1/chat/completions?api-version=1", "summarize", "chat"),
        ("/v1/completions", "complete", "text_completion"),
        ("/v1/completions", "summarize", "text_completion"),
        ("/v1/embeddings", "embed", "embeddings"),
        ("/v1/rerank", "rerank", "rerank"),
        ("/v1/audio/speech", "speak", "generate_content"),
        ("/custom", "extract", "chat"),
        ("/custom", "embed", "embeddings"),
        ("/custom", "no-such-intent", None),
        ("/v1/models", None, None),
    ],
)
def test_operation_is_the_apis_else_the_intents(entry, routed, path, intent, expected):
    assert operation_of(entry(path=path), routed(intent=intent)) == expected


def test_every_intent_has_an_operation():
    assert set(OPERATIONS) == set(Intent)
    assert {OPERATIONS[intent] for intent in GENERATING_INTENTS} == {"chat", "text_completion"}


def test_request_that_is_no_ai_operation_gets_no_span(entry, routed):
    assert build_span(entry(path="/v1/models"), routed(intent=None), span_id=SPAN_ID) is None


def test_unknown_model_is_an_attribute_but_never_in_the_name(entry, routed):
    span = built(entry(params={"model": "made-up-1"}, status=404), routed(is_known_model=False, model=None))
    assert span.name == "chat"
    assert plain(span)[names.REQUEST_MODEL] == "made-up-1"


def test_refused_request_says_other_provider_and_has_no_target(entry, routed):
    found = plain(
        built(
            entry(target=None, endpoint=None, status=404),
            routed(provider=None, model=None, qos_class=None, route="", reason="refused"),
        )
    )
    assert found[names.PROVIDER] == "_OTHER"
    assert names.TARGET not in found
    assert names.ROUTE not in found
    assert names.QOS_CLASS not in found
    assert found[names.ERROR_TYPE] == "404"


@pytest.mark.parametrize(
    ("endpoint", "address", "port"),
    [
        ("127.0.0.1:9002", "127.0.0.1", 9002),
        ("[::1]:9002", "::1", 9002),
        ("::1", "::1", None),
        ("models.internal", "models.internal", None),
        ("envoy:///internal", "envoy:///internal", None),
        (None, None, None),
    ],
)
def test_server_address_and_port_come_from_the_endpoint(entry, routed, endpoint, address, port):
    found = plain(built(entry(endpoint=endpoint), routed()))
    assert found.get(names.SERVER_ADDRESS) == address
    assert found.get(names.SERVER_PORT) == port


def test_prompt_template_headers_name_the_prompt(entry, routed):
    found = plain(
        built(entry(headers={"x-prompt-template": "refund-answer", "x-prompt-template-version": "7"}), routed())
    )
    assert (found[names.PROMPT_NAME], found[names.PROMPT_VERSION]) == ("refund-answer", "7")


def test_prompt_version_without_a_name_is_left_out(entry, routed):
    assert names.PROMPT_VERSION not in plain(built(entry(headers={"x-prompt-template-version": "7"}), routed()))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-context-id": "c", "x-session-id": "s"}, "c"),
        ({"x-session-id": "s"}, "s"),
        ({"x-context-id": "", "x-session-id": "s"}, "s"),
        ({}, None),
    ],
)
def test_conversation_is_the_clients_or_absent(entry, routed, headers, expected):
    assert plain(built(entry(headers=headers), routed())).get(names.CONVERSATION_ID) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a" * 500, "a" * MAX_HEADER_CHARS),
        ("a\x00b\r\nc\x1b[31m", "abc[31m"),
        ("\ud800x", "x"),
        ("Zürich 東京", "Zürich 東京"),
        ("\x00\x01", None),
    ],
)
def test_header_text_is_bounded_and_free_of_control_characters(entry, routed, value, expected):
    span = built(entry(headers={"x-context-id": value}), routed())
    assert plain(span).get(names.CONVERSATION_ID) == expected
    span.SerializeToString()


def test_trace_intent_is_cut_at_64_characters(entry, routed):
    assert plain(built(entry(headers={"x-trace-intent": "i" * 65}), routed()))[names.TRACE_INTENT] == "i" * 64


def test_headers_outside_the_contract_never_reach_the_span(entry, routed):
    canary = "SECRETCANARYTEXT"
    span = built(
        entry(
            headers=dict.fromkeys(("authorization", "cookie", "x-api-key", "baggage"), canary),
            answer_headers={"x-error-body": canary},
            params={"model": "support-chat", "prompt": canary, "user": canary},
            status=500,
            details=canary,
        ),
        routed(),
    )
    assert canary.encode() not in span.SerializeToString()


def test_first_chunk_is_seconds_and_an_event_on_streams(entry, routed):
    span = built(entry(first_chunk_ms=41.0, params={"stream": True}), routed())
    assert plain(span)[names.TIME_TO_FIRST_CHUNK] == pytest.approx(0.041)
    assert [(event.name, event.time_unix_nano) for event in span.events] == [("first_chunk", 1_790_000_000_041_000_000)]


def test_answer_that_is_no_stream_has_no_time_to_first_chunk(entry, routed):
    assert names.TIME_TO_FIRST_CHUNK not in plain(built(entry(first_chunk_ms=41.0), routed()))


def test_retries_are_events_at_their_own_times(entry, routed):
    tries = tuple(
        TryEntry(1_790_000_000_000_000_000 + attempt * 1000, 5.0, "r", f"m@v{attempt}", None, 503, (), attempt, "id")
        for attempt in (1, 2, 3)
    )
    span = built(entry(attempts=3), routed(), tries=tries)
    seen = [
        (event.name, event.time_unix_nano - span.start_time_unix_nano, event.attributes[0].value.int_value)
        for event in span.events
    ]
    assert seen == [("retry", 2000, 1), ("retry", 3000, 2)]
    assert plain(span)[names.ATTEMPTS] == 3


def test_retries_of_unknown_time_are_one_event_at_the_start(entry, routed):
    span = built(entry(attempts=3), routed())
    assert [event.name for event in span.events] == ["retry"]
    assert span.events[0].attributes[0].value.int_value == 2


@pytest.mark.parametrize(
    ("status", "flags", "finish_reasons", "expected"),
    [
        (200, (), ("stop",), None),
        (200, ("UF",), ("stop",), None),  # a failed try that a retry repaired
        (200, ("UC",), (), "upstream_closed"),
        (200, ("UR",), (), "upstream_reset"),
        (200, ("SI",), (), "idle_timeout"),
        (200, (), ("error",), "stream_error"),
        (200, ("DC",), (), None),
        (0, ("DC",), (), None),
        (0, ("DR",), (), None),
        (0, ("UT",), (), "upstream_timeout"),
        (0, (), (), "_OTHER"),
        (404, (), (), "404"),
        (429, ("RL",), (), "429"),
        (400, ("DPE",), (), "400"),
        (500, (), (), "500"),
        (503, ("URX",), (), "503"),
        (503, ("UF", "URX"), (), "connect_failure"),
        (503, ("UH",), (), "no_healthy_upstream"),
        (504, ("UT",), (), "upstream_timeout"),
    ],
)
def test_failure_has_a_type_and_an_error_status_without_text(entry, routed, status, flags, finish_reasons, expected):
    failed = entry(status=status, flags=flags, finish_reasons=finish_reasons)
    span = built(failed, routed())
    assert error_type_of(failed) == expected
    assert plain(span).get(names.ERROR_TYPE) == expected
    assert span.status.code == (Status.STATUS_CODE_UNSET if expected is None else Status.STATUS_CODE_ERROR)
    assert span.status.message == ""


def test_client_that_left_is_marked_and_no_error(entry, routed):
    found = plain(built(entry(flags=("DC",), finish_reasons=(), output_tokens=None), routed()))
    assert found[names.CLIENT_ABORT] is True
    assert names.FINISH_REASONS not in found


def test_known_bug_13_broken_stream_ends_with_finish_reason_error(entry, routed):
    span = built(entry(flags=("UC",), finish_reasons=()), routed())
    found = attributes(span)
    assert [value.string_value for value in found[names.FINISH_REASONS].array_value.values] == ["error"]
    assert found[names.FINISH_REASON].string_value == "error"
    assert span.status.code == Status.STATUS_CODE_ERROR


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_known_bug_45_span_is_the_child_of_envoys_span_on_every_api(entry, routed, path):
    span = built(
        entry(
            path=path,
            span_id="b7ad6b7169203331",
            headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-aaaaaaaaaaaaaaaa-01"},
        ),
        routed(),
    )
    assert span.parent_span_id.hex() == "b7ad6b7169203331"


def test_known_bug_46_trace_of_the_client_is_continued(entry, routed):
    span = built(entry(trace_id="0af7651916cd43dd8448eb211c80319c"), routed())
    assert span.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"


def test_known_bug_47_numbers_arrive_as_numbers(entry, routed):
    span = Span.FromString(built(entry(input_tokens=11, status=200), routed()).SerializeToString())
    found = attributes(span)
    assert found[names.INPUT_TOKENS].WhichOneof("value") == "int_value"
    assert found[names.INPUT_TOKENS].int_value == 11
    assert found[names.TEMPERATURE].WhichOneof("value") == "double_value"


@pytest.mark.parametrize(
    "changes",
    [
        {"params": {"model": "support-chat"}},
        {"params": {"model": "support-chat", "stream": True}, "first_chunk_ms": 30.0},
        {"params": {"model": "support-chat", "stream": True}, "first_chunk_ms": 30.0, "flags": ("DC",)},
    ],
)
def test_known_bug_49_stream_or_not_one_span_ends_at_the_last_byte(entry, routed, changes):
    span = built(entry(duration_ms=900.0, **changes), routed())
    assert span.end_time_unix_nano - span.start_time_unix_nano == 900_000_000
    assert all(event.time_unix_nano <= span.end_time_unix_nano for event in span.events)
    assert plain(span)[names.INPUT_TOKENS] == 120


def test_known_bug_50_cached_and_reasoning_tokens_stay_parts_of_their_totals(entry, routed):
    found = plain(
        built(entry(input_tokens=13675, cached_tokens=9216, output_tokens=1970, reasoning_tokens=956), routed())
    )
    assert found[names.INPUT_TOKENS] == 13675
    assert found[names.INPUT_TOKENS] - found[names.CACHE_READ_TOKENS] == 4459
    assert found[names.OUTPUT_TOKENS] == 1970
    assert found[names.REASONING_TOKENS] == 956


def test_known_bug_51_what_is_not_known_is_absent_never_empty(entry, routed):
    span = built(
        entry(
            response_id=None,
            response_model=None,
            input_tokens=None,
            output_tokens=None,
            finish_reasons=(),
            target=None,
            endpoint=None,
            params={},
        ),
        routed(qos_class=None, provider=None, model=None),
    )
    assert all(value.WhichOneof("value") is not None for value in attributes(span).values())
    assert all(value.string_value for value in attributes(span).values() if value.HasField("string_value"))
    for key in (names.RESPONSE_ID, names.RESPONSE_MODEL, names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.FINISH_REASONS):
        assert key not in plain(span)


def test_known_bug_53_sampled_request_has_a_span_and_the_other_none(entry, routed):
    assert built(entry(is_sampled=True), routed()).flags & 0x01
    assert build_span(entry(is_sampled=False), routed(), span_id=SPAN_ID) is None


def test_known_bug_54_every_list_has_a_scalar_twin_to_search_by(entry, routed):
    found = attributes(built(entry(finish_reasons=("stop", "length", "stop")), routed()))
    lists = {key for key, value in found.items() if value.HasField("array_value")}
    assert lists == {names.FINISH_REASONS}
    assert [value.string_value for value in found[names.FINISH_REASONS].array_value.values] == [
        "stop",
        "length",
        "stop",
    ]
    assert found[names.FINISH_REASON].string_value == "stop,length"


@pytest.mark.parametrize(
    "changes",
    [
        {"trace_id": None},
        {"span_id": None},
        {"trace_id": "0" * 32},
        {"span_id": "0" * 16},
        {"trace_id": "xyz"},
        {"span_id": "zz" * 8},
        {"span_id": "b7ad6b7169203331ff"},
    ],
)
def test_known_bug_56_without_envoys_context_no_second_trace_is_begun(entry, routed, changes):
    assert build_span(entry(**changes), routed(), span_id=SPAN_ID) is None


TEXTS = st.text(max_size=300) | st.just("\ud800")
PARAMS = st.one_of(TEXTS, st.floats(), st.booleans(), st.integers())


@given(
    params=st.dictionaries(
        st.sampled_from(["model", "temperature", "top_k", "seed", "n", "stream", "max_tokens"]), PARAMS
    ),
    headers=st.dictionaries(st.sampled_from(["x-context-id", "x-prompt-template", "x-trace-intent"]), TEXTS),
    answer=st.dictionaries(st.sampled_from(["x-model-confidence", "x-model-logit-entropy"]), TEXTS),
    tokens=st.integers(),
    reasons=st.lists(TEXTS, max_size=20),
    text=TEXTS,
)
def test_whatever_client_and_server_say_the_span_can_be_sent(params, headers, answer, tokens, reasons, text):
    hostile = replace(
        ENTRY,
        params=params,
        headers=headers,
        answer_headers=answer,
        input_tokens=tokens,
        finish_reasons=tuple(reasons),
        response_model=text,
        response_id=text,
        request_id=text,
    )
    span = built(hostile, replace(ROUTED, is_known_model=False))
    assert Span.FromString(span.SerializeToString()) == span
    assert all(len(value.string_value) <= MAX_HEADER_CHARS for value in attributes(span).values())


def test_parts_kept_from_one_span_never_show_in_another(entry, routed):
    first = built(entry(params={"model": "support-chat", "temperature": 0.2}), routed())
    second = built(entry(params={"model": "support-chat"}), routed())
    assert names.TEMPERATURE in plain(first)
    assert names.TEMPERATURE not in plain(second)
