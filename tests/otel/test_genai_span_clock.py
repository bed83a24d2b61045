"""Found by tests/fuzz/fuzz_log_entry.py: an entry whose time no span can hold raised, and its batch was lost."""

from __future__ import annotations

import pytest
from pointsman.otel.genai_span import build_span
from pointsman.router.entry import TryEntry

SPAN_ID = bytes.fromhex("1122334455667788")
LATEST_UNIX_NS = 2**64 - 1
TIMES = [(-1, 0), (2**64, LATEST_UNIX_NS), (9_223_372_036_854_775_807 * 10**9, LATEST_UNIX_NS)]


@pytest.mark.parametrize(("started_unix_ns", "expected"), TIMES)
def test_a_start_that_no_span_can_hold_becomes_the_nearest_that_one_can(entry, routed, started_unix_ns, expected):
    span = build_span(entry(started_unix_ns=started_unix_ns), routed(), span_id=SPAN_ID)
    assert span is not None
    assert expected == span.start_time_unix_nano
    assert expected <= span.end_time_unix_nano


def test_a_duration_that_no_span_can_hold_ends_at_the_latest_time(entry, routed):
    span = build_span(entry(duration_ms=1e16), routed(), span_id=SPAN_ID)
    assert span is not None
    assert LATEST_UNIX_NS == span.end_time_unix_nano


def test_a_try_whose_time_no_span_can_hold_is_told_all_the_same(entry, routed):
    retry = TryEntry(2**64, 1.0, "r", "m@v", None, 503, ("UF",), 2, "id")
    span = build_span(entry(attempts=2), routed(), span_id=SPAN_ID, tries=(retry,))
    assert span is not None
    assert LATEST_UNIX_NS in [event.time_unix_nano for event in span.events]
