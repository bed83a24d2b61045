"""The table of instruments: every metric's name, type, unit, labels, meaning and bucket bounds.

Declares only; metrics.py makes them and fills them, docs/observability.md is tested against the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pointsman.otel import names

DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PER_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
# The three above are the conventions' boundaries; the two below are ours.
CONFIDENCE_BUCKETS = (0.1, 0.3, 0.5, 0.7, 0.9)
ENTROPY_BUCKETS = (0.5, 1.0, 2.0, 4.0)


class Kind(StrEnum):
    """Prometheus type of an instrument."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric: name on the page, type, unit (`1`: a pure number), labels, meaning, and a histogram's bounds."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()

    @property
    def series_per_set(self) -> int:
        """How many series one label set adds to the page."""
        return len(self.buckets) + 3 if self.kind is Kind.HISTOGRAM else 1


_SERVED = (names.LABEL_OPERATION, names.LABEL_PROVIDER, names.LABEL_MODEL, names.LABEL_TARGET)
_K = Kind

INSTRUMENTS: tuple[Instrument, ...] = (
    Instrument(
        names.REQUEST_DURATION,
        _K.HISTOGRAM,
        "seconds",
        (*_SERVED, names.LABEL_ERROR_TYPE),
        "time from a request's arrival to its last byte; aborted ones are left out",
        DURATION_BUCKETS,
    ),
    Instrument(
        names.TIME_TO_FIRST_TOKEN,
        _K.HISTOGRAM,
        "seconds",
        _SERVED,
        "time to the first chunk of a successful stream",
        FIRST_TOKEN_BUCKETS,
    ),
    Instrument(
        names.TIME_PER_OUTPUT_TOKEN,
        _K.HISTOGRAM,
        "seconds",
        _SERVED,
        "time per token after the first, of successful streams with two tokens or more",
        PER_TOKEN_BUCKETS,
    ),
    Instrument(names.INPUT_TOKENS_TOTAL, _K.COUNTER, "tokens", _SERVED, "input tokens, cached ones included"),
    Instrument(names.OUTPUT_TOKENS_TOTAL, _K.COUNTER, "tokens", _SERVED, "output tokens, reasoning included"),
    Instrument(names.CACHE_READ_TOKENS_TOTAL, _K.COUNTER, "tokens", _SERVED, "input tokens that came from a cache"),
    Instrument(
        names.MODEL_CONFIDENCE,
        _K.HISTOGRAM,
        "1",
        (names.LABEL_TARGET,),
        "confidence that the server put on its answer",
        CONFIDENCE_BUCKETS,
    ),
    Instrument(
        names.MODEL_LOGIT_ENTROPY,
        _K.HISTOGRAM,
        "1",
        (names.LABEL_TARGET,),
        "logit entropy of the answer, as the server reports it",
        ENTROPY_BUCKETS,
    ),
    Instrument(
        names.REQUESTS_TOTAL,
        _K.COUNTER,
        "1",
        (names.LABEL_ROUTE, names.LABEL_TARGET, names.LABEL_REASON, names.LABEL_CODE_CLASS),
        "finished requests, as clients saw them",
    ),
    Instrument(
        names.TRIES_TOTAL, _K.COUNTER, "1", (names.LABEL_TARGET, names.LABEL_OUTCOME), "finished tries at endpoints"
    ),
    Instrument(names.XDS_PUSHES_TOTAL, _K.COUNTER, "1", (), "snapshots published to Envoy"),
    Instrument(names.XDS_ACKS_TOTAL, _K.COUNTER, "1", (), "snapshots that Envoy took"),
    Instrument(names.XDS_NACKS_TOTAL, _K.COUNTER, "1", (), "snapshots that Envoy refused"),
    Instrument(
        names.POLICY_RELOADS_TOTAL, _K.COUNTER, "1", (names.LABEL_RESULT,), "policy changes seen: applied or refused"
    ),
    Instrument(
        names.BREAKER_TRANSITIONS_TOTAL,
        _K.COUNTER,
        "1",
        (names.LABEL_TARGET, names.LABEL_REASON),
        "breaker transitions, by what caused them",
    ),
    Instrument(names.ENVOY_RESTARTS_TOTAL, _K.COUNTER, "1", (), "times that Envoy ended and was started again"),
    Instrument(names.LOG_GAPS_TOTAL, _K.COUNTER, "1", (), "times that log entries may have been lost"),
    Instrument(
        names.SPANS_DROPPED_TOTAL, _K.COUNTER, "1", (names.LABEL_REASON,), "spans that did not reach the receiver"
    ),
    Instrument(
        names.LABEL_OVERFLOW_TOTAL, _K.COUNTER, "1", (), "observations shown as `other`, or left out, to bound the page"
    ),
    Instrument(names.BUILD_INFO, _K.GAUGE, "1", (names.LABEL_VERSION,), "always 1; the version is in the label"),
)
"""All instruments. The page shows nothing else."""
