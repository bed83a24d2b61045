"""The shape of the tree: file sizes and names, no sleeping tests, licence, and what the wheel takes along."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (".py", ".c", ".h", ".sh")
MAX_LINES = 500
LONGER = {
    # One state machine each, or its scripts.
    "sidecar/scan_request.h": 550,
    "tests/xds/test_subscription.py": 800,
    "tests/xds/test_ads.py": 550,
    "tests/scan/test_scan_filter.py": 550,
    "tests/xds/test_logs_envoy.py": 520,
}
"""Files that are longer for a reason, and how long they may be."""

COLLECTORS = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
"""Names under which anything can be put."""

MAX_POLL_S = 0.05
"""A wait in a loop that looks for a condition; anything longer, or outside a loop, is a sleep."""

GENERATED = ("xds/envoy_api.binpb", "sidecar/libpmscan.so")
"""Files that the build makes and the wheel takes along."""


def tracked() -> list[str]:
    """Files of the repository, those included that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("git is missing, or this is no checkout: the files of the repository are not known")
    return sorted(name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


def project() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_no_source_file_is_longer_than_it_may_be() -> None:
    lengths = {
        name: len((ROOT / name).read_text(encoding="utf-8").splitlines())
        for name in tracked()
        if name.endswith(SOURCES)
    }
    assert {} == {name: lines for name, lines in lengths.items() if lines > LONGER.get(name, MAX_LINES)}


def test_no_file_has_a_name_that_collects() -> None:
    assert [] == [name for name in tracked() if COLLECTORS & set(re.split(r"[_.-]", Path(name).stem.lower()))]


def sleeps(path: Path) -> list[int]:
    """Lines of calls that wait for time alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    polled = {id(node) for loop in ast.walk(tree) if isinstance(loop, ast.While | ast.For) for node in ast.walk(loop)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sleep", "time.sleep", "asyncio.sleep"):
            seconds = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            is_poll = id(node) in polled and seconds is not None and seconds <= MAX_POLL_S
            if seconds != 0 and not is_poll:
                found.append(node.lineno)
    return found


def test_no_test_sleeps() -> None:
    tests = [name for name in tracked() if name.startswith("tests/") and Path(name).name.startswith("test_")]
    assert {} == {name: lines for name in tests if name.endswith(".py") and (lines := sleeps(ROOT / name))}


def test_licence_is_there_and_is_what_the_package_says() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert project()["project"]["license"] == "Apache-2.0"
    assert "Apache License" in text.splitlines()[1]
    assert "Version 2.0, January 2004" in text


def test_every_package_is_in_the_wheel_from_its_own_folder() -> None:
    folders = {name.split("/")[0] for name in tracked() if name.endswith("/__init__.py") and name.count("/") == 1}
    setuptools = project()["tool"]["setuptools"]
    assert isinstance(setuptools, dict)
    assert {f"pointsman.{folder}": folder for folder in folders} == setuptools["package-dir"]
    assert sorted(setuptools["package-dir"]) == sorted(setuptools["packages"])


def test_every_file_of_a_package_is_in_the_wheel() -> None:
    setuptools = project()["tool"]["setuptools"]
    assert isinstance(setuptools, dict)
    patterns, left_out = setuptools["package-data"], []
    for package, folder in setuptools["package-dir"].items():
        taken = [*patterns["*"], *patterns.get(package, ()), "*.py"]
        for name in (*tracked(), *GENERATED):
            if name.startswith(f"{folder}/") and not any(fnmatch(name.removeprefix(f"{folder}/"), p) for p in taken):
                left_out.append(name)
    assert [] == left_out
