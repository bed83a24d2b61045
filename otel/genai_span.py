"""The GenAI span of a finished request, as an OTLP message built from its log entry.

Decides the span's name, attributes, events and status; refuses to guess: what the entry does not know is absent,
never empty, zero or invented. No span is made where Envoy did not sample (sampling is decided once, by Envoy), where
the parent is unknown (an orphan would be a second trace), or where the request is no AI operation. Pure: the caller
brings the span's id. Called by exporter.py; metrics.py shares `operation_of` and `error_type_of`.

The message is filled directly: the SDK's span and encoder cost 126 us a request, this about 20. What repeats from
request to request is kept encoded and parsed in one step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeGuard

from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from pointsman.otel import names
from pointsman.router.entry import Param, RequestEntry, TryEntry
from pointsman.router.intent import PATH_INTENTS, known_intent, strip_query
from pointsman.router.outcome import CLIENT_ABORT_FLAGS
from pointsman.router.policy import Intent

OPERATIONS: dict[Intent, str] = {
    Intent.CHAT: "chat",
    Intent.SUMMARIZE: "chat",
    Intent.EXTRACT: "chat",
    Intent.CODE: "chat",
    Intent.VISION: "chat",
    Intent.COMPLETE: "text_completion",
    Intent.EMBED: "embeddings",
    Intent.IMAGE: "generate_content",
    Intent.SPEAK: "generate_content",
    Intent.RERANK: "rerank",
    Intent.TRANSCRIBE: "transcribe",
}
"""Operation by intent. The last two are no well-known values: the conventions have none that fits and allow own
ones."""

MAX_HEADER_CHARS = 256
"""Longest text that a span takes from a header, a body or an answer: they are the caller's to choose, the bill is
ours."""

MAX_TRACE_INTENT_CHARS = 64
"""The contract's bound for `x-trace-intent` (design section 4)."""

MAX_FINISH_REASONS = 16
"""Choices beyond this many do not show their finish reason: `n` is the client's to choose."""

MAX_EXACT_INTEGER = 2**53 - 1
"""JSON numbers arrive as doubles; above this one, the integer that the client meant is not known."""

BROKEN_ANSWER = {
    "UC": "upstream_closed",
    "UR": "upstream_reset",
    "LR": "local_reset",
    "UT": "upstream_timeout",
    "SI": "idle_timeout",
    "UMSDR": "duration_timeout",
    "DT": "duration_timeout",
    "UPE": "upstream_protocol_error",
}
"""Envoy's flags that can also break an answer whose status was sent already, as `error.type`."""

NO_ANSWER = BROKEN_ANSWER | {
    "UF": "connect_failure",
    "UH": "no_healthy_upstream",
    "UO": "upstream_overflow",
    "LH": "failed_health_check",
    "DF": "dns_failure",
    "OM": "proxy_overload",
}
"""Flags that say why Envoy answered by itself, as `error.type`. Others (NR, RL, URX, …) say less than the status
does."""

STREAM_ERROR = "stream_error"
"""`error.type` of an answer that reported its own failure after a good status."""

OTHER_ERROR = "_OTHER"
"""The conventions' word for a failure without a known cause: no status was sent and no flag says why."""

_SPAN_FLAGS = (
    0x01 | SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
)  # sampled, and the parent is another process's
_LATEST_UNIX_NS = 2**64 - 1
_ZERO_TRACE = bytes(16)
_ZERO_SPAN = bytes(8)


@dataclass(frozen=True, slots=True)
class Routed:
    """What the route table knows about a request beyond its log entry; the sidecar looks it up by the entry's row.

    `model` is the policy's model that was chosen, `provider` its provider; None where the table refused.
    `is_known_model`: whether the model that the client named is the policy's (only then it may be part of a span's
    name).
    """

    route: str
    reason: str
    qos_class: str | None
    intent: str | None
    provider: str | None
    model: str | None
    is_canary: bool
    is_known_model: bool


