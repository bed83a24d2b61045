"""Counts requests, tries and events, and renders the page that Prometheus reads.

Decides which labels a request gets; refuses free text in them: every value comes from a closed list (the policy's
routes and targets, enums) or becomes `other`, and label sets are capped, so that no client can grow the page. What is
over a cap is counted in `pointsman_label_overflow_total`. Called by the sidecar for each log entry and event; the
admin server renders.

The conventions' histograms are large (14 to 16 buckets), so all histograms share one budget of series: with three
targets a sidecar never shows more than 300. Not thread-safe towards its own caches: one event loop calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import prometheus_client
from pointsman.otel import names
from pointsman.otel.exporter import DropReason
from pointsman.otel.genai_span import (
    OPERATIONS,
    Routed,
    error_type_of,
    is_token_count,
    operation_of,
    read_confidence,
    read_logit_entropy,
)
from pointsman.otel.instruments import INSTRUMENTS, Instrument, Kind
from pointsman.router.breaker import BreakerChanged, Cause
from pointsman.router.entry import RequestEntry
from pointsman.router.outcome import CLIENT_ABORT_FLAGS, TryOutcome
from pointsman.router.policy import Intent, Policy
from pointsman.router.table import Reason
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

FAILURE_SERIES_PER_TARGET = 6
"""Room for failures' durations: with three targets one set of 17 series. Together with the sets that every target has
(52 series), confidence and entropy (15) and the counters at their caps, three targets stay under 300."""

_QUALITY = (names.MODEL_CONFIDENCE, names.MODEL_LOGIT_ENTROPY)

GENERATING_OPERATIONS = frozenset({"chat", "text_completion"})
"""Operations whose answers are streams of tokens: only they have a first token and a time per token."""

_CODE_CLASSES = (names.NONE, "1xx", "2xx", "3xx", "4xx", "5xx")
_OUTCOMES = frozenset(outcome.value for outcome in TryOutcome)
_REASONS = frozenset(reason.value for reason in Reason)
_MAX_CACHED_KEYS = (
    4_096  # raw label tuples kept ready; they are the policy's words, this is a guard, not a limit in use
)

_DEFAULT_INTENTS = (Intent.CHAT, Intent.COMPLETE)  # of a model that states none

Labels = tuple[str, ...]
Metric = TypeVar("Metric", Counter, Histogram)


@dataclass(frozen=True, slots=True)
class _TargetLabels:
    """What a target's label sets say: its provider, its model, and the operations that its intents allow."""

    provider: str
    model: str
    operations: frozenset[str]


class _Room:
    """Series that histograms may still add."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0


class _Family(Generic[Metric]):
    """The label sets of one instrument: at most `cap` of them, and for histograms no more than there is room for."""

    __slots__ = ("cap", "children", "instrument", "metric", "room")
    metric: Metric

    def __init__(self, metric: Metric, instrument: Instrument, room: _Room | None = None) -> None:
        self.metric = metric
        self.instrument = instrument
        self.room = room
        self.cap = 0
        self.children: dict[Labels, Metric] = {}

    def child(self, values: Labels) -> Metric | None:
        """Return the set's child, made at need; None where the set would be one too many."""
        found = self.children.get(values)
        if found is not None:
            return found
        if self.room is None:
            if len(self.children) >= self.cap:
                return None
        elif self.room.left < self.instrument.series_per_set:
            return None
        else:
            self.room.left -= self.instrument.series_per_set
        return self.add(values)

    def add(self, values: Labels) -> Metric:
        """Make the set's child without asking for room, so that a zero shows before the first event."""
        if values not in self.children:
            self.children[values] = self.metric.labels(*values)
        return self.children[values]

    def named(self, values: Labels) -> dict[str, str]:
        """Return the set's labels by name."""
        return dict(zip(self.instrument.labels, values, strict=True))

    def retire(self, is_current: Callable[[dict[str, str]], bool]) -> None:
        """Remove the sets that are not current."""
        for values in [values for values in self.children if not is_current(self.named(values))]:
            self.metric.remove(*values)
            del self.children[values]


@dataclass(frozen=True, slots=True)
class _Served:
    """A target's children for one operation. Those of token streams are None on other operations."""

    duration: Histogram
    first_token: Histogram | None
    per_token: Histogram | None
    input_tokens: Counter
    output_tokens: Counter
    cache_read: Counter


