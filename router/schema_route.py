"""What a Route document may say, key by key. Read by schema.py only."""

from __future__ import annotations

import re
from typing import cast

from pointsman.router import policy
from pointsman.router.policy import MatchKind
from pointsman.router.schema_names import HEADER_NAME, INTENTS, LABEL, LATENCY_MS, MODEL_NAME, RATIO, VERSION_NAME, WORD
from pointsman.router.shape import (
    Boolean,
    Duration,
    Integer,
    Key,
    Listing,
    Number,
    Pattern,
    Percent,
    Range,
    Record,
    Scores,
    Short,
    Text,
    Words,
    words_of,
)

_HEADER_VALUE = Text("a header value: visible ASCII and spaces", re.compile(r"[!-~](?:[ -~]*[!-~])?"))
_PATH = Text("a path that starts with /, without ? and #", re.compile(r"/[!-\"$->@-~]*"))


def _path_match(**fields: object) -> policy.PathMatch:
    kind, value = next(iter(fields.items()))
    return policy.PathMatch(MatchKind(kind), str(value))


def _header_match(name: str, **fields: object) -> policy.HeaderMatch:
    word, value = next(iter(fields.items()))
    kind = MatchKind(word)
    if kind is MatchKind.RANGE:
        start, end = cast(tuple[int, int], value)
        return policy.HeaderMatch(name, kind, range_start=start, range_end=end)
    return policy.HeaderMatch(name, kind, "" if kind is MatchKind.PRESENT else str(value))


_PATH_MATCH = Short(
    _PATH,
    lambda value: policy.PathMatch(MatchKind.EXACT, str(value)),
    Record(
        (
            Key("exact", _PATH, "The whole path."),
            Key("prefix", _PATH, "How the path starts."),
            Key("regex", Pattern(), "Matches the whole path."),
        ),
        _path_match,
        one_of=("exact", "prefix", "regex"),
        needs_one=True,
    ),
)
_HEADER_MATCH = Record(
    (
        Key("name", HEADER_NAME, "The header.", is_required=True),
        Key("exact", _HEADER_VALUE, "The whole value."),
        Key("prefix", _HEADER_VALUE, "How the value starts."),
        Key("regex", Pattern(), "Matches the whole value."),
        Key("range", Range(), "The value is a number in [start, end): up to nine digits and six decimals."),
        Key("present", Words((("true", True),)), "The header is there."),
    ),
    _header_match,
    one_of=("exact", "prefix", "regex", "range", "present"),
    needs_one=True,
)
_MATCH = Record(
    (
        Key("intents", INTENTS, "Any of these intents.", default="[]"),
        Key(
            "models",
            Listing(MODEL_NAME, is_unique=True),
            "Any of these names in the body's `model`: models, or aliases that a version accepts.",
            default="[]",
        ),
        Key("paths", Listing(_PATH_MATCH), "Any of these paths (without the query).", default="[]"),
        Key("headers", Listing(_HEADER_MATCH, maximum=16), "All of these header conditions.", default="[]"),
    ),
    policy.Match,
)
_QOS_CLASS = Record(
    (
        Key("name", LABEL, "What clients put into x-qos-class.", is_required=True),
        Key(
            "latencyBudgetMs",
            LATENCY_MS,
            "P99: to the first token on generating intents, in total on the others.",
            is_required=True,
        ),
        Key("minQuality", RATIO, "Versions below it are filtered."),
        Key("maxCostPerMillion", Number(0, 1e6), "Dearer versions are filtered."),
        Key("priority", Integer(-1_000, 1_000), "Higher goes first.", default="0"),
    ),
    policy.QosClass,
)


def _limits_of_canary(meaning: str) -> tuple[Key, ...]:
    return (
        Key("window", Duration(), f"Span that is looked at{meaning}.", "window_ms", "60s"),
        Key("minRequests", Integer(1, 10_000_000, "requests"), "Fewer decide nothing.", default="200"),
        Key("maxErrorRatio", RATIO, "Most failures.", default="0.01"),
        Key("maxLatencyRatio", Number(0, 100, is_open=True), "Most latency, canary over stable."),
        Key("maxTtftRatio", Number(0, 100, is_open=True), "Most time to first token, canary over stable."),
    )


