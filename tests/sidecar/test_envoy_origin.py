"""What an Envoy was started from: each part that matters changes it, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pointsman.sidecar.envoy_origin import EnvoyOrigin, changed_parts, origin_of


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A program and a scanner."""
    program, module = tmp_path / "envoy", tmp_path / "libscan.so"
    program.write_bytes(b"program")
    module.write_bytes(b"scanner")
    return program, module


def _bootstrap(text: str = "same") -> Callable[[str], bytes]:
    return lambda node_id: f"{text} {node_id}".encode()


def _origin(program: Path, module: Path | None, *, text: str = "same", arguments: tuple[str, ...] = ()) -> EnvoyOrigin:
    return origin_of(program, _bootstrap(text), module=module, arguments=arguments)


def test_same_files_and_bootstrap_are_the_same_origin(files: tuple[Path, Path]) -> None:
    program, module = files
    before = _origin(program, module)
    module.with_name("new").write_bytes(module.read_bytes())
    module.with_name("new").replace(module)

    assert changed_parts(before, _origin(program, module)) == ()


def test_each_part_is_told_by_name(files: tuple[Path, Path]) -> None:
    program, module = files
    before = _origin(program, module)

    assert changed_parts(before, _origin(program, module, text="other")) == ("bootstrap",)
    assert changed_parts(before, _origin(program, module, arguments=("--concurrency", "2"))) == ("arguments",)
    assert changed_parts(before, _origin(program, None)) == ("scanner",)
    module.write_bytes(b"another")
    assert changed_parts(before, _origin(program, module)) == ("scanner",)
    program.with_name("new").write_bytes(program.read_bytes())
    program.with_name("new").replace(program)
    assert changed_parts(before, _origin(program, module)) == ("program", "scanner")


def test_what_is_not_known_differs_from_all_that_is(files: tuple[Path, Path], tmp_path: Path) -> None:
    unknown = EnvoyOrigin()

    assert len(changed_parts(unknown, _origin(*files))) == 3
    assert len(changed_parts(unknown, _origin(*files, arguments=("-c",)))) == 4
    assert set(changed_parts(_origin(*files), _origin(tmp_path / "none", tmp_path / "none"))) == {"program", "scanner"}
