"""What counts for a rollout, in which span, and how exact its quantiles are."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from pointsman.router.build import build_table
from pointsman.router.entry import RequestEntry, TryEntry
from pointsman.router.policy import SwitchMode
from pointsman.router.rollout_evidence import Evidence, FirstTry, Histogram, Tally, first_try_of
from pointsman.router.table import Row
from sample_policies import SUPPORT_POLICY, with_route

ROWS = {row.name: row for row in build_table(SUPPORT_POLICY).rows()}
SPLIT = "support/support-chat/interactive/named"
PINNED = next(name for name in ROWS if "pin=v2.3-beta" in name)
CANARY, STABLE = "support-chat@v2.3-beta", "support-chat@v2.2"
GOOD = RequestEntry(0, 80.0, SPLIT, "l", CANARY, None, 200, (), "via_upstream", 1, "POST", "/v1/chat/completions", "id",
                    first_chunk_ms=30.0, output_tokens=10)  # fmt: skip
BAD = TryEntry(0, 5.0, SPLIT, CANARY, None, 503, (), 1, "id")


def test_a_request_that_went_well_at_once_counts_with_its_times() -> None:
    assert FirstTry(
        is_canary=True, failed=False, duration_ms=80.0, first_token_ms=30.0, output_tokens=10
    ) == first_try_of(GOOD, ROWS[SPLIT])


def test_stable_is_the_second_arm() -> None:
    tried = first_try_of(replace(GOOD, target=STABLE), ROWS[SPLIT])
    assert tried is not None
    assert not tried.is_canary


def test_a_failed_first_try_counts_against_its_version() -> None:
    assert FirstTry(is_canary=True, failed=True) == first_try_of(BAD, ROWS[SPLIT])


def test_a_callers_mistake_is_no_failure() -> None:
    assert FirstTry(is_canary=True, failed=False) == first_try_of(replace(BAD, status=400), ROWS[SPLIT])


@pytest.mark.parametrize(
    "entry",
    [
        replace(BAD, status=429),
        replace(BAD, status=0, flags=("DC",)),
        replace(BAD, attempt=2),
        replace(BAD, target="small-chat@v1"),
        replace(GOOD, attempts=2),
        replace(GOOD, status=503),
        replace(GOOD, target=None),
    ],
)
def test_what_says_nothing_of_a_first_try_does_not_count(entry: RequestEntry | TryEntry) -> None:
    assert first_try_of(entry, ROWS[SPLIT]) is None


@pytest.mark.parametrize("entry", [GOOD, BAD])
def test_known_bug_29_pinned_tries_never_count(entry: RequestEntry | TryEntry) -> None:
    assert first_try_of(replace(entry, row=PINNED), ROWS[PINNED]) is None


def test_a_row_without_a_canary_is_not_split() -> None:
    rows = build_table(with_route(canary=None, switch=SwitchMode.PER_SESSION)).rows()
    row: Row = next(row for row in rows if row.name == SPLIT)
    assert first_try_of(replace(GOOD, target=STABLE), row) is None


def test_the_window_forgets_and_the_step_does_not() -> None:
    evidence = Evidence(10_000)
    evidence.add(FirstTry(is_canary=True, failed=True), 0)
    evidence.add(FirstTry(is_canary=False, failed=False), 9_000)
    look = evidence.look(11_000)
    assert (0, 1) == (look.recent.canary.requests, look.recent.stable.requests)
    assert (1, 1) == (look.whole.canary.failures, look.whole.stable.requests)


def test_slices_are_bounded() -> None:
    evidence = Evidence(10_000)
    for now_ms in range(0, 1_000_000, 100):
        evidence.add(FirstTry(is_canary=True, failed=False, duration_ms=20.0), now_ms)
    assert 90 <= evidence.look(1_000_000).recent.canary.requests <= 105
    assert len(evidence._slices) <= 21


@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.99])
def test_quantiles_are_within_a_thirtieth(ratio: float) -> None:
    chance = random.Random(7)
    values = sorted(chance.lognormvariate(4, 1) for _ in range(5_000))
    one, other = Histogram(), Histogram()
    for number, value in enumerate(values):
        (one if number % 2 else other).add(value)
    one.merge(other)
    exact = values[int(ratio * len(values)) - 1]
    found = one.quantile(ratio)
    assert found is not None
    assert abs(found - exact) / exact < 0.033


def test_buckets_are_bounded_and_no_value_is_refused() -> None:
    histogram = Histogram()
    for value in (0.0, -1.0, 1e300, *(2.0**n for n in range(-20, 80))):
        histogram.add(value)
    assert 103 == histogram.total
    assert len(histogram._buckets) <= 720


def test_nothing_seen_is_unknown_not_zero() -> None:
    tally = Tally()
    assert (None, None, None) == (tally.error_ratio, tally.tokens_per_s, tally.durations.quantile(0.5))


def test_tokens_a_second_count_from_the_first_token() -> None:
    tally = Tally()
    tally.add(FirstTry(is_canary=True, failed=False, duration_ms=1_100.0, first_token_ms=100.0, output_tokens=50))
    assert 50.0 == tally.tokens_per_s
