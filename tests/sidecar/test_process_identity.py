"""Process identity against real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pointsman.sidecar.envoy_origin import EnvoyOrigin
from pointsman.sidecar.process_identity import (
    EnvoyRecord,
    ProcessIdentity,
    has_ended,
    identify,
    is_alive,
    living_envoys,
    send_signal,
    until_ended,
    write_envoys,
)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that names a file of the folder among its arguments, as an Envoy of ours does."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(tmp_path / "x")]) as process:
        yield process
        process.kill()


def _identity(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    identity = identify(process.pid)
    assert identity is not None
    return identity


def test_identity_is_stable_and_alive(sleeper: subprocess.Popen[bytes]) -> None:
    identity = _identity(sleeper)

    assert identity == identify(sleeper.pid)
    assert is_alive(identity)


def test_command_with_parentheses_and_spaces_is_read(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        assert is_alive(_identity(process))
        process.kill()


async def test_ended_process_is_told_from_a_living_one(sleeper: subprocess.Popen[bytes]) -> None:
    identity = _identity(sleeper)
    assert not await has_ended(identity, 20)

    assert send_signal(identity, signal.SIGTERM)

    assert await has_ended(identity, 10_000)
    # Not reaped yet: a zombie serves nobody.
    assert identify(sleeper.pid) is None
    assert not is_alive(identity)
    assert not send_signal(identity, signal.SIGTERM)


@pytest.mark.parametrize("other", [{"start_ticks": 1}, {"boot_id": "another"}])
async def test_pid_that_went_to_another_process_is_not_signalled(
    sleeper: subprocess.Popen[bytes], other: dict[str, object]
) -> None:
    stale = replace(_identity(sleeper), **other)  # type: ignore[arg-type]  # field names of the table above

    assert not send_signal(stale, signal.SIGKILL)
    assert await has_ended(stale, 1_000)
    assert sleeper.poll() is None


def test_file_gives_back_the_living_ones(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    origin = EnvoyOrigin("00ff", "a program", "a scanner", "-c x")
    living = EnvoyRecord(_identity(sleeper), tmp_path / "admin.sock", "node-1", origin)
    dead = replace(living, process=replace(living.process, start_ticks=1))
    path = tmp_path / "envoy.pid"

    write_envoys(path, (dead, living))

    assert living_envoys(path) == (living,)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["envoy.pid"]
    write_envoys(path, ())
    assert not path.exists()


def test_process_that_does_not_name_our_folder_is_no_envoy_of_ours(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        record = EnvoyRecord(_identity(stranger), tmp_path / "admin.sock", "node-1", EnvoyOrigin())
        write_envoys(tmp_path / "envoy.pid", (record,))
        assert living_envoys(tmp_path / "envoy.pid") == ()
        stranger.kill()


def test_file_of_another_version_names_what_it_knows(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    identity = _identity(sleeper)
    path = tmp_path / "envoy.pid"
    row = {"process": asdict(identity) | {"more": 1}, "admin_socket": "a.sock", "origin": {"program": "p", "more": 1}}
    path.write_text(json.dumps({"envoys": [row], "more": 1}))

    assert living_envoys(path) == (EnvoyRecord(identity, Path("a.sock"), "", EnvoyOrigin(program="p")),)


async def test_end_is_awaited_by_who_is_not_the_parent(sleeper: subprocess.Popen[bytes]) -> None:
    waiting = asyncio.create_task(until_ended(_identity(sleeper)))
    assert not await has_ended(_identity(sleeper), 20)
    assert not waiting.done()

    sleeper.kill()

    await asyncio.wait_for(waiting, 10)


@pytest.mark.parametrize(
    "content", ["", "{", "[" * 200_000, "[]", '{"envoys": [{}]}', '{"envoys": [{"process": {"pid": 1}}]}', "\xff"]
)
def test_damaged_file_names_nobody(content: str, tmp_path: Path) -> None:
    path = tmp_path / "envoy.pid"
    path.write_text(content, "latin-1")

    assert living_envoys(path) == ()
    assert living_envoys(tmp_path / "none") == ()
