"""The program: its commands, exit codes, and how it ends when its reader or its user goes away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from pointsman.sidecar.cli import COMMANDS, main
from until import until

EXAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "examples"
POLICY = str(EXAMPLES / "canary.yaml")
PROGRAM = (sys.executable, "-m", "pointsman.sidecar")


def usage_exit(*words: str) -> int:
    """How argparse ended the program."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == usage_exit("--version")
    assert f"pointsman {metadata.version('pointsman')}\n" == capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == usage_exit("--help")
    listed = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert ["run", "check", "explain", "render", "xds", "rollout", "simulate", "demo"] == listed


@pytest.mark.parametrize("command", [name for name, _, _ in COMMANDS])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == usage_exit(command, "--help")
    assert f"usage: pointsman {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "COMMAND"),
        (("rout",), "invalid choice: 'rout'"),
        (("check",), "-c/--config"),
        (("explain",), "-c/--config"),
        (("render",), "-c/--config"),
        (("run",), "-c/--config"),
        (("check", "-c", POLICY, "--yaml"), "--yaml"),
        (("run", "-c", POLICY, "--drain-seconds", "soon"), "--drain-seconds"),
        (("run", "-c", POLICY, "--log-level", "loud"), "--log-level"),
        (("demo", "more"), "more"),
    ],
)
def test_wrong_usage_is_2_and_says_what(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == usage_exit(*words)
    captured = capsys.readouterr()
    assert "" == captured.out
    assert said in captured.err


@pytest.mark.parametrize("option", ["--drain-seconds", "--concurrency"])
def test_negative_numbers_of_run_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["run", "-c", POLICY, option, "-1"])
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "explain", "render"])
def test_exit_code_is_0_for_a_good_policy_and_2_for_a_bad_one(command: str, tmp_path: Path) -> None:
    assert 0 == main([command, "-c", POLICY])
    assert 2 == main([command, "-c", str(tmp_path / "none.yaml")])


def test_the_module_is_the_same_program() -> None:
    done = subprocess.run([*PROGRAM, "check", "-c", POLICY], capture_output=True, text=True, timeout=60, check=False)
    assert (0, "", True) == (done.returncode, done.stderr, "accepted" in done.stdout)
    done = subprocess.run([*PROGRAM, "nothing"], capture_output=True, text=True, timeout=60, check=False)
    assert 2 == done.returncode


def test_a_reader_that_goes_away_ends_it_without_a_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*PROGRAM, "render", "-c", POLICY], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writing)
    assert (1, b"") == (done.returncode, done.stderr)


async def test_an_interrupt_ends_it_with_130_and_without_a_traceback(tmp_path: Path) -> None:
    body = tmp_path / "body"
    os.mkfifo(body)
    program = await asyncio.create_subprocess_exec(
        *PROGRAM, "explain", "-c", POLICY, "-d", f"@{body}", stderr=asyncio.subprocess.PIPE
    )
    writers: list[int] = []

    async def opens_its_body() -> bool:
        try:
            writers.append(os.open(body, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    async def waits_for_its_body() -> bool:
        """It sleeps, and has the pipe open: a signal just before its read would not end the read."""
        process = Path("/proc", str(program.pid))
        files = [os.readlink(file) for file in (process / "fd").iterdir()]
        return str(body) in files and (process / "stat").read_text().rpartition(")")[2].split()[0] == "S"

    try:
        await until(opens_its_body)
        await until(waits_for_its_body)
        program.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(program.communicate(), 20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        for writer in writers:
            os.close(writer)
    assert (130, b"") == (program.returncode, errors)
