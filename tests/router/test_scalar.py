"""Scalars: addresses and percentages, in our units or a fault."""

from __future__ import annotations

import pytest
from pointsman.router.document import Value
from pointsman.router.scalar import Fault, read_scalar
from pointsman.router.shape import Address, Percent


@pytest.mark.parametrize(
    ("address", "is_good"),
    [
        ("127.0.0.1:9001", True),
        ("[::1]:80", True),
        ("model-server:8000", True),
        ("a.b.example.com:65535", True),
        ("model_server:1", True),
        ("127.0.0.1:99999", False),
        ("127.0.0.1:0", False),
        ("127.0.0.1", False),
        ("999.1.1.1:80", False),
        ("1.2.3:80", False),
        ("::1:80", False),
        ("[::1]", False),
        ("[127.0.0.1]:80", False),
        ("[fe80::1%eth0]:80", False),
        ("-a:80", False),
        ("a..b:80", False),
        ("http://a:80", False),
        ("a:080", False),
        (":80", False),
        ("a b:80", False),
        ("a:٨٠", False),
        ("x" * 64 + ":80", False),
    ],
)
def test_addresses(address: str, *, is_good: bool) -> None:
    assert is_good is (read_scalar(Address(), Value(1, address, address)) == address)


@pytest.mark.parametrize(("percent", "parts"), [(5, 500), (0.5, 50), (0, 0), (100, 10_000), (12.25, 1_225), (0.29, 29)])
def test_percentages_become_parts_exactly(percent: float, parts: int) -> None:
    assert parts == read_scalar(Percent(), Value(1, percent, str(percent)))


@pytest.mark.parametrize("value", [True, -1, 100.01, 0.125, "5", None, float("nan"), float("inf"), 10**400])
def test_what_is_no_percentage_is_a_fault(value: str | float | bool | None) -> None:
    assert isinstance(read_scalar(Percent(), Value(1, value, "x")), Fault)