_CANARY = Record(
    (
        Key("model", MODEL_NAME, "One of the targets.", is_required=True),
        Key("version", VERSION_NAME, "The version that is tried out.", is_required=True),
        Key("header", HEADER_NAME, "Header that pins a version.", default="model-version"),
        Key(
            "stickBy",
            Listing(HEADER_NAME, maximum=8, is_unique=True),
            "The first of these headers that is present is the sticky key; none: every request by itself.",
            default="[x-context-id, x-session-id]",
        ),
        Key("weight", Percent(), "Share of the keys. Neither weight nor steps: pinned requests only.", "weight_parts"),
        Key(
            "steps",
            Listing(
                Record(
                    (
                        Key("weight", Percent(), "Share of the keys.", "weight_parts", is_required=True),
                        Key("hold", Duration(), "How long the step is held.", "hold_ms"),
                    ),
                    policy.Step,
                ),
                minimum=1,
                maximum=32,
            ),
            "Plan of a rollout, in place of weight.",
        ),
        Key("analysis", Record(_limits_of_canary(""), policy.Analysis), "Limits against stable."),
        Key("validation", Record(_limits_of_canary(" first"), policy.Analysis), "Limits right after a change."),
    ),
    policy.Canary,
    one_of=("weight", "steps"),
)


def _fallback(**fields: object) -> object:
    word, value = next(iter(fields.items()))
    if word == "version":
        return policy.VersionFallback(str(value))
    return policy.ModelFallback(str(value)) if word == "model" else value


