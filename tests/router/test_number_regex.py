"""Numbers compared by expression agree with arithmetic."""

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pointsman.router.number_regex import NUMBER_REGEX, at_least, at_most, below

numbers = st.from_regex(r"\A(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?\Z")


@given(bound=st.integers(0, 999_999_999), number=numbers)
def test_at_least_agrees_with_arithmetic(bound: int, number: str) -> None:
    assert (Decimal(number) >= bound) == bool(re.fullmatch(at_least(bound), number))


@given(bound=st.integers(1, 999_999_998), offset=st.integers(-1, 1))
def test_at_least_is_exact_next_to_the_bound(bound: int, offset: int) -> None:
    assert (offset >= 0) == bool(re.fullmatch(at_least(bound), str(bound + offset)))


@given(bound=st.integers(0, 1_000_000), number=numbers)
def test_at_most_agrees_with_arithmetic(bound: int, number: str) -> None:
    limit = bound / 10_000
    assert (Decimal(number) <= Decimal(bound) / 10_000) == bool(re.fullmatch(at_most(limit), number))


@given(bound=st.integers(0, 1_000_000), offset=st.integers(-2, 2))
def test_at_most_is_exact_next_to_the_bound(bound: int, offset: int) -> None:
    near = max(bound + offset, 0)
    text = f"{near // 10_000}.{near % 10_000:04d}"
    assert (near <= bound) == bool(re.fullmatch(at_most(bound / 10_000), text))


@given(bound=st.integers(1, 1_000_000), number=numbers)
def test_below_agrees_with_arithmetic(bound: int, number: str) -> None:
    assert (Decimal(number) < Decimal(bound) / 10_000) == bool(re.fullmatch(below(bound / 10_000), number))


@given(bound=st.integers(2, 1_000_000), offset=st.integers(-2, 2))
def test_below_is_exact_next_to_the_bound(bound: int, offset: int) -> None:
    near = bound + offset
    text = f"{near // 10_000}.{near % 10_000:04d}"
    assert (near < bound) == bool(re.fullmatch(below(bound / 10_000), text))


def test_below_takes_confidences_with_many_digits() -> None:
    assert re.fullmatch(below(0.5), "0.123456789012")
    assert re.fullmatch(below(1), "0.9999999999")
    assert not re.fullmatch(below(0.5), "0.5000000001")


@pytest.mark.parametrize("text", ["", "abc", "1e3", "-1", "01", "1.", ".5", "1,2", "1.1234567", "1234567890", " 1"])
def test_unreadable_numbers_are_not_numbers(text: str) -> None:
    assert re.fullmatch(NUMBER_REGEX, text) is None


def test_negative_bounds_are_refused() -> None:
    for function in (at_least, at_most, below):
        with pytest.raises(ValueError, match=r"negative|positive"):
            function(-1)
