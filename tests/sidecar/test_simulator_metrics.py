"""vLLM's names and ORCA's forms; the exposition is read back by the official parser."""

from __future__ import annotations

import json

import pytest
from pointsman.sidecar.simulator_metrics import Counters, Histogram, Load, RequestRate, exposition, load_report
from prometheus_client.parser import text_string_to_metric_families

LOAD = Load(running=2, waiting=1, slots=4, requests_per_s=12.5)


def _samples(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(f"|{sample.labels[key]}" for key in ("finished_reason", "le") if key in sample.labels): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_exposition_has_vllm_names_and_values() -> None:
    counters = Counters(prompt_tokens=7, generation_tokens=9, prefix_queries=7, prefix_hits=3)
    counters.finished["stop"] = 2
    counters.ttft.observe(0.03)
    samples = _samples(exposition(counters, LOAD, "support-chat"))
    expected = {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 1,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:prefix_cache_queries_total": 7,
        "vllm:prefix_cache_hits_total": 3,
        "vllm:prompt_tokens_total": 7,
        "vllm:generation_tokens_total": 9,
        "vllm:request_success_total|stop": 2,
        "vllm:request_success_total|abort": 0,
        "vllm:time_to_first_token_seconds_bucket|0.02": 0,
        "vllm:time_to_first_token_seconds_bucket|0.04": 1,
        "vllm:time_to_first_token_seconds_bucket|+Inf": 1,
        "vllm:time_to_first_token_seconds_count": 1,
        "vllm:time_to_first_token_seconds_sum": 0.03,
        "vllm:e2e_request_latency_seconds_count": 0,
    }
    assert expected == {name: samples[name] for name in expected}


def test_model_name_is_escaped() -> None:
    families = list(text_string_to_metric_families(exposition(Counters(), LOAD, 'a"\\\nb')))
    assert {'a"\\\nb'} == {sample.labels["model_name"] for family in families for sample in family.samples}


def test_bucket_holds_its_upper_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 3.0):
        histogram.observe(value)
    assert histogram.lines("h", 'x="y"')[0] == 'h_bucket{le="1.0",x="y"} 1.0'


def test_load_report_is_native_text_or_json_and_nothing_else() -> None:
    assert load_report(LOAD, "text") == (
        "TEXT application_utilization=0.75, rps_fractional=12.5, "
        "named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=1"
    )
    report = load_report(LOAD, "JSON")
    assert report is not None
    assert json.loads(report.removeprefix("JSON ")) == {
        "application_utilization": 0.75,
        "rps_fractional": 12.5,
        "named_metrics": {"kv_cache_usage_perc": 0.5, "num_requests_waiting": 1},
    }
    assert load_report(LOAD, "BIN") is None


def test_cache_is_never_more_than_full() -> None:
    load = Load(running=9, waiting=3, slots=4, requests_per_s=0)
    assert (load.kv_cache_ratio, load.utilization) == (1.0, 3.0)


def test_request_rate_settles_at_the_rate_and_decays() -> None:
    rate = RequestRate()
    for tick in range(1_000):
        rate.count(50 + tick / 100)
    assert rate.at(60) == pytest.approx(100, rel=0.02)
    assert rate.at(70) < 0.01
