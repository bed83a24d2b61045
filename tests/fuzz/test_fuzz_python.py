"""The Python fuzz targets run clean over their seeds and for FUZZ_SECONDS each beyond them (`make fuzz`)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SECONDS = int(os.environ.get("FUZZ_SECONDS") or 3)
TARGETS = {"policy": 8_192, "log_entry": 8_192, "ads_stream": 512}
"""Each with the longest input, in bytes, that is tried."""


@pytest.mark.fuzz
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("target", TARGETS)
def test_fuzz_target_is_clean(target: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("needs atheris, which has wheels for x86-64 Linux and Python 3.11 to 3.13 (pip install atheris)")
    script, corpus = HERE / f"fuzz_{target}.py", tmp_path / "corpus"
    corpus.mkdir()
    seeds = HERE / "seeds" / target
    if not seeds.is_dir():  # they are made of what the tests have
        seeds = tmp_path / "seeds"
        seeds.mkdir()
        subprocess.run([sys.executable, str(script), "--write-seeds", str(seeds)], check=True, timeout=60)
    limits = [f"-max_total_time={SECONDS}", f"-max_len={TARGETS[target]}", "-timeout=20", "-rss_limit_mb=2048"]
    command = [sys.executable, str(script), *limits, f"-artifact_prefix={tmp_path}/", str(corpus), str(seeds)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 90, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "Done" in run.stderr, run.stderr[-3000:]
