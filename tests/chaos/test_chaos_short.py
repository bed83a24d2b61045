"""The chaos harness itself works: a short run accounts for every request, ends well, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")


@pytest.mark.envoy
@pytest.mark.timeout(180)
def test_a_short_run_accounts_for_every_request() -> None:
    command = [sys.executable, str(RUN), "--seed", "7", "--minutes", "0.3", "--rate", "30"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-4_000:]
    assert "UNACCOUNTED 0" in ended.stdout
    assert "well: seeds [7]" in ended.stdout


@pytest.mark.parametrize(
    "arguments", [("--only", "earthquake"), ("--seed", "x"), ("--seed", "1", "--seeds", "1,2"), ("--minutes", "0")]
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [sys.executable, str(RUN), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "error" in ended.stderr
