"""Traces end to end: one trace, typed attributes, sampling as the caller asked, and no word of what was said."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

import aiohttp
import pytest
from pointsman.otel.trace_receiver import ReceivedSpan
from stack import CANARY, CHAT, STABLE, Answer, Mirror, Stack

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

SERVER, CLIENT = 2, 3
ERROR = 2
SPANS = 3
"""Of a request with one try: Envoy's SERVER span, the try's, and the agent's GenAI span."""

AGENT, ENVOY = "pointsman-agent", "pointsman-envoy"


class Caller:
    """A client that is itself traced: each has a trace of its own."""

    def __init__(self, *, is_sampled: bool = True) -> None:
        self.trace_id = secrets.token_hex(16)
        self.span_id = secrets.token_hex(8)
        self.traceparent = f"00-{self.trace_id}-{self.span_id}-{is_sampled:02}"

    @property
    def headers(self) -> dict[str, str]:
        return {"traceparent": self.traceparent, "model-version": "v2.2"}


async def spans_of(stack: Stack, trace_id: str, count: int = SPANS) -> tuple[ReceivedSpan, ...]:
    return await stack.receiver.wait_for(count, trace_id=trace_id, timeout_s=15)


async def all_spans_of(stack: Stack, trace_id: str) -> tuple[ReceivedSpan, ...]:
    """The trace's spans, once a later trace has arrived whole: spans leave in order."""
    later = Caller()
    await stack.chat(later.headers)
    await spans_of(stack, later.trace_id)
    return tuple(span for span in stack.receiver.spans if span.trace_id == trace_id)


def genai(spans: tuple[ReceivedSpan, ...]) -> ReceivedSpan:
    """The one span that the agent made."""
    (found,) = (span for span in spans if span.service == AGENT)
    return found


def server(spans: tuple[ReceivedSpan, ...]) -> ReceivedSpan:
    """The one SERVER span that Envoy made."""
    (found,) = (span for span in spans if span.service == ENVOY and span.kind == SERVER)
    return found


def having(span: ReceivedSpan, expected: Mapping[str, object]) -> dict[str, object]:
    """The span's attributes under the keys of `expected`, each with its type."""
    return {key: (type(value), value) for key in expected if (value := span.attributes.get(key)) is not None}


def typed(expected: Mapping[str, object]) -> dict[str, object]:
    return {key: (type(value), value) for key, value in expected.items()}


# ---- attributes


async def test_known_bug_47_genai_span_has_typed_attributes_under_the_server_span(stack: Stack) -> None:
    caller = Caller()
    headers = {
        "traceparent": caller.traceparent,
        "model-version": "v2.3-beta",
        "x-prompt-template": "refund-answer",
        "x-prompt-template-version": "7",
        "x-context-id": "customer-17",
        "x-trace-intent": "audit",
        "x-intent": "summarize",
        "x-qos-class": "batch",
    }
    parameters = {"temperature": 0.7, "top_k": 40, "top_p": 1, "max_tokens": 64, "seed": 11, "stop": ["a", "b"]}
    await stack.chat(headers, **parameters)
    spans = await spans_of(stack, caller.trace_id)
    span, parent = genai(spans), server(spans)
    assert ("chat support-chat", CLIENT, parent.span_id) == (span.name, span.kind, span.parent_id)
    assert caller.span_id == parent.parent_id
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "support-chat",
        "gen_ai.request.temperature": 0.7,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.seed": 11,
        "gen_ai.prompt.name": "refund-answer",
        "gen_ai.prompt.version": "7",
        "gen_ai.conversation.id": "customer-17",
        "gen_ai.response.model": "support-chat",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 16,
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": stack.values["CANARY"],
        "pointsman.target": CANARY,
        "pointsman.reason": "pinned",
        "pointsman.route.name": "support",
        "pointsman.intent.label": "summarize",
        "pointsman.canary": True,
        "pointsman.attempts": 1,
        "pointsman.trace_intent": "audit",
        "pointsman.stop_sequences.count": 2,
    }
    assert typed(expected) == having(span, expected)
    assert "gen_ai.request.stream" not in span.attributes
    assert "gen_ai.response.time_to_first_chunk" not in span.attributes
    assert (CANARY, "pinned", "refund-answer") == tuple(
        parent.attributes[key] for key in ("pointsman.target", "pointsman.reason", "gen_ai.prompt.name")
    )


