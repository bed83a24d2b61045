"""A slope is what the samples after the warm-up say, and a short life has none."""

from __future__ import annotations

import os

import pytest
from vitals import JUDGED_FROM_S, WARM_UP_S, Life, Sample, look


def life(seconds: int, *, bytes_per_s: float) -> Life:
    """A process that takes 50 MB in its warm-up and then grows steadily."""
    samples = [
        Sample(float(at_s), int(min(at_s, WARM_UP_S) / WARM_UP_S * 50e6 + at_s * bytes_per_s), 10)
        for at_s in range(seconds)
    ]
    return Life("agent", 1, samples)


def test_slope_counts_from_the_end_of_the_warm_up() -> None:
    assert life(500, bytes_per_s=1_000).slope_mb_per_h == pytest.approx(3.6, rel=0.01)
    assert life(500, bytes_per_s=0).slope_mb_per_h == pytest.approx(0)


def test_a_life_grows_when_it_is_long_enough_to_say_so() -> None:
    long = int(WARM_UP_S + JUDGED_FROM_S) + 2
    assert life(long, bytes_per_s=300).is_growing
    assert not life(long, bytes_per_s=200).is_growing
    assert not life(long - 10, bytes_per_s=300).is_growing


def test_a_life_within_its_warm_up_has_no_slope() -> None:
    assert life(int(WARM_UP_S) + 5, bytes_per_s=300).slope_mb_per_h is None


def test_a_living_process_has_memory_and_descriptors() -> None:
    found = look(os.getpid())
    assert found is not None
    assert found.rss_bytes > 1e6
    assert found.descriptors > 2
