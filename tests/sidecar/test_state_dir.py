"""The state directory on a real file system."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pointsman.sidecar.state_dir import (
    MAX_SOCKET_PATH_BYTES,
    StateDir,
    StateRefused,
    default_state_path,
    own_private_directory,
    runtime_path,
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, unlike pytest's own."""
    with TemporaryDirectory(prefix="pm-") as folder:
        yield Path(folder)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_directory_is_made_for_its_user_alone(place: Path) -> None:
    with StateDir(place / "deep" / "state", runtime=place / "run") as state:
        assert _mode(state.path) == 0o700
        assert _mode(state.path / "lock") == 0o600
        assert state.sockets == state.path
        assert not (place / "run").exists()


def test_second_one_is_refused_and_told_the_holder(place: Path) -> None:
    with StateDir(place / "state", runtime=place / "run"):
        with pytest.raises(StateRefused, match=rf"in use by another pointsman, pid {os.getpid()}\b"):
            StateDir(place / "state", runtime=place / "run")


def test_directory_is_free_again_after_close(place: Path) -> None:
    StateDir(place / "state", runtime=place / "run").close()

    with StateDir(place / "state", runtime=place / "run") as state:
        state.close()
        state.close()


def test_killed_holder_leaves_the_directory_free(place: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from pointsman.sidecar.state_dir import StateDir\n"
        "held = StateDir(Path(sys.argv[1]), runtime=Path(sys.argv[2]))\n"
        "print(os.getpid(), flush=True); os.kill(os.getpid(), 9)\n"
    )
    arguments = [sys.executable, "-c", program, str(place / "state"), str(place / "run")]

    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=30)

    assert ended.returncode == -9
    assert ended.stdout.strip() == (place / "state" / "lock").read_text().strip()
    StateDir(place / "state", runtime=place / "run").close()


def test_children_do_not_keep_the_lock(place: Path) -> None:
    state = StateDir(place / "state", runtime=place / "run")
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        try:
            state.close()
            StateDir(place / "state", runtime=place / "run").close()
        finally:
            child.kill()


def test_long_path_puts_the_sockets_in_the_runtime_folder(place: Path) -> None:
    path = place / ("long" * 30)
    with StateDir(path, runtime=place / "run") as state:
        sockets = state.sockets
        assert sockets.parent == place / "run"
        assert _mode(sockets) == 0o700
        assert len(os.fsencode(state.old_admin_socket(4_194_304))) <= MAX_SOCKET_PATH_BYTES
        assert state.bootstrap.parent == path
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(state.xds_socket))
    assert not sockets.exists()

    with StateDir(path, runtime=place / "run") as again:
        assert again.sockets == sockets


def test_sockets_of_a_living_envoy_stay_in_the_runtime_folder(place: Path) -> None:
    with StateDir(place / ("long" * 30), runtime=place / "run") as state:
        state.admin_socket.touch()

    assert state.admin_socket.exists()


def test_no_short_path_at_all_is_refused(place: Path) -> None:
    with pytest.raises(StateRefused, match="choose a shorter stateDir"):
        StateDir(place / ("long" * 30), runtime=place / ("also" * 30))

    with StateDir(place / ("long" * 30), runtime=place / "run"):
        pass


def test_open_directory_with_content_is_left_alone(place: Path) -> None:
    shared = place / "shared"
    shared.mkdir(mode=0o755)
    (shared / "someone's").touch()

    with pytest.raises(StateRefused, match="open to others"):
        StateDir(shared, runtime=place / "run")

    assert _mode(shared) == 0o755


def test_sticky_directory_is_left_alone(place: Path) -> None:
    shared = place / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)

    with pytest.raises(StateRefused, match="open to others"):
        StateDir(shared, runtime=place / "run")

    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_open_empty_directory_is_closed_to_others(place: Path) -> None:
    given = place / "given"
    given.mkdir(mode=0o755)

    with StateDir(given, runtime=place / "run"):
        assert _mode(given) == 0o700


def test_file_in_its_place_is_refused(place: Path) -> None:
    (place / "state").touch()

    with pytest.raises(StateRefused, match="found a file"):
        StateDir(place / "state", runtime=place / "run")


def test_private_directory_refuses_a_link(place: Path) -> None:
    (place / "real").mkdir(mode=0o700)
    (place / "link").symlink_to(place / "real")

    with pytest.raises(StateRefused, match="expected a directory of user"):
        own_private_directory(place / "link")


def test_private_directory_refuses_one_that_others_can_enter(place: Path) -> None:
    (place / "open").mkdir()
    (place / "open").chmod(0o755)

    with pytest.raises(StateRefused, match="drwxr-xr-x"):
        own_private_directory(place / "open")


def test_default_path_depends_on_the_policy(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": "/state", "HOME": "/home/a"}
    first = default_state_path(tmp_path / "a.yaml", environ)

    assert first.parent == Path("/state/pointsman")
    assert first == default_state_path(tmp_path / "x" / ".." / "a.yaml", environ)
    assert first != default_state_path(tmp_path / "b.yaml", environ)
    assert default_state_path(tmp_path, {"HOME": "/home/a"}).parent == Path("/home/a/.local/state/pointsman")


def test_runtime_path_needs_a_short_writable_folder(place: Path) -> None:
    assert runtime_path({"XDG_RUNTIME_DIR": str(place)}) == place / "pointsman"
    for unusable in ({}, {"XDG_RUNTIME_DIR": "/nowhere"}, {"XDG_RUNTIME_DIR": "/tmp/" + "x" * 80}):
        assert runtime_path(unusable) == Path(f"/tmp/pointsman-{os.getuid()}")