async def test_each_choice_has_its_finish_reason(stack: Stack) -> None:
    caller = Caller()
    await stack.chat(caller.headers, n=3)
    expected = {
        "gen_ai.request.choice.count": 3,
        "gen_ai.usage.output_tokens": 48,
        "gen_ai.response.finish_reasons": ("stop", "stop", "stop"),
        "pointsman.finish_reason": "stop",
    }
    assert typed(expected) == having(genai(await spans_of(stack, caller.trace_id)), expected)


async def test_stream_has_its_first_chunk_and_tokens(stack: Stack) -> None:
    caller = Caller()
    await stack.control("STABLE", ttftMs=40)
    try:
        await stack.chat(caller.headers, stream=True, stream_options={"include_usage": True}, max_tokens=5)
    finally:
        await stack.control("STABLE", ttftMs=0)
    span = genai(await spans_of(stack, caller.trace_id))
    expected = {
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ("length",),
        "pointsman.finish_reason": "length",
    }
    assert typed(expected) == having(span, expected)
    first_chunk_s = span.attributes["gen_ai.response.time_to_first_chunk"]
    assert isinstance(first_chunk_s, float)
    assert 0.04 <= first_chunk_s <= (span.end_unix_ns - span.start_unix_ns) / 1e9
    assert ("first_chunk",) == span.events


async def test_stream_without_usage_has_no_token_counts(stack: Stack) -> None:
    caller = Caller()
    await stack.chat(caller.headers, stream=True)
    attributes = genai(await spans_of(stack, caller.trace_id)).attributes
    assert ("stop",) == attributes["gen_ai.response.finish_reasons"]
    assert [] == [key for key in attributes if key.startswith("gen_ai.usage.")]


async def test_known_bug_1_usage_is_found_wherever_the_stream_is_cut(stack: Stack, mirror: Mirror) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":26,"completion_tokens":8,"total_tokens":34}}\r\n\r\n'
    stop = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\r\n\r\n'
    events = stop + usage + b"data: [DONE]\r\n\r\n"
    mirror.pieces = [events[at : at + 1] for at in range(len(events))]
    mirror.go_on.set()
    caller = Caller()
    await stack.chat({"traceparent": caller.traceparent}, model="mirror", stream=True)
    span = genai(await spans_of(stack, caller.trace_id))
    assert (26, 8, ("stop",)) == (
        span.attributes["gen_ai.usage.input_tokens"],
        span.attributes["gen_ai.usage.output_tokens"],
        span.attributes["gen_ai.response.finish_reasons"],
    )


async def test_known_bug_50_cached_and_reasoning_tokens_are_parts_not_additions(stack: Stack, mirror: Mirror) -> None:
    usage = (
        b'data: {"choices":[],"usage":{"prompt_tokens":13675,"completion_tokens":1970,'
        b'"prompt_tokens_details":{"cached_tokens":9216},"completion_tokens_details":{"reasoning_tokens":956}}}\n\n'
    )
    mirror.pieces = [usage]
    caller = Caller()
    await stack.chat({"traceparent": caller.traceparent}, model="mirror", stream=True)
    attributes = genai(await spans_of(stack, caller.trace_id)).attributes
    assert (13_675, 9_216, 1_970, 956) == (
        attributes["gen_ai.usage.input_tokens"],
        attributes["gen_ai.usage.cache_read.input_tokens"],
        attributes["gen_ai.usage.output_tokens"],
        attributes["gen_ai.usage.reasoning.output_tokens"],
    )


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
async def test_known_bug_49_each_request_has_one_span(stack: Stack, *, is_streaming: bool) -> None:
    caller = Caller()
    await stack.chat(caller.headers, stream=is_streaming)
    spans = await all_spans_of(stack, caller.trace_id)
    assert SPANS == len(spans)
    assert genai(spans).end_unix_ns >= genai(spans).start_unix_ns > 0


