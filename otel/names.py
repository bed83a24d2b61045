"""Every attribute, event, label and metric name that pointsman emits, each with its source.

Hard-coded on purpose: a dependency's update must not rename what dashboards read. Read by genai_span.py, exporter.py
and metrics.py; docs/observability.md is tested against SPAN_ATTRIBUTES and metrics.INSTRUMENTS. Refuses to mint new
`gen_ai.*` keys: what the conventions lack is under `pointsman.*`.

SEMCONV note. The GenAI conventions moved to their own repository in 2026 and are all in Development; only `error.type`,
`server.address` and `server.port` are Stable. A new product has no older set to keep, so the newest names are used
(`gen_ai.provider.name`, not `gen_ai.system`; `gen_ai.prompt.version`; token counters, not `gen_ai.client.token.usage`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SEMCONV = "open-telemetry/semantic-conventions-genai@024a4f94"
"""The copy of the conventions that the names were read in. It links to version 1.44 of the general conventions."""

SCOPE_NAME = "pointsman.otel"
"""Instrumentation scope of the spans."""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION_ID = "gen_ai.conversation.id"
PROMPT_NAME = "gen_ai.prompt.name"
PROMPT_VERSION = "gen_ai.prompt.version"
REQUEST_MODEL = "gen_ai.request.model"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
TOP_K = "gen_ai.request.top_k"
MAX_TOKENS = "gen_ai.request.max_tokens"
SEED = "gen_ai.request.seed"
CHOICE_COUNT = "gen_ai.request.choice.count"
STREAM = "gen_ai.request.stream"
FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
REASONING_LEVEL = "gen_ai.request.reasoning.level"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
STATUS_CODE = "http.response.status_code"
RESEND_COUNT = "http.request.resend_count"

TARGET = "pointsman.target"
REASON = "pointsman.reason"
ROUTE = "pointsman.route.name"
QOS_CLASS = "pointsman.qos.class"
INTENT = "pointsman.intent.label"
CANARY = "pointsman.canary"
ATTEMPTS = "pointsman.attempts"
REQUEST_ID = "pointsman.request_id"
TRACE_INTENT = "pointsman.trace_intent"
CLIENT_TRACE_ID = "pointsman.client_trace_id"
CLIENT_ABORT = "pointsman.client_abort"
FINISH_REASON = "pointsman.finish_reason"
STOP_COUNT = "pointsman.stop_sequences.count"
CONFIDENCE = "pointsman.model.confidence"
LOGIT_ENTROPY = "pointsman.model.logit_entropy"

EVENT_FIRST_CHUNK = "first_chunk"
EVENT_RETRY = "retry"

OTHER = "other"
"""Label value for what is not on its closed list."""

NONE = "none"
"""Label value for "there is none": no target answered, no route took the request, no status was sent."""

CANNED = "canned"
"""Label value for answers that the sidecar gave by itself as the last rung."""

OTHER_PROVIDER = "_OTHER"
"""`gen_ai.provider.name` is required; where no model server was chosen (a refusal) it has this value."""


class AttributeType(StrEnum):
    """OTLP type of an attribute's value."""

    STRING = "string"
    INT = "int"
    DOUBLE = "double"
    BOOL = "boolean"
    STRINGS = "string[]"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A span attribute: its type, who defined it and what pointsman puts into it."""

    name: str
    type: AttributeType
    source: str
    meaning: str


_GENAI = "GenAI conventions"
_GENERAL = "general conventions"
_OWN = "pointsman"
_T = AttributeType

SPAN_ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(OPERATION, _T.STRING, _GENAI, "the API's operation, see the map below; always there"),
    Attribute(PROVIDER, _T.STRING, _GENAI, "the model's `provider`; `_OTHER` where no model was chosen"),
    Attribute(REQUEST_MODEL, _T.STRING, _GENAI, "`model` of the body, as the client sent it"),
    Attribute(TEMPERATURE, _T.DOUBLE, _GENAI, "`temperature`, a double also for integer JSON"),
    Attribute(TOP_P, _T.DOUBLE, _GENAI, "`top_p`"),
    Attribute(TOP_K, _T.INT, _GENAI, "`top_k`"),
    Attribute(MAX_TOKENS, _T.INT, _GENAI, "`max_completion_tokens`, else `max_tokens`"),
    Attribute(SEED, _T.INT, _GENAI, "`seed`; absent where a double cannot hold it exactly"),
    Attribute(CHOICE_COUNT, _T.INT, _GENAI, "`n`, only if it is not 1"),
    Attribute(STREAM, _T.BOOL, _GENAI, "only if true"),
    Attribute(FREQUENCY_PENALTY, _T.DOUBLE, _GENAI, "`frequency_penalty`"),
    Attribute(PRESENCE_PENALTY, _T.DOUBLE, _GENAI, "`presence_penalty`"),
    Attribute(REASONING_LEVEL, _T.STRING, _GENAI, "`reasoning_effort`, the value sent"),
    Attribute(PROMPT_NAME, _T.STRING, _GENAI, "header `x-prompt-template`"),
    Attribute(PROMPT_VERSION, _T.STRING, _GENAI, "header `x-prompt-template-version`, only with a name"),
    Attribute(CONVERSATION_ID, _T.STRING, _GENAI, "header `x-context-id`, else `x-session-id`"),
    Attribute(RESPONSE_MODEL, _T.STRING, _GENAI, "`model` of the answer"),
    Attribute(RESPONSE_ID, _T.STRING, _GENAI, "`id` of the answer"),
    Attribute(FINISH_REASONS, _T.STRINGS, _GENAI, "one per choice; `error` where an answer broke off"),
    Attribute(TIME_TO_FIRST_CHUNK, _T.DOUBLE, _GENAI, "seconds; streams only"),
    Attribute(INPUT_TOKENS, _T.INT, _GENAI, "input tokens, cached ones included"),
    Attribute(OUTPUT_TOKENS, _T.INT, _GENAI, "output tokens, reasoning included"),
    Attribute(CACHE_READ_TOKENS, _T.INT, _GENAI, "the part of the input that came from a cache"),
    Attribute(REASONING_TOKENS, _T.INT, _GENAI, "the part of the output that was reasoning"),
    Attribute(SERVER_ADDRESS, _T.STRING, _GENERAL, "host of the endpoint that answered"),
    Attribute(SERVER_PORT, _T.INT, _GENERAL, "its port"),
    Attribute(STATUS_CODE, _T.INT, _GENERAL, "HTTP status that the client got; absent if none was sent"),
    Attribute(ERROR_TYPE, _T.STRING, _GENERAL, "only on failure: the transport's cause, else the HTTP status as text"),
    Attribute(TARGET, _T.STRING, _OWN, "who answered, `model@version`"),
    Attribute(REASON, _T.STRING, _OWN, "why it went there"),
    Attribute(ROUTE, _T.STRING, _OWN, "the Route that took the request"),
    Attribute(QOS_CLASS, _T.STRING, _OWN, "its QoS class"),
    Attribute(INTENT, _T.STRING, _OWN, "its intent"),
    Attribute(CANARY, _T.BOOL, _OWN, "whether the target is the route's canary"),
    Attribute(ATTEMPTS, _T.INT, _OWN, "tries made for the request"),
    Attribute(REQUEST_ID, _T.STRING, _OWN, "`x-request-id`; joins the span with logs and Envoy's `guid:x-request-id`"),
    Attribute(TRACE_INTENT, _T.STRING, _OWN, "header `x-trace-intent`, cut at 64 characters"),
    Attribute(CLIENT_TRACE_ID, _T.STRING, _OWN, "header `x-trace-id` as the client sent it"),
    Attribute(CLIENT_ABORT, _T.BOOL, _OWN, "only if true: the client left before the end"),
    Attribute(FINISH_REASON, _T.STRING, _OWN, "the distinct finish reasons joined by a comma, for searches"),
    Attribute(STOP_COUNT, _T.INT, _OWN, "how many stop sequences were sent (their text is content)"),
    Attribute(CONFIDENCE, _T.DOUBLE, _OWN, "answer header `x-model-confidence`, 0..1"),
    Attribute(LOGIT_ENTROPY, _T.DOUBLE, _OWN, "answer header `x-model-logit-entropy`"),
)
"""What a GenAI span may carry. An attribute that is not known is absent, never empty."""

LABEL_OPERATION = "gen_ai_operation_name"
LABEL_PROVIDER = "gen_ai_provider_name"
LABEL_MODEL = "gen_ai_request_model"
LABEL_ERROR_TYPE = "error_type"
LABEL_TARGET = "target"
LABEL_ROUTE = "route"
LABEL_REASON = "reason"
LABEL_CODE_CLASS = "code_class"
LABEL_OUTCOME = "outcome"
LABEL_RESULT = "result"
LABEL_VERSION = "version"

REQUEST_DURATION = "gen_ai_server_request_duration_seconds"
TIME_TO_FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds"
TIME_PER_OUTPUT_TOKEN = "gen_ai_server_time_per_output_token_seconds"
INPUT_TOKENS_TOTAL = "gen_ai_client_inference_usage_input_tokens_total"
OUTPUT_TOKENS_TOTAL = "gen_ai_client_inference_usage_output_tokens_total"
CACHE_READ_TOKENS_TOTAL = "gen_ai_client_inference_usage_cache_read_input_tokens_total"
MODEL_CONFIDENCE = "pointsman_model_confidence"
MODEL_LOGIT_ENTROPY = "pointsman_model_logit_entropy"
REQUESTS_TOTAL = "pointsman_requests_total"
TRIES_TOTAL = "pointsman_tries_total"
XDS_PUSHES_TOTAL = "pointsman_xds_pushes_total"
XDS_ACKS_TOTAL = "pointsman_xds_acks_total"
XDS_NACKS_TOTAL = "pointsman_xds_nacks_total"
BREAKER_TRANSITIONS_TOTAL = "pointsman_breaker_transitions_total"
POLICY_RELOADS_TOTAL = "pointsman_policy_reloads_total"
ENVOY_RESTARTS_TOTAL = "pointsman_envoy_restarts_total"
LOG_GAPS_TOTAL = "pointsman_log_gaps_total"
SPANS_DROPPED_TOTAL = "pointsman_spans_dropped_total"
LABEL_OVERFLOW_TOTAL = "pointsman_label_overflow_total"
BUILD_INFO = "pointsman_build_info"