def build_span(entry: RequestEntry, routed: Routed, *, span_id: bytes, tries: Sequence[TryEntry] = ()) -> Span | None:
    """Return the request's GenAI span, child of Envoy's SERVER span, or None where there is none to make.

    `tries` give each retry its time; without them one `retry` event at the span's start tells that there were some.
    """
    operation = operation_of(entry, routed)
    trace_id, parent_id = _id(entry.trace_id, _ZERO_TRACE), _id(entry.span_id, _ZERO_SPAN)
    if not entry.is_sampled or trace_id is None or parent_id is None or operation is None:
        return None
    model = _text(entry.params.get("model"))
    known_model = model if routed.is_known_model else None
    span = Span.FromString(_repeated_part(operation, routed, entry.target, entry.endpoint, known_model))
    span.trace_id = trace_id
    span.span_id = span_id
    span.parent_span_id = parent_id
    span.flags = _SPAN_FLAGS
    span.start_time_unix_nano = _time_in(entry, 0)
    span.end_time_unix_nano = _time_in(entry, entry.duration_ms)
    if model is not None and known_model is None:
        span.attributes.add(key=names.REQUEST_MODEL).value.string_value = model
    error_type = error_type_of(entry)
    if error_type is not None:
        span.status.code = Status.STATUS_CODE_ERROR  # no description: servers echo the prompt in their error texts
        span.attributes.add(key=names.ERROR_TYPE).value.string_value = error_type
    elif not CLIENT_ABORT_FLAGS.isdisjoint(entry.flags):
        span.attributes.add(key=names.CLIENT_ABORT).value.bool_value = True
    _add_params(span, entry)
    _add_headers(span, entry)
    _add_answer(span, entry, is_broken=error_type is not None and 0 < entry.status < 400)
    _add_events(span, entry, tries)
    return span


def operation_of(entry: RequestEntry, routed: Routed) -> str | None:
    """Return the operation's name, or None for what is no AI operation.

    The API's path decides, as the conventions ask; on other paths the intent does.
    """
    intent = PATH_INTENTS.get(strip_query(entry.path)) or known_intent(routed.intent)
    return OPERATIONS[intent] if intent is not None else None


def error_type_of(entry: RequestEntry) -> str | None:
    """Return why the request failed, as a word from a closed list or the HTTP status as text; None if it did not.

    4xx is a failure here (the span is a client's, of the model server). A client that left is none: nobody failed, and
    the conventions leave the status unset for it.
    """
    status, flags = entry.status, entry.flags
    if status >= 400:
        return (_cause(flags, NO_ANSWER) if status >= 500 else None) or str(status)
    if flags:
        if not CLIENT_ABORT_FLAGS.isdisjoint(flags):
            return None
        cause = _cause(flags, BROKEN_ANSWER if status > 0 else NO_ANSWER)
        if cause is not None:
            return cause
    if status <= 0:
        return OTHER_ERROR
    return STREAM_ERROR if "error" in entry.finish_reasons else None


def is_token_count(tokens: int | None) -> TypeGuard[int]:
    """Whether a count that a server reported is known and can be one."""
    return tokens is not None and 0 <= tokens <= MAX_EXACT_INTEGER


def read_confidence(answer_headers: Mapping[str, str]) -> float | None:
    """Return the answer's confidence, or None where it is absent or not in 0..1."""
    value = _number_text(answer_headers.get("x-model-confidence"))
    return value if value is not None and 0.0 <= value <= 1.0 else None


def read_logit_entropy(answer_headers: Mapping[str, str]) -> float | None:
    """Return the answer's logit entropy as the server reports it, or None where it is absent or negative."""
    value = _number_text(answer_headers.get("x-model-logit-entropy"))
    return value if value is not None and value >= 0.0 else None


