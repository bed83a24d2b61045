"""The control surface, the timing formula and the spreading of errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pointsman.sidecar.simulator_behaviour import (
    BOUNDS,
    Behaviour,
    ChangeRefused,
    Pace,
    changed,
    is_error_due,
    pace,
    rendered,
    stretch,
)


def test_defaults_add_no_delay_and_no_fault() -> None:
    assert Pace(0.0, 0.0, 0.0) == pace(Behaviour(), 64)
    assert Behaviour().slots == 64


def test_change_replaces_only_the_keys_it_names() -> None:
    before = Behaviour(latency_ms=5, slots=3)
    assert Behaviour(latency_ms=5, slots=8, confidence=0.4) == changed(before, {"slots": 8, "confidence": 0.4})


def test_null_turns_off_what_may_be_off() -> None:
    before = Behaviour(confidence=0.5, entropy=2.0, reset_after_chunks=3)
    assert Behaviour() == changed(before, {"confidence": None, "entropy": None, "resetAfterChunks": None})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ('{"latncyMs": 1}', "did you mean latencyMs?"),
        ('{"zzz": 1}', "known: latencyMs"),
        ('{"latencyMs": "5"}', "latencyMs: found a text"),
        ('{"latencyMs": true}', "latencyMs: found a boolean"),
        ('{"latencyMs": -1}', "latencyMs: found -1"),
        ('{"latencyMs": null}', "latencyMs: found null"),
        ('{"errorRatio": 1.01}', "errorRatio: found 1.01"),
        ('{"errorRatio": NaN}', "errorRatio: found nan"),
        ('{"tokensPerSecond": Infinity}', "tokensPerSecond: found inf"),
        ('{"errorStatus": 200}', "errorStatus: found 200"),
        ('{"errorStatus": 503.5}', "errorStatus: found 503.5"),
        ('{"hang": 1}', "hang: found a number, expected true or false"),
        ('{"slots": 0}', "slots: found 0"),
        ('{"slots": 1e400}', "slots: found inf"),
        ('{"slots": ' + "9" * 400 + "}", "slots: found a huge number"),
        ('{"resetAfterChunks": []}', "resetAfterChunks: found a list"),
    ],
)
def test_refused_change_names_key_and_value(change: str, named: str) -> None:
    with pytest.raises(ChangeRefused) as refused:
        changed(Behaviour(), json.loads(change))
    assert named in str(refused.value)


def test_refused_change_lists_every_problem() -> None:
    with pytest.raises(ChangeRefused) as refused:
        changed(Behaviour(), {"slots": 0, "nope": 1, "hang": True, "entropy": "x"})
    assert refused.value.keys == ("slots", "nope", "entropy")


def test_rendered_state_has_every_key_and_is_a_change_itself() -> None:
    behaviour = Behaviour(latency_ms=1.5, hang=True, confidence=0.25)
    assert list(BOUNDS) == list(rendered(behaviour))
    assert behaviour == changed(Behaviour(), rendered(behaviour))


@pytest.mark.parametrize(
    ("running", "slots", "factor"), [(0, 4, 1.0), (1, 4, 1.0), (1, 1, 1.0), (3, 4, 1.5), (4, 4, 1.75)]
)
def test_latency_rises_with_the_other_requests_that_run(running: int, slots: int, factor: float) -> None:
    assert factor == stretch(running, slots)


def test_pace_stretches_every_part_of_an_answer() -> None:
    behaviour = Behaviour(latency_ms=100, ttft_ms=40, tokens_per_second=50, slots=2)
    assert Pace(0.1, 0.04, 0.02) == pace(behaviour, 1)
    assert Pace(pytest.approx(0.15), pytest.approx(0.06), pytest.approx(0.03)) == pace(behaviour, 2)


def test_whole_answer_takes_the_time_of_its_parts() -> None:
    timing = Pace(headers_after_s=0.1, first_token_after_s=0.2, token_every_s=0.01)
    assert timing.whole_s(11) == pytest.approx(0.4)
    assert timing.whole_s(0) == pytest.approx(0.3)


@given(percent=st.integers(0, 100), rounds=st.integers(1, 3))
def test_error_ratio_is_exact_over_every_hundred(percent: int, rounds: int) -> None:
    failed = sum(is_error_due(ordinal, percent / 100) for ordinal in range(1, 100 * rounds + 1))
    assert percent * rounds == failed


def test_errors_are_spread_not_bunched() -> None:
    assert [ordinal for ordinal in range(1, 13) if is_error_due(ordinal, 0.25)] == [4, 8, 12]