class Metrics:
    """All instruments in a registry of their own."""

    def __init__(self, policy: Policy, *, version: str) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the page
        self._registry = CollectorRegistry(auto_describe=False)
        self._room = _Room()
        self._counters: dict[str, _Family[Counter]] = {}
        self._histograms: dict[str, _Family[Histogram]] = {}
        for instrument in INSTRUMENTS:
            self._make(instrument, version)
        self._targets: dict[str, _TargetLabels] = {}
        self._routes: frozenset[str] = frozenset()
        self._served: dict[tuple[str, str], _Served] = {}
        self._requests: dict[tuple[str, str | None, str, int], Counter] = {}
        self._tries: dict[tuple[str, str], Counter] = {}
        for result in ("applied", "refused"):
            self._counters[names.POLICY_RELOADS_TOTAL].add((result,))
        for reason in DropReason:
            self._counters[names.SPANS_DROPPED_TOTAL].add((reason.value,))
        self._overflow = self._plain(names.LABEL_OVERFLOW_TOTAL)
        self._pushes = self._plain(names.XDS_PUSHES_TOTAL)
        self._acks = self._plain(names.XDS_ACKS_TOTAL)
        self._nacks = self._plain(names.XDS_NACKS_TOTAL)
        self._restarts = self._plain(names.ENVOY_RESTARTS_TOTAL)
        self._gaps = self._plain(names.LOG_GAPS_TOTAL)
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Take the label lists of a policy: new targets show at zero, sets of retired ones go."""
        self._targets = {
            f"{model.name}@{version.name}": _TargetLabels(
                model.provider,
                model.name,
                frozenset(OPERATIONS[intent] for intent in model.intents or _DEFAULT_INTENTS),
            )
            for model in policy.models
            for version in model.versions
        }
        self._routes = frozenset(route.name for route in policy.routes)
        for counters in self._counters.values():
            counters.retire(self._is_current)
        for histograms in self._histograms.values():
            histograms.retire(self._is_current)
        self._requests.clear()
        self._tries.clear()
        self._served = {
            (operation, target): self._make_served(operation, target, labels)
            for target, labels in self._targets.items()
            for operation in sorted(labels.operations)
        }
        self._set_caps()

    def record_request(self, entry: RequestEntry, routed: Routed) -> None:
        """Count a finished request. Its trace shows as exemplar where Envoy sampled it."""
        key = (routed.route, entry.target, routed.reason, entry.status // 100)
        counter = self._requests.get(key) or self._admit_request(key)
        counter.inc()
        target = entry.target
        if target is None:
            return
        operation = operation_of(entry, routed)
        if operation is None:
            return
        exemplar = None
        if entry.is_sampled and entry.trace_id and entry.span_id:
            exemplar = {"trace_id": entry.trace_id, "span_id": entry.span_id}
        served = self._served.get((operation, target))
        if served is None:
            self._record_other(entry)
            return
        _count_tokens(served, entry)
        error_type = error_type_of(entry)
        if error_type is not None:
            self._observe_failure(entry, (operation, target), error_type, exemplar)
        elif not entry.flags or CLIENT_ABORT_FLAGS.isdisjoint(entry.flags):
            _observe_success(served, entry, exemplar)
        if entry.answer_headers:
            self._observe_quality(entry, target, exemplar)

    def record_try(self, target: str, outcome: str) -> None:
        """Count a finished try at the target under a TryOutcome's value."""
        child = self._tries.get((target, outcome))
        if child is None:
            values = (self._clamp_target(target), outcome if outcome in _OUTCOMES else names.OTHER)
            child, is_clean = self._admit(self._counters[names.TRIES_TOTAL], values)
            if is_clean:
                self._tries[target, outcome] = child
        child.inc()

    def snapshot_published(self) -> None:
        """Count a snapshot handed to Envoy."""
        self._pushes.inc()

    def snapshot_acked(self) -> None:
        """Count a snapshot that Envoy took."""
        self._acks.inc()

    def snapshot_refused(self) -> None:
        """Count a snapshot that Envoy refused (NACK)."""
        self._nacks.inc()

    def policy_reloaded(self, *, is_applied: bool) -> None:
        """Count a change of the policy, applied or refused."""
        self._counters[names.POLICY_RELOADS_TOTAL].add(("applied" if is_applied else "refused",)).inc()

    def breaker_changed(self, change: BreakerChanged) -> None:
        """Count a breaker's transition."""
        values = (self._clamp_target(change.target), change.after.cause.value)
        self._admit(self._counters[names.BREAKER_TRANSITIONS_TOTAL], values)[0].inc()

    def envoy_restarted(self) -> None:
        """Count an Envoy that ended by itself and was started again."""
        self._restarts.inc()

    def log_gap_seen(self) -> None:
        """Count a LogGap."""
        self._gaps.inc()

    def spans_dropped(self, reason: DropReason, count: int) -> None:
        """Count lost spans; the exporter's `on_drop`."""
        self._counters[names.SPANS_DROPPED_TOTAL].add((reason.value,)).inc(count)

    def render(self, accept_header: str | None) -> tuple[bytes, str]:
        """Return the page and its content type: OpenMetrics (with exemplars) when asked for, else Prometheus text."""
        try:
            encode, content_type = choose_encoder(accept_header or "")
        except (TypeError, ValueError):  # a version in the header that is no version
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type

    def _make(self, instrument: Instrument, version: str) -> None:
        name, labels = instrument.name, instrument.labels
        unit = "" if instrument.unit == "1" else instrument.unit
        meaning = instrument.meaning
        if instrument.kind is Kind.COUNTER:
            counter = Counter(name, meaning, labels, unit=unit, registry=self._registry)
            self._counters[name] = _Family(counter, instrument)
        elif instrument.kind is Kind.HISTOGRAM:
            histogram = Histogram(name, meaning, labels, unit=unit, registry=self._registry, buckets=instrument.buckets)
            self._histograms[name] = _Family(histogram, instrument, None if name in _QUALITY else self._room)
        else:
            Gauge(name, meaning, labels, registry=self._registry).labels(version).set(1)

    def _plain(self, name: str) -> Counter:
        return self._counters[name].metric

    def _make_served(self, operation: str, target: str, labels: _TargetLabels) -> _Served:
        values = (operation, labels.provider, labels.model, target)
        is_generating = operation in GENERATING_OPERATIONS
        return _Served(
            duration=self._histograms[names.REQUEST_DURATION].add((*values, "")),
            first_token=self._histograms[names.TIME_TO_FIRST_TOKEN].add(values) if is_generating else None,
            per_token=self._histograms[names.TIME_PER_OUTPUT_TOKEN].add(values) if is_generating else None,
            input_tokens=self._counters[names.INPUT_TOKENS_TOTAL].add(values),
            output_tokens=self._counters[names.OUTPUT_TOKENS_TOTAL].add(values),
            cache_read=self._counters[names.CACHE_READ_TOKENS_TOTAL].add(values),
        )

    def _set_caps(self) -> None:
        """Give each family its bound, from the number of (target, operation) pairs of the policy."""
        pairs = len(self._served)
        for name in (names.INPUT_TOKENS_TOTAL, names.OUTPUT_TOKENS_TOTAL, names.CACHE_READ_TOKENS_TOTAL):
            self._counters[name].cap = pairs
        self._counters[names.REQUESTS_TOTAL].cap = 7 * pairs + 3 * len(self._routes)
        self._counters[names.TRIES_TOTAL].cap = 3 * len(self._targets)
        self._counters[names.BREAKER_TRANSITIONS_TOTAL].cap = len(Cause)
        for name in _QUALITY:
            self._histograms[name].cap = len(self._targets)
        self._room.left = FAILURE_SERIES_PER_TARGET * len(self._targets) - sum(
            family.instrument.series_per_set
            for name, family in self._histograms.items()
            if name not in _QUALITY
            for values in family.children
            if not self._is_base(family.named(values))
        )

    def _is_base(self, labels: dict[str, str]) -> bool:
        """Whether the set of a histogram is one that every target has from the start."""
        served = (labels.get(names.LABEL_OPERATION, ""), labels[names.LABEL_TARGET])
        return served in self._served and not labels.get(names.LABEL_ERROR_TYPE)

    def _is_current(self, labels: dict[str, str]) -> bool:
        """Whether what the set says is (still) in the policy."""
        if labels.get(names.LABEL_ROUTE, names.OTHER) not in (*self._routes, names.OTHER, names.NONE):
            return False
        target = labels.get(names.LABEL_TARGET, names.OTHER)
        if target in (names.OTHER, names.NONE, names.CANNED):
            return True
        known = self._targets.get(target)
        if known is None:
            return False
        operation = labels.get(names.LABEL_OPERATION)
        return operation is None or (operation in known.operations and labels[names.LABEL_PROVIDER] == known.provider)

    def _clamp_target(self, target: str | None) -> str:
        if target is None:
            return names.NONE
        return target if target in self._targets or target == names.CANNED else names.OTHER

    def _admit(self, family: _Family[Counter], values: Labels) -> tuple[Counter, bool]:
        """Return the set's counter, or the overflow's, and whether all its values are shown as they were."""
        child = family.child(values)
        is_clean = child is not None and names.OTHER not in values
        if not is_clean:
            self._overflow.inc()
        return child or family.add((names.OTHER,) * len(values)), is_clean

    def _admit_request(self, key: tuple[str, str | None, str, int]) -> Counter:
        route, target, reason, hundreds = key
        word = reason.partition(";")[0]
        values = (
            (route if route in self._routes else names.OTHER) if route else names.NONE,
            self._clamp_target(target),
            word if word in _REASONS else names.OTHER,
            _CODE_CLASSES[hundreds] if 0 <= hundreds < len(_CODE_CLASSES) else names.OTHER,
        )
        counter, is_clean = self._admit(self._counters[names.REQUESTS_TOTAL], values)
        if is_clean and len(self._requests) < _MAX_CACHED_KEYS:
            self._requests[key] = counter
        return counter

    def _observe_failure(
        self, entry: RequestEntry, served: tuple[str, str], error_type: str, exemplar: dict[str, str] | None
    ) -> None:
        operation, target = served
        labels = self._targets[target]
        family = self._histograms[names.REQUEST_DURATION]
        child = family.child((operation, labels.provider, labels.model, target, error_type))
        if child is None:
            self._overflow.inc()
            child = family.add((names.OTHER,) * len(family.instrument.labels))
        child.observe(entry.duration_ms / 1_000, exemplar)

    def _observe_quality(self, entry: RequestEntry, target: str, exemplar: dict[str, str] | None) -> None:
        for name, value in (
            (names.MODEL_CONFIDENCE, read_confidence(entry.answer_headers)),
            (names.MODEL_LOGIT_ENTROPY, read_logit_entropy(entry.answer_headers)),
        ):
            if value is None:
                continue
            child = self._histograms[name].child((target,))
            if child is None:
                self._overflow.inc()
            else:
                child.observe(value, exemplar)

    def _record_other(self, entry: RequestEntry) -> None:
        """Record a request whose target or operation the policy does not name: under `other` where that is cheap."""
        self._overflow.inc()
        served = self._served_other()
        _count_tokens(served, entry)
        if not entry.flags or CLIENT_ABORT_FLAGS.isdisjoint(entry.flags):
            served.duration.observe(entry.duration_ms / 1_000)

    def _served_other(self) -> _Served:
        values = (names.OTHER,) * 4
        return _Served(
            duration=self._histograms[names.REQUEST_DURATION].add((*values, names.OTHER)),
            first_token=None,
            per_token=None,
            input_tokens=self._counters[names.INPUT_TOKENS_TOTAL].add(values),
            output_tokens=self._counters[names.OUTPUT_TOKENS_TOTAL].add(values),
            cache_read=self._counters[names.CACHE_READ_TOKENS_TOTAL].add(values),
        )


def _count_tokens(served: _Served, entry: RequestEntry) -> None:
    """Add what is known; cached tokens are a part of the input and never added to it."""
    if is_token_count(entry.input_tokens):
        served.input_tokens.inc(entry.input_tokens)
    if is_token_count(entry.output_tokens):
        served.output_tokens.inc(entry.output_tokens)
    if is_token_count(entry.cached_tokens):
        served.cache_read.inc(entry.cached_tokens)


def _observe_success(served: _Served, entry: RequestEntry, exemplar: dict[str, str] | None) -> None:
    served.duration.observe(entry.duration_ms / 1_000, exemplar)
    first_chunk_ms = entry.first_chunk_ms
    if first_chunk_ms is None or served.first_token is None or entry.params.get("stream") is not True:
        return
    served.first_token.observe(first_chunk_ms / 1_000, exemplar)
    later_tokens = entry.output_tokens - 1 if is_token_count(entry.output_tokens) else 0
    if later_tokens > 0 and served.per_token is not None and entry.duration_ms >= first_chunk_ms:
        served.per_token.observe((entry.duration_ms - first_chunk_ms) / 1_000 / later_tokens)