async def test_known_bug_49_abandoned_stream_has_one_span_that_says_so(stack: Stack, mirror: Mirror) -> None:
    caller = Caller()
    mirror.pieces = (b'data: {"choices":[]}\n\n', b"data: never sent\n\n")
    question = {"model": "mirror", "stream": True}
    async with stack.session.post(
        stack.url + CHAT, json=question, headers={"traceparent": caller.traceparent}
    ) as response:
        await response.content.readany()
        response.close()
    await spans_of(stack, caller.trace_id)
    spans = await all_spans_of(stack, caller.trace_id)
    assert SPANS == len(spans)
    assert genai(spans).attributes["pointsman.client_abort"] is True
    assert genai(spans).status_code != ERROR


async def test_known_bug_13_stream_that_breaks_off_is_an_error(stack: Stack) -> None:
    caller = Caller()
    question = {"model": "cut-chat", "messages": [], "stream": True}
    async with stack.session.post(
        stack.url + CHAT, json=question, headers={"traceparent": caller.traceparent}
    ) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    span = genai(await spans_of(stack, caller.trace_id))
    assert (ERROR, ("error",)) == (span.status_code, span.attributes["gen_ai.response.finish_reasons"])
    assert span.attributes["error.type"] in ("upstream_closed", "upstream_reset", "upstream_protocol_error")


async def test_refused_request_has_a_span_with_its_status(stack: Stack) -> None:
    caller = Caller()
    await stack.chat({"traceparent": caller.traceparent}, model="nobody")
    spans = await all_spans_of(stack, caller.trace_id)
    span = genai(spans)
    assert ("chat", "refused", "404", "nobody") == (
        span.name,  # a client cannot make up operation names
        span.attributes["pointsman.reason"],
        span.attributes["error.type"],
        span.attributes["gen_ai.request.model"],
    )
    assert [] == [one for one in spans if one.service == ENVOY and one.kind == CLIENT]


async def test_retried_request_has_a_span_for_each_try_and_one_for_the_whole(stack: Stack) -> None:
    caller = Caller()
    await stack.chat({"traceparent": caller.traceparent}, model="busy-chat")
    spans = await spans_of(stack, caller.trace_id, SPANS + 1)
    span = genai(spans)
    assert (2, "small-chat@v1", "fallback") == (
        span.attributes["pointsman.attempts"],
        span.attributes["pointsman.target"],
        span.attributes["pointsman.reason"],
    )
    assert 2 == len([one for one in spans if one.service == ENVOY and one.kind == CLIENT])


async def test_known_bug_51_answer_without_id_and_model_leaves_attributes_out(stack: Stack, mirror: Mirror) -> None:
    caller = Caller()
    await stack.chat({"traceparent": caller.traceparent}, model="mirror")
    attributes = genai(await spans_of(stack, caller.trace_id)).attributes
    assert "mirror" == attributes["gen_ai.request.model"]
    assert {"gen_ai.response.id", "gen_ai.response.model", "gen_ai.usage.input_tokens"}.isdisjoint(attributes)
    assert None not in attributes.values()
    assert "" not in attributes.values()


# ---- propagation


async def test_known_bugs_45_and_46_servers_see_our_span_in_the_callers_trace(stack: Stack, mirror: Mirror) -> None:
    caller = Caller()
    await stack.chat({"traceparent": caller.traceparent}, model="mirror")
    (told,) = mirror.seen[0].lines("traceparent")
    version, trace_id, span_id, flags = told.split("-")
    assert ("00", caller.trace_id, "01") == (version, trace_id, flags)
    tries = {one.span_id for one in await spans_of(stack, caller.trace_id) if one.service == ENVOY}
    assert span_id in tries
    assert caller.span_id != span_id


