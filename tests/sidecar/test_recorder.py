"""Batches of log entries become metrics and spans."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from pointsman.otel import names
from pointsman.otel.exporter import SpanExporter
from pointsman.otel.metrics import Metrics
from pointsman.router.build import build_table
from pointsman.router.entry import LogGap, RequestEntry, TryEntry
from pointsman.sidecar.attribution import Attribution
from pointsman.sidecar.recorder import Recorder
from prometheus_client.parser import text_string_to_metric_families
from sample_policies import EMBED, SUPPORT_POLICY

REQUEST = RequestEntry(
    started_unix_ns=1_790_000_000_000_000_000,
    duration_ms=12.5,
    row="support/support-chat/interactive/default",
    ladder="ladder>support-chat@v2.2>small-chat@v1>canned:503:2",
    target="support-chat@v2.2",
    endpoint="127.0.0.1:9001",
    status=200,
    flags=(),
    details="via_upstream",
    attempts=1,
    method="POST",
    path="/v1/chat/completions",
    request_id="id",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
    is_sampled=True,
    params={"model": "support-chat"},
)
TRY = TryEntry(1, 5.0, REQUEST.row, "support-chat@v2.2", None, 200, (), 1, "id")


@pytest.fixture
def recorder() -> Recorder:
    metrics = Metrics(SUPPORT_POLICY, version="1.2.3")
    return Recorder(metrics, Attribution.of(SUPPORT_POLICY, build_table(SUPPORT_POLICY)))


def values(recorder: Recorder, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """What a counter shows above zero, by the labels' values."""
    page, _ = recorder.metrics.render(None)
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == name and sample.value
    }


def test_request_is_counted_under_its_rows_route_and_reason(recorder: Recorder) -> None:
    recorder.record([REQUEST, replace(REQUEST, target=None, status=400, details="pointsman_body_empty"), REQUEST])
    found = values(recorder, names.REQUESTS_TOTAL, "route", "target", "reason", "code_class")
    assert {
        ("support", "support-chat@v2.2", "default", "2xx"): 2,
        ("support", "none", "refused", "4xx"): 1,
    } == found


def test_tries_are_counted_by_what_became_of_them(recorder: Recorder) -> None:
    failed = replace(TRY, status=503)
    recorder.record([TRY, failed, failed, replace(TRY, status=429), replace(TRY, flags=("DC",))])
    assert {("success",): 1, ("failure",): 2, ("rejected",): 1, ("cancelled",): 1} == values(
        recorder, names.TRIES_TOTAL, "outcome"
    )


def test_gap_is_counted_and_told(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pointsman"):
        recorder.record([LogGap("node-1", "the stream broke")])
    assert {(): 1} == values(recorder, names.LOG_GAPS_TOTAL)
    (told,) = caplog.records
    assert {"node": "node-1", "reason": "the stream broke"} == told.__dict__["fields"]


async def test_sampled_requests_become_spans_and_others_do_not(recorder: Recorder) -> None:
    recorder.exporter = SpanExporter("127.0.0.1:1")
    recorder.record([REQUEST, replace(REQUEST, is_sampled=False), TRY])
    assert 1 == recorder.exporter.queued_count


def test_entry_that_cannot_be_placed_is_counted_and_those_after_it_too(recorder: Recorder) -> None:
    lost = replace(REQUEST, row="", ladder="", target="gone@v0", endpoint=None, params={}, method="", path="")
    recorder.record([lost, REQUEST])
    found = values(recorder, names.REQUESTS_TOTAL, "route", "target", "reason")
    assert 1 == found["support", "support-chat@v2.2", "default"]
    assert 2 == sum(found.values())


def test_a_replaced_attribution_places_the_next_entries(recorder: Recorder) -> None:
    policy = replace(SUPPORT_POLICY, routes=(EMBED,))
    recorder.attribution = Attribution.of(policy, build_table(policy))
    recorder.record([REQUEST])
    assert {("none",): 1} == values(recorder, names.REQUESTS_TOTAL, "route")
