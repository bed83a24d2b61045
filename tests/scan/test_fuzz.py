"""The fuzz targets build, and run clean over their seeds and for FUZZ_SECONDS each beyond them (`make fuzz-scan`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FLAGS = ["-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-Wno-unused-function"]
SANITIZERS = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
SECONDS = int(os.environ.get("FUZZ_SECONDS") or 3)


@pytest.mark.fuzz
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("target", ["request", "answer"])
def test_fuzz_target_is_clean(target: str, tmp_path: Path) -> None:
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("needs clang and libFuzzer (Debian: apt-get install clang libclang-rt-14-dev)")
    binary = tmp_path / f"fuzz_{target}"
    build = [clang, *FLAGS, *SANITIZERS, "-o", str(binary), str(HERE / f"fuzz_{target}.c"), "-lm"]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    if "libclang_rt" in built.stderr:
        pytest.skip("needs libFuzzer and sanitizers (Debian: apt-get install libclang-rt-14-dev)")
    assert built.returncode == 0, built.stderr
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    limits = [f"-max_total_time={SECONDS}", "-max_len=2048", f"-dict={HERE / 'dictionary'}"]
    command = [str(binary), *limits, f"-artifact_prefix={tmp_path}/", str(corpus), str(HERE / "seeds" / target)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 60, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