async def test_request_without_a_trace_gets_one(stack: Stack, mirror: Mirror) -> None:
    answer = await stack.chat(model="mirror")
    (told,) = mirror.seen[0].lines("traceparent")
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", told)
    assert answer.headers["x-trace-id"] == told.split("-")[1]
    spans = await spans_of(stack, told.split("-")[1])
    assert "" == server(spans).parent_id


async def test_known_bug_53_unsampled_trace_is_passed_on_and_not_exported(stack: Stack, mirror: Mirror) -> None:
    caller = Caller(is_sampled=False)
    answer = await stack.chat({"traceparent": caller.traceparent}, model="mirror")
    assert 200 == answer.status
    (told,) = mirror.seen[0].lines("traceparent")
    assert (caller.trace_id, "00") == (told.split("-")[1], told.split("-")[3])
    assert () == await all_spans_of(stack, caller.trace_id)


async def test_tracestate_and_baggage_pass(stack: Stack, mirror: Mirror) -> None:
    caller = Caller()
    state, baggage = "vendor=abc123,other=t61rcWkgMzE", "userId=alice,isProduction=false"
    headers = {"traceparent": caller.traceparent, "tracestate": state, "baggage": baggage}
    await stack.chat(headers, model="mirror")
    assert ([state], [baggage]) == (mirror.seen[0].lines("tracestate"), mirror.seen[0].lines("baggage"))


async def test_request_id_is_kept_or_minted(stack: Stack, mirror: Mirror) -> None:
    caller = Caller()
    await stack.chat({"traceparent": caller.traceparent, "x-request-id": "order-4711"}, model="mirror")
    await stack.chat(model="mirror")
    kept, minted = (seen.lines("x-request-id") for seen in mirror.seen)
    assert ["order-4711"] == kept
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", minted[0])
    assert "order-4711" == genai(await spans_of(stack, caller.trace_id)).attributes["pointsman.request_id"]


async def test_trace_id_is_told_and_the_clients_own_is_an_attribute(stack: Stack) -> None:
    caller = Caller()
    answer = await stack.chat({**caller.headers, "x-trace-id": "ticket-9"})
    assert caller.trace_id == answer.headers["x-trace-id"]
    assert [caller.trace_id] == answer.headers.getall("x-trace-id")
    assert "ticket-9" == genai(await spans_of(stack, caller.trace_id)).attributes["pointsman.client_trace_id"]


async def test_refusals_tell_the_trace_id_too(stack: Stack) -> None:
    caller = Caller()
    answer = await stack.chat({**caller.headers}, model="nobody")
    assert (404, caller.trace_id) == (answer.status, answer.headers["x-trace-id"])


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00",
        "garbage",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-zz",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" * 50,
    ],
)
async def test_malformed_traceparent_does_not_break_a_request(stack: Stack, mirror: Mirror, traceparent: str) -> None:
    answer = await stack.chat({"traceparent": traceparent, "tracestate": "=,=,"}, model="mirror")
    assert (200, mirror.name) == (answer.status, answer.target)
    assert 1 == len(mirror.seen)
    assert re.fullmatch(r"([0-9a-f]{32})?", answer.headers.get("x-trace-id", ""))


async def test_known_limits_of_tracestate_and_baggage_do_not_break_a_request(stack: Stack, mirror: Mirror) -> None:
    caller = Caller()
    headers = {
        "traceparent": caller.traceparent,
        "tracestate": ",".join(f"k{number}=v" for number in range(40)),
        "baggage": ",".join(f"k{number}=v" for number in range(200)),
    }
    assert 200 == (await stack.chat(headers, model="mirror")).status
    assert [headers["baggage"]] == mirror.seen[0].lines("baggage")


# ---- privacy


