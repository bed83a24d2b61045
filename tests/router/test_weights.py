"""Shares become integers that sum to the whole; zero stays zero."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pointsman.router.weights import apportion, split_admitted

shares = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=12)


@given(shares)
def test_parts_sum_to_the_whole_unless_all_are_zero(values: list[float]) -> None:
    assert sum(apportion(values)) == (10_000 if sum(values) > 0 else 0)


@given(shares)
def test_zero_stays_zero(values: list[float]) -> None:
    parts = apportion(values)
    assert all(part == 0 for part, value in zip(parts, values, strict=True) if value == 0)


@given(st.lists(st.floats(0.01, 1e3), min_size=1, max_size=12))
def test_no_part_is_off_by_one_or_more(values: list[float]) -> None:
    whole = sum(values)
    for part, value in zip(apportion(values), values, strict=True):
        assert abs(part - value / whole * 10_000) < 1 + 1e-6


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8, unique=True), st.randoms())
def test_order_does_not_matter_where_no_remainders_tie(values: list[int], random: object) -> None:
    fractions = [value * 10_000 / sum(values) % 1 for value in values] if sum(values) else []
    if len({round(fraction, 9) for fraction in fractions}) != len(fractions):
        return
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    expected = dict(zip(values, apportion(values), strict=True))
    assert expected == dict(zip(shuffled, apportion(shuffled), strict=True))


@pytest.mark.parametrize(
    ("values", "total", "expected"),
    [
        ([1, 1, 1, 0], 100, (34, 33, 33, 0)),
        ([3, 3, 1, 0], 100, (43, 43, 14, 0)),
        ([5, 95], 10_000, (500, 9_500)),
        ([0, 0], 100, (0, 0)),
        ([7], 0, (0,)),
    ],
)
def test_known_cases(values: list[float], total: int, expected: tuple[int, ...]) -> None:
    assert expected == apportion(values, total)


def test_known_bug_32_order_does_not_change_the_distribution() -> None:
    assert sorted(apportion([1, 9])) == sorted(apportion([9, 1]))


@pytest.mark.parametrize("values", [[-1.0], [math.inf], [math.nan]])
def test_impossible_shares_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="shares"):
        apportion(values)


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_admitted_and_bypassed_sum_to_the_base(base: int, admit: float) -> None:
    assert base == sum(split_admitted(base, admit))


def test_a_small_admit_is_not_rounded_away() -> None:
    assert split_admitted(500, 0.0001) == (1, 499)
    assert split_admitted(500, 0) == (0, 500)
    assert split_admitted(0, 1) == (0, 0)