_FALLBACK = Record(
    (
        Key(
            "version",
            VERSION_NAME,
            "Another version of the arm's own model.",
        ),
        Key(
            "model",
            MODEL_NAME,
            "Another model (its stable version).",
        ),
        Key(
            "cached",
            Record(
                (
                    Key("maxAge", Duration(), "Oldest answer.", "max_age_ms", is_required=True),
                    Key(
                        "partitionBy",
                        Listing(HEADER_NAME, maximum=8, is_unique=True),
                        "Headers that keep callers apart.",
                        default="[]",
                    ),
                ),
                policy.CachedFallback,
            ),
            "An answer from the cache.",
        ),
        Key(
            "site",
            Record(
                (
                    Key(
                        "url",
                        Text("an http or https URL", re.compile(r"https?://[!-~]+")),
                        "Its base URL.",
                        is_required=True,
                    ),
                    Key("identity", Text("an identity", re.compile(r"[!-~]+")), "What it must prove to be."),
                ),
                policy.SiteFallback,
            ),
            "Another site.",
        ),
        Key(
            "canned",
            Record(
                (
                    Key("status", Integer(400, 599), "Status of the answer.", default="503"),
                    Key("retryAfter", Integer(0, 3_600, "s"), "Its Retry-After.", "retry_after_s", "2"),
                ),
                policy.CannedFallback,
            ),
            "A fixed answer in the API's error shape.",
        ),
    ),
    _fallback,
    one_of=("version", "model", "cached", "site", "canned"),
    needs_one=True,
)
_RETRY_ON = Text(
    "one of connect-failure, refused-stream, reset-before-request, reset, 5xx, gateway-error, "
    'or a code as text: "429", "500" to "599"',
    re.compile(r"connect-failure|refused-stream|reset-before-request|reset|5xx|gateway-error|429|5[0-9][0-9]"),
)
_BREAKER = Record(
    (
        Key("errorRatio", Number(0, 1, is_open=True), "Failures above it open the breaker.", default="0.12"),
        Key("lateOverBudget", Number(1, 1_000), "Very late: this many times the class's budget.", default="2.0"),
        Key("lateRatio", Number(0, 1, is_open=True), "Very late tries above it shed traffic.", default="0.01"),
        Key(
            "windows",
            Listing(Duration(), minimum=1, maximum=4, is_unique=True),
            "Shortest first.",
            "windows_ms",
            "[5s, 60s]",
        ),
        Key("minFailures", Integer(1, 1_000_000), "Fewer decide nothing.", default="5"),
        Key("openFor", Duration(), "How long it stays open at least.", "open_for_ms", "5s"),
        Key("recoverStep", Percent(1), "Traffic that comes back at a time.", "recover_step_parts", "5"),
        Key("recoverEvery", Duration(), "Time between two such steps.", "recover_every_ms", "2s"),
        Key("hard", Boolean(), "A trip also resets requests in flight.", default="false"),
        Key(
            "percentiles", Words((("source", True),)), "The literal 100/300/150 ms profile.", attr="percentiles_source"
        ),
    ),
    policy.Breaker,
)
ROUTE = Record(
    (
        Key(
            "targets",
            Listing(MODEL_NAME, minimum=1, maximum=32, is_unique=True),
            "Models to choose among.",
            is_required=True,
        ),
        Key("match", _MATCH, "Which requests: all stated conditions hold; within one, any value does.", default="{}"),
        Key("qos", Listing(_QOS_CLASS, maximum=32, unique_key="name"), "Classes, most demanding first.", default="[]"),
        Key("defaultQos", LABEL, "Class of a request that names none. Absent: the first."),
        Key("switch", words_of(policy.SwitchMode), "Whether choice may move a session.", default="perSession"),
        Key(
            "pin",
            Record(
                (
                    Key(
                        "mode",
                        words_of(policy.PinMode),
                        "A pinned version that is out: 503, or its ladder.",
                        default="strict",
                    ),
                    Key("maxConcurrency", Integer(1, 1_000_000, "requests"), "Most pinned requests at a time."),
                ),
                policy.Pin,
            ),
            "What pinned requests get.",
            default="{}",
        ),
        Key("canary", _CANARY, "A version that gets a share of its model's keys."),
        Key(
            "rules",
            Listing(
                Record(
                    (
                        Key("when", Text("a condition"), "Condition over request attributes.", is_required=True),
                        Key(
                            "to",
                            Text("a model or target name", re.compile(r"[A-Za-z0-9._:/@+-]+")),
                            "Where to.",
                            is_required=True,
                        ),
                    ),
                    policy.Rule,
                )
            ),
            "Multi-modal rules, first match wins.",
            default="[]",
        ),
        Key(
            "require",
            Record(
                (
                    Key("minLink", WORD, "Least link between GPUs."),
                    Key("sameNuma", Boolean(), "GPUs and memory on one node.", default="false"),
                    Key("device", WORD, "Device type."),
                ),
                policy.Require,
            ),
            "Topology that an endpoint must have.",
        ),
        Key("fallback", Listing(_FALLBACK, maximum=16), "The ladder, rung by rung.", default="[]"),
        Key(
            "retries",
            Record(
                (
                    Key("max", Integer(0, 10, "retries"), "After the first try; 0: none.", "max_count", "3"),
                    Key(
                        "retryOn",
                        Listing(_RETRY_ON, is_unique=True),
                        "What is tried again. Codes are text.",
                        default='[connect-failure, refused-stream, reset-before-request, "503"]',
                    ),
                    Key("lowConfidenceBelow", RATIO, "Try again when the server is less sure than this."),
                ),
                policy.Retries,
            ),
            "Tries after the first one.",
            default="{}",
        ),
        Key("breaker", _BREAKER, "When a target is taken out and how it comes back.", default="{}"),
        Key("rewriteModel", Boolean(), "Change the body's `model` where a target needs another name.", default="false"),
        Key("scorers", Scores(Number(0, 1_000)), "Weights by scorer name.", default="{}"),
        Key(
            "timeouts",
            Record(
                (
                    Key("firstByte", Duration("turns it off"), "Until the answer's headers.", "first_byte_ms", "30s"),
                    Key("idle", Duration("turns it off"), "Without a byte.", "idle_ms", "60s"),
                    Key("total", Duration("turns it off"), "The whole request.", "total_ms", "0s"),
                ),
                policy.Timeouts,
            ),
            "Time limits; the connect time-out is the Model's.",
            default="{}",
        ),
    ),
    dict,
)