async def leaks(stack: Stack, word: str) -> list[str]:
    """Where the word is found: spans, logs, pages."""
    places: dict[str, bytes] = {
        "spans": b"".join(stack.receiver.raw),
        "the agent's log": stack.log.read_bytes(),
        "Envoy's log": (stack.state / "envoy.log").read_bytes(),
    }
    for page in ("/metrics", "/table", "/xds", "/readyz", "/"):
        places[page] = (await stack.admin(page)).body
    openmetrics = await stack.admin("/metrics", headers={"accept": "application/openmetrics-text"})
    places["/metrics as OpenMetrics"] = openmetrics.body
    return [place for place, text in places.items() if word.encode() in text]


async def send_secrets(stack: Stack, word: str, model: str) -> tuple[Caller, Answer]:
    """A chat request with the word wherever content or a credential may be."""
    caller = Caller()
    headers = {
        "traceparent": caller.traceparent,
        "authorization": f"Bearer {word}",
        "cookie": f"session={word}",
        "x-api-key": word,
        "api-key": word,
        "baggage": f"user={word}",
    }
    called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": f'{{"x":"{word}"}}'}}
    answer = await stack.chat(
        headers,
        model=model,
        messages=[
            {"role": "system", "content": f"You are {word}"},
            {"role": "user", "content": word, "name": word},
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "1", "content": word},
        ],
        stop=[word],
        user=word,
        metadata={"note": word},
        tools=[{"type": "function", "function": {"name": "f", "description": word}}],
    )
    return caller, answer


async def test_nothing_of_a_prompt_or_a_credential_is_told(stack: Stack, mirror: Mirror) -> None:
    word = f"canary{secrets.token_hex(8)}"
    caller, answer = await send_secrets(stack, word, "mirror")
    assert 200 == answer.status
    assert word.encode() in mirror.seen[0].body  # it did go through
    await spans_of(stack, caller.trace_id)
    assert [] == await leaks(stack, word)


async def test_nothing_of_a_servers_error_text_is_told(stack: Stack, mirror: Mirror) -> None:
    word = f"canary{secrets.token_hex(8)}"
    mirror.status = 500  # and the body says the prompt again
    caller, answer = await send_secrets(stack, word, "mirror")
    assert 500 == answer.status
    assert word.encode() in answer.body
    assert ERROR == genai(await spans_of(stack, caller.trace_id)).status_code
    assert [] == await leaks(stack, word)


async def test_nothing_of_an_answer_is_told(stack: Stack, mirror: Mirror) -> None:
    word = f"canary{secrets.token_hex(8)}"
    mirror.pieces = [b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % word.encode()]
    caller = Caller()
    answer = await stack.chat({"traceparent": caller.traceparent}, model="mirror", stream=True)
    assert word.encode() in answer.body
    await spans_of(stack, caller.trace_id)
    assert [] == await leaks(stack, word)


@pytest.mark.parametrize(
    "body",
    [b'{"model": "support-chat", "messages": "%s"', b'{"model": ["%s"]}', b'{"model": "%s\\u0001"}', b"%s"],
    ids=["broken", "list", "control", "no JSON"],
)
async def test_nothing_of_a_refused_body_is_told(stack: Stack, body: bytes) -> None:
    word = f"canary{secrets.token_hex(8)}"
    caller = Caller()
    answer = await stack.post(body % word.encode(), {"traceparent": caller.traceparent})
    assert answer.status in (400, 404)
    assert word.encode() not in answer.body
    await all_spans_of(stack, caller.trace_id)
    assert [] == await leaks(stack, word)


async def test_credentials_in_a_query_are_not_told(stack: Stack) -> None:
    word = f"canary{secrets.token_hex(8)}"
    caller = Caller()
    answer = await stack.post(
        b'{"model": "support-chat", "messages": []}', caller.headers, path=f"{CHAT}?api-version=1&key={word}"
    )
    assert (200, STABLE) == (answer.status, answer.target)
    spans = await spans_of(stack, caller.trace_id)
    assert [] == [(one.name, key) for one in spans for key, value in one.attributes.items() if word in str(value)]
    assert [] == await leaks(stack, word)
