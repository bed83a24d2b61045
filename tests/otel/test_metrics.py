from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from pointsman.otel import names
from pointsman.otel.exporter import DropReason
from pointsman.otel.metrics import GENERATING_OPERATIONS, INSTRUMENTS, Kind, Metrics
from pointsman.router.entry import TryEntry
from pointsman.router.policy import Intent, Model, Policy, Version
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

MAX_SERIES = 300
STREAM = {"params": {"model": "support-chat", "stream": True}, "first_chunk_ms": 40.0}


@pytest.fixture
def metrics(policy) -> Metrics:
    return Metrics(policy, version="1.2.3")


def series(metrics: Metrics) -> dict[tuple[str, frozenset], float]:
    page, _ = metrics.render(None)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(page.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Return the one series of that name that has these labels (and maybe more)."""
    found = [
        number for (sample, has), number in series(metrics).items() if sample == name and labels.items() <= set(has)
    ]
    assert len(found) <= 1, f"{name}{labels} is {len(found)} series"
    return found[0] if found else None


def a_try(**changes) -> TryEntry:
    return replace(TryEntry(1, 5.0, "support", "support-chat@v2.2", None, 200, (), 1, "id"), **changes)


def test_request_is_counted_by_route_target_reason_and_code_class(metrics, entry, routed):
    metrics.record_request(entry(status=503), routed(reason="fallback;rung=2"))
    metrics.record_request(entry(status=504), routed(reason="fallback;rung=3"))
    labels = {"route": "support", "target": "support-chat@v2.3-beta", "reason": "fallback", "code_class": "5xx"}
    assert value(metrics, "pointsman_requests_total", **labels) == 2


def test_request_that_nobody_answered_has_target_none_and_no_model_latency(metrics, entry, routed):
    metrics.record_request(entry(target=None, status=404), routed(route="", reason="refused", provider=None))
    labels = {"route": "none", "target": "none", "reason": "refused", "code_class": "4xx"}
    assert value(metrics, "pointsman_requests_total", **labels) == 1
    assert sum(n for (name, _), n in series(metrics).items() if name == names.REQUEST_DURATION + "_count") == 0


def test_latencies_of_a_stream_are_seconds(metrics, entry, routed):
    metrics.record_request(entry(duration_ms=640.0, output_tokens=61, **STREAM), routed())
    target = {"target": "support-chat@v2.3-beta", "gen_ai_request_model": "support-chat"}
    assert value(metrics, names.REQUEST_DURATION + "_sum", **target) == pytest.approx(0.64)
    assert value(metrics, names.TIME_TO_FIRST_TOKEN + "_sum", **target) == pytest.approx(0.04)
    assert value(metrics, names.TIME_PER_OUTPUT_TOKEN + "_sum", **target) == pytest.approx(0.01)


@pytest.mark.parametrize("output_tokens", [None, 0, 1])
def test_time_per_token_needs_two_tokens(metrics, entry, routed, output_tokens):
    metrics.record_request(entry(output_tokens=output_tokens, **STREAM), routed())
    assert value(metrics, names.TIME_PER_OUTPUT_TOKEN + "_count", target="support-chat@v2.3-beta") == 0
    assert value(metrics, names.TIME_TO_FIRST_TOKEN + "_count", target="support-chat@v2.3-beta") == 1


def test_failed_request_shows_its_error_type_and_no_first_token(metrics, entry, routed):
    metrics.record_request(entry(flags=("UC",), **STREAM), routed())
    assert value(metrics, names.REQUEST_DURATION + "_count", error_type="upstream_closed") == 1
    assert value(metrics, names.TIME_TO_FIRST_TOKEN + "_count", target="support-chat@v2.3-beta") == 0


def test_aborted_request_counts_tokens_but_no_latency(metrics, entry, routed):
    metrics.record_request(entry(flags=("DC",), output_tokens=7, **STREAM), routed())
    assert value(metrics, names.OUTPUT_TOKENS_TOTAL, target="support-chat@v2.3-beta") == 7
    assert value(metrics, names.REQUEST_DURATION + "_count", target="support-chat@v2.3-beta") == 0


def test_known_bug_50_cached_tokens_are_not_added_to_the_input(metrics, entry, routed):
    metrics.record_request(entry(input_tokens=13675, cached_tokens=9216), routed())
    assert value(metrics, names.INPUT_TOKENS_TOTAL, target="support-chat@v2.3-beta") == 13675
    assert value(metrics, names.CACHE_READ_TOKENS_TOTAL, target="support-chat@v2.3-beta") == 9216


@pytest.mark.parametrize("tokens", [-1, 10**400])
def test_impossible_token_count_of_a_server_is_ignored(metrics, entry, routed, tokens):
    metrics.record_request(entry(input_tokens=tokens, output_tokens=tokens, cached_tokens=tokens, **STREAM), routed())
    assert value(metrics, names.OUTPUT_TOKENS_TOTAL, target="support-chat@v2.3-beta") == 0
    assert value(metrics, names.REQUEST_DURATION + "_count", target="support-chat@v2.3-beta") == 1


@pytest.mark.parametrize(("text", "count"), [("0.93", 1), ("1.5", None), ("-0.1", None), ("nan", None), ("high", None)])
def test_confidence_is_observed_only_within_its_range(metrics, entry, routed, text, count):
    metrics.record_request(entry(answer_headers={"x-model-confidence": text}), routed())
    assert value(metrics, names.MODEL_CONFIDENCE + "_count") == count


def test_logit_entropy_is_a_histogram(metrics, entry, routed):
    metrics.record_request(entry(answer_headers={"x-model-logit-entropy": "1.25"}), routed())
    assert value(metrics, names.MODEL_LOGIT_ENTROPY + "_sum", target="support-chat@v2.3-beta") == 1.25


def test_try_is_counted_by_target_and_outcome(metrics):
    metrics.record_try(a_try().target, "failure")
    assert value(metrics, "pointsman_tries_total", target="support-chat@v2.2", outcome="failure") == 1


def test_unknown_label_values_become_other_and_are_counted(metrics, entry, routed):
    metrics.record_try("gone@v1", "exploded")
    metrics.record_request(entry(target="gone@v1", status=799), routed(route="gone", reason="because I say so"))
    other = dict.fromkeys(("route", "target", "reason", "code_class"), "other")
    assert value(metrics, "pointsman_tries_total", target="other", outcome="other") == 1
    assert value(metrics, "pointsman_requests_total", **other) == 1
    assert value(metrics, "pointsman_label_overflow_total") == 3


def test_nothing_that_a_client_says_becomes_a_label(metrics, entry, routed):
    canary = "SECRETCANARYTEXT"
    metrics.record_request(
        entry(
            params={"model": canary},
            headers={"x-context-id": canary, "x-intent": canary},
            response_model=canary,
            response_id=canary,
            finish_reasons=(canary,),
            request_id=canary,
            details=canary,
            path=f"/{canary}",
            method=canary,
        ),
        routed(intent=canary, qos_class=canary, reason=canary),
    )
    assert canary.encode() not in metrics.render("application/openmetrics-text")[0]


def test_two_models_stay_under_300_series_whatever_happens(metrics, entry, routed):
    targets = ("support-chat@v2.2", "support-chat@v2.3-beta", "small-chat@v1", "gone@v9", None)
    reasons = ("pinned", "canary", "qos", "default;class=unknown", "fallback;rung=2", "refused", "nonsense")
    statuses = (0, 200, 201, 301, 400, 401, 403, 404, 408, 422, 429, 500, 502, 503, 504, 799)
    paths = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/x")
    headers = {"x-model-confidence": "0.5", "x-model-logit-entropy": "1.0"}
    for target, reason, status, path in itertools.product(targets, reasons, statuses, paths):
        for flags in ((), ("UC",), ("DC",), ("UT",)):
            metrics.record_request(
                entry(target=target, status=status, path=path, flags=flags, answer_headers=headers, **STREAM),
                routed(reason=reason, route="support" if status < 500 else f"route-{status}"),
            )
    for target, outcome in itertools.product(targets, ("success", "failure", "cancelled", "rejected", "strange")):
        metrics.record_try(target or "?", outcome)
    for reason in DropReason:
        metrics.spans_dropped(reason, 1)
    assert len(series(metrics)) <= MAX_SERIES


def test_usual_traffic_of_two_models_loses_no_label(metrics, entry, routed):
    for target, reason in (
        ("support-chat@v2.2", "default"),
        ("support-chat@v2.2", "pinned"),
        ("support-chat@v2.3-beta", "canary"),
        ("support-chat@v2.3-beta", "pinned"),
        ("small-chat@v1", "fallback"),
    ):
        for status in (200, 404, 503):
            metrics.record_request(
                entry(target=target, status=status, answer_headers={}, **STREAM), routed(reason=reason)
            )
        for outcome in ("success", "failure", "cancelled"):
            metrics.record_try(target, outcome)
    requests = {has for (name, has) in series(metrics) if name == "pointsman_requests_total"}
    assert len(requests) == 15
    assert not any(("target", "other") in has for has in requests)


def test_new_targets_show_at_zero_and_retired_ones_go(metrics, entry, routed, policy):
    metrics.record_request(entry(target="support-chat@v2.2", status=503), routed())
    metrics.record_try("support-chat@v2.2", "success")
    support, small = policy.models
    newer = replace(support, versions=(*support.versions[1:], Version("v3", (), ("support-chat",))))
    metrics.adopt(replace(policy, models=(newer, small)))
    assert not any(("target", "support-chat@v2.2") in has for _, has in series(metrics))
    assert value(metrics, names.INPUT_TOKENS_TOTAL, target="support-chat@v3") == 0
    metrics.record_request(entry(target="support-chat@v3"), routed())
    assert value(metrics, names.REQUEST_DURATION + "_count", target="support-chat@v3") == 1


def test_changed_provider_replaces_the_targets_series(metrics, policy):
    support, small = policy.models
    metrics.adopt(replace(policy, models=(replace(support, provider="triton"), small)))
    assert value(metrics, names.INPUT_TOKENS_TOTAL, target="support-chat@v2.2", gen_ai_provider_name="triton") == 0
    assert value(metrics, names.INPUT_TOKENS_TOTAL, target="support-chat@v2.2", gen_ai_provider_name="vllm") is None


def test_policy_that_is_adopted_over_and_over_keeps_counts_and_size(metrics, entry, routed, policy):
    metrics.record_request(entry(status=503), routed())
    before = series(metrics)
    for _ in range(50):
        metrics.adopt(policy)
    assert series(metrics) == before


def test_operation_without_tokens_has_no_first_token_series():
    model = Model("embedder", (Version("v1", (), ("embedder",)),), intents=(Intent.EMBED,))
    shown = {name for name, _ in series(Metrics(Policy(models=(model,)), version="1"))}
    assert names.REQUEST_DURATION + "_count" in shown
    assert names.TIME_TO_FIRST_TOKEN + "_count" not in shown
    assert "embeddings" not in GENERATING_OPERATIONS


def test_events_have_their_counters(metrics):
    metrics.snapshot_published()
    metrics.snapshot_published()
    metrics.snapshot_acked()
    metrics.snapshot_refused()
    metrics.policy_reloaded(is_applied=False)
    metrics.envoy_restarted()
    metrics.log_gap_seen()
    metrics.spans_dropped(DropReason.QUEUE_FULL, 7)
    assert value(metrics, "pointsman_xds_pushes_total") == 2
    assert value(metrics, "pointsman_xds_acks_total") == 1
    assert value(metrics, "pointsman_xds_nacks_total") == 1
    assert value(metrics, "pointsman_policy_reloads_total", result="refused") == 1
    assert value(metrics, "pointsman_policy_reloads_total", result="applied") == 0
    assert value(metrics, "pointsman_envoy_restarts_total") == 1
    assert value(metrics, "pointsman_log_gaps_total") == 1
    assert value(metrics, "pointsman_spans_dropped_total", reason="queue_full") == 7
    assert value(metrics, "pointsman_build_info", version="1.2.3") == 1


def exemplars(metrics: Metrics) -> list[dict[str, str]]:
    page, _ = metrics.render("application/openmetrics-text; version=1.0.0")
    return [s.exemplar.labels for family in parse_openmetrics(page.decode()) for s in family.samples if s.exemplar]


def test_sampled_request_leaves_its_trace_as_exemplar(metrics, entry, routed):
    metrics.record_request(entry(**STREAM), routed())
    trace = {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"}
    assert exemplars(metrics) == [trace, trace]


@pytest.mark.parametrize("changes", [{"is_sampled": False}, {"trace_id": None}, {"span_id": None}])
def test_request_outside_every_trace_leaves_no_exemplar(metrics, entry, routed, changes):
    metrics.record_request(entry(**STREAM, **changes), routed())
    assert exemplars(metrics) == []


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, "text/plain"),
        ("", "text/plain"),
        ("text/html", "text/plain"),
        ("text/plain; version=0.0.4", "text/plain"),
        ("application/openmetrics-text", "application/openmetrics-text"),
        ("application/openmetrics-text; version=1.0.0,text/plain;q=0.5", "application/openmetrics-text"),
        ("application/openmetrics-text; version=banana", "text/plain"),
        ("application/openmetrics-text; version=" + "9" * 5_000, "text/plain"),
        ("application/openmetrics-text; version=1.0.0; escaping=banana", "application/openmetrics-text"),
    ],
)
def test_page_is_openmetrics_only_when_asked_for(metrics, accept, content_type):
    page, got = metrics.render(accept)
    assert got.startswith(content_type)
    assert page.endswith(b"# EOF\n") == (content_type == "application/openmetrics-text")


def test_page_shows_every_instrument_under_its_declared_name_and_type(metrics, entry, routed):
    families = {family.name: family for family in parse_text(metrics.render(None)[0].decode())}
    for instrument in INSTRUMENTS:
        family = families[instrument.name.removesuffix("_total")]
        assert family.type == instrument.kind.value
        assert family.documentation == instrument.meaning
    assert len(families) == len(INSTRUMENTS)


def test_own_histograms_have_at_most_12_buckets():
    own = [i for i in INSTRUMENTS if i.kind is Kind.HISTOGRAM and not i.name.startswith("gen_ai_")]
    assert own
    assert all(len(instrument.buckets) < 12 for instrument in own)


def test_units_and_suffixes_agree():
    for instrument in INSTRUMENTS:
        assert instrument.name.endswith("_total") == (instrument.kind is Kind.COUNTER)
        if instrument.unit != "1":
            assert instrument.name.removesuffix("_total").endswith(f"_{instrument.unit}")