@lru_cache(maxsize=1024)  # rows x endpoints of a large policy; all keys are the policy's words, never the client's
def _repeated_part(
    operation: str, routed: Routed, target: str | None, endpoint: str | None, known_model: str | None
) -> bytes:
    span = Span(kind=Span.SPAN_KIND_CLIENT, name=operation if known_model is None else f"{operation} {known_model}")
    texts = (
        (names.OPERATION, operation),
        (names.PROVIDER, routed.provider or names.OTHER_PROVIDER),
        (names.REQUEST_MODEL, known_model),
        (names.TARGET, target),
        (names.REASON, routed.reason),
        (names.ROUTE, routed.route),
        (names.QOS_CLASS, routed.qos_class),
        (names.INTENT, routed.intent),
    )
    for key, text in texts:
        if text:
            span.attributes.add(key=key).value.string_value = text
    span.attributes.add(key=names.CANARY).value.bool_value = routed.is_canary
    host, port = _host_and_port(endpoint)
    if host:
        span.attributes.add(key=names.SERVER_ADDRESS).value.string_value = host
        if port is not None:
            span.attributes.add(key=names.SERVER_PORT).value.int_value = port
    return span.SerializeToString()


_DOUBLES = (
    ("temperature", names.TEMPERATURE),
    ("top_p", names.TOP_P),
    ("frequency_penalty", names.FREQUENCY_PENALTY),
    ("presence_penalty", names.PRESENCE_PENALTY),
)
_INTEGERS = (("top_k", names.TOP_K), ("seed", names.SEED))


def _add_params(span: Span, entry: RequestEntry) -> None:
    add = span.attributes.add
    params = entry.params
    if not params:
        return
    for param, key in _DOUBLES:
        if param in params and (number := _number(params[param])) is not None:
            add(key=key).value.double_value = number
    for param, key in _INTEGERS:
        if param in params and (integer := _integer(params[param])) is not None:
            add(key=key).value.int_value = integer
    max_tokens = _integer(params.get("max_completion_tokens"))
    if max_tokens is None:
        max_tokens = _integer(params.get("max_tokens"))
    if max_tokens is not None:
        add(key=names.MAX_TOKENS).value.int_value = max_tokens
    choices = _integer(params.get("n"))
    if choices is not None and choices != 1:
        add(key=names.CHOICE_COUNT).value.int_value = choices
    if params.get("stream") is True:
        add(key=names.STREAM).value.bool_value = True
    level = _text(params.get("reasoning_effort"))
    if level is not None:
        add(key=names.REASONING_LEVEL).value.string_value = level


def _add_headers(span: Span, entry: RequestEntry) -> None:
    add = span.attributes.add
    headers = entry.headers
    if request_id := _text(entry.request_id):
        add(key=names.REQUEST_ID).value.string_value = request_id
    if not headers:
        return
    if template := _text(headers.get("x-prompt-template")):
        add(key=names.PROMPT_NAME).value.string_value = template
        if version := _text(headers.get("x-prompt-template-version")):
            add(key=names.PROMPT_VERSION).value.string_value = version
    if conversation := _text(headers.get("x-context-id")) or _text(headers.get("x-session-id")):
        add(key=names.CONVERSATION_ID).value.string_value = conversation
    if trace_intent := _text(headers.get("x-trace-intent"), MAX_TRACE_INTENT_CHARS):
        add(key=names.TRACE_INTENT).value.string_value = trace_intent
    if client_trace_id := _text(headers.get("x-trace-id")):
        add(key=names.CLIENT_TRACE_ID).value.string_value = client_trace_id


def _add_answer(span: Span, entry: RequestEntry, *, is_broken: bool) -> None:
    add = span.attributes.add
    if entry.status > 0:
        add(key=names.STATUS_CODE).value.int_value = entry.status
    add(key=names.ATTEMPTS).value.int_value = entry.attempts
    if entry.stop_sequence_count is not None:
        add(key=names.STOP_COUNT).value.int_value = entry.stop_sequence_count
    for key, tokens in (
        (names.INPUT_TOKENS, entry.input_tokens),
        (names.OUTPUT_TOKENS, entry.output_tokens),
        (names.CACHE_READ_TOKENS, entry.cached_tokens),
        (names.REASONING_TOKENS, entry.reasoning_tokens),
    ):
        if is_token_count(tokens):
            add(key=key).value.int_value = tokens
    if response_model := _text(entry.response_model):
        add(key=names.RESPONSE_MODEL).value.string_value = response_model
    if response_id := _text(entry.response_id):
        add(key=names.RESPONSE_ID).value.string_value = response_id
    if entry.finish_reasons or is_broken:
        _add_finish_reasons(span, entry.finish_reasons, is_broken=is_broken)
    if entry.first_chunk_ms is not None and entry.params.get("stream") is True:
        add(key=names.TIME_TO_FIRST_CHUNK).value.double_value = entry.first_chunk_ms / 1_000
    if entry.answer_headers:
        if (confidence := read_confidence(entry.answer_headers)) is not None:
            add(key=names.CONFIDENCE).value.double_value = confidence
        if (entropy := read_logit_entropy(entry.answer_headers)) is not None:
            add(key=names.LOGIT_ENTROPY).value.double_value = entropy


