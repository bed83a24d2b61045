"""Wilson bounds: known values and order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pointsman.router.wilson import lower_bound, upper_bound


@pytest.mark.parametrize(
    ("events", "total", "z", "expected"),
    [(0, 0, 1.96, 0.0), (0, 10, 1.96, 0.0), (10, 10, 1.96, 0.7225), (5, 10, 1.96, 0.2366), (50, 100, 1.96, 0.4038)],
)
def test_published_values(events: int, total: int, z: float, expected: float) -> None:
    assert expected == pytest.approx(lower_bound(events, total, z), abs=1e-4)


@given(st.integers(1, 10_000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_ratio_lies_between_its_bounds(counts: tuple[int, int]) -> None:
    events, total = counts
    assert 0 <= lower_bound(events, total) <= events / total + 1e-9
    assert events / total - 1e-9 <= upper_bound(events, total) <= 1


@given(st.integers(1, 500), st.integers(2, 10))
def test_more_of_the_same_is_more_certain(events: int, factor: int) -> None:
    assert lower_bound(events, 2 * events) <= lower_bound(events * factor, 2 * events * factor) + 1e-12