def _add_finish_reasons(span: Span, reasons: tuple[str, ...], *, is_broken: bool) -> None:
    texts = [text for reason in reasons[:MAX_FINISH_REASONS] if (text := _text(reason))]
    if is_broken and "error" not in texts:
        texts.append("error")
    if not texts:
        return
    values = span.attributes.add(key=names.FINISH_REASONS).value.array_value.values
    for text in texts:
        values.add(string_value=text)
    joined = texts[0] if len(texts) == 1 else ",".join(dict.fromkeys(texts))[:MAX_HEADER_CHARS]
    span.attributes.add(key=names.FINISH_REASON).value.string_value = joined


def _add_events(span: Span, entry: RequestEntry, tries: Sequence[TryEntry]) -> None:
    if entry.attempts > 1:
        retries = [one for one in tries if one.attempt > 1]
        for one in retries:
            event = span.events.add(name=names.EVENT_RETRY, time_unix_nano=_time_in(one, 0))
            event.attributes.add(key=names.RESEND_COUNT).value.int_value = one.attempt - 1
            event.attributes.add(key=names.TARGET).value.string_value = one.target
        if not retries:
            event = span.events.add(name=names.EVENT_RETRY, time_unix_nano=_time_in(entry, 0))
            event.attributes.add(key=names.RESEND_COUNT).value.int_value = entry.attempts - 1
    if entry.first_chunk_ms is not None:
        span.events.add(name=names.EVENT_FIRST_CHUNK, time_unix_nano=_time_in(entry, entry.first_chunk_ms))


def _cause(flags: tuple[str, ...], causes: Mapping[str, str]) -> str | None:
    return next((causes[flag] for flag in flags if flag in causes), None)


def _time_in(entry: RequestEntry | TryEntry, offset_ms: float) -> int:
    """Return the time, within what a span can hold: a clock that is wrong must not cost the batch."""
    return min(max(0, entry.started_unix_ns + max(0, round(offset_ms * 1_000_000))), _LATEST_UNIX_NS)


def _id(text: str | None, zero: bytes) -> bytes | None:
    """Return the id's bytes, or None where it is absent, zero, or not of its kind's length."""
    if text is None or len(text) != 2 * len(zero):
        return None
    try:
        value = bytes.fromhex(text)
    except ValueError:
        return None
    return value if value != zero and len(value) == len(zero) else None


def _text(value: Param | None, max_chars: int = MAX_HEADER_CHARS) -> str | None:
    """Return the text, cut and free of control and other unprintable characters; None where nothing is left."""
    if type(value) is not str:
        return None
    cut = value[:max_chars]
    if not cut.isprintable():
        cut = "".join(char for char in cut if char.isprintable())
    return cut or None


def _number(value: Param | None) -> float | None:
    """Return a finite JSON number as a double; a JSON boolean is none."""
    if type(value) is not float and type(value) is not int:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _integer(value: Param | None) -> int | None:
    """Return an integral JSON number that a double holds exactly."""
    number = _number(value)
    if number is None or not number.is_integer() or abs(number) > MAX_EXACT_INTEGER:
        return None
    return int(number)


def _number_text(text: str | None) -> float | None:
    """Return a header's finite number."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _host_and_port(endpoint: str | None) -> tuple[str | None, int | None]:
    """Split `host:port` or `[v6]:port`; a text without a port is all host."""
    if not endpoint:
        return None, None
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or (":" in host and not host.startswith("[")):
        return endpoint, None
    return host.removeprefix("[").removesuffix("]"), int(port)
