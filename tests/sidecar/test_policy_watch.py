"""Changes on disk: which wake the agent, and that none is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from pointsman.sidecar.policy_watch import CATCH_UP_MS, Fingerprint, PolicyFilter, changes, fingerprint
from watchfiles import Change

NOTICED_WITHIN_S = 20
QUIET_FOR_S = 2.5 * CATCH_UP_MS / 1_000
"""Two looks at the files themselves fit into this."""


@contextlib.asynccontextmanager
async def watching(path: Path, seen: Fingerprint | None = None) -> AsyncIterator[AsyncGenerator[None]]:
    """The changes of the path since `seen`; without it, those from when the watch has surely begun."""
    stop = asyncio.Event()
    told = cast("AsyncGenerator[None]", changes(path, stop, seen or ()))
    try:
        if seen is None:
            await is_told(told)  # that there is a file at all
        yield told
    finally:
        stop.set()
        await told.aclose()


async def is_told(told: AsyncGenerator[None]) -> None:
    """Return at the next change."""
    await asyncio.wait_for(anext(told), NOTICED_WITHIN_S)


async def is_quiet(told: AsyncGenerator[None]) -> bool:
    """Tell whether nothing is told for as long as it takes to look twice."""
    waiting = asyncio.ensure_future(anext(told))
    done, _ = await asyncio.wait({waiting}, timeout=QUIET_FOR_S)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return not done


@contextlib.asynccontextmanager
async def expecting(told: AsyncGenerator[None]) -> AsyncIterator[None]:
    """What is done in the block is told."""
    waiting = asyncio.ensure_future(is_told(told))
    yield
    await waiting


def replace_file(file: Path, text: str) -> None:
    aside = file.with_name(f"{file.name}.new")
    aside.write_text(text)
    aside.rename(file)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text("a: 1\n")
    return file


async def test_write_and_atomic_replacement_are_told_again_and_again(policy: Path) -> None:
    async with watching(policy) as told:
        for number in range(2, 5):
            async with expecting(told):
                policy.write_text(f"a: {number}\n")
            async with expecting(told):
                replace_file(policy, f"b: {number}\n")


async def test_file_that_goes_and_comes_back_is_told_both_times(policy: Path) -> None:
    async with watching(policy) as told:
        async with expecting(told):
            policy.unlink()
        async with expecting(told):
            policy.write_text("a: 1\n")


async def test_change_between_reading_and_watching_is_told(policy: Path) -> None:
    seen = fingerprint(policy)
    replace_file(policy, "a: 2\n")
    async with watching(policy, seen) as told:
        await is_told(told)
        assert await is_quiet(told), "and told once"


async def test_nothing_is_told_while_nothing_changes(policy: Path) -> None:
    async with watching(policy) as told:
        assert await is_quiet(told)


async def test_other_files_beside_the_policy_wake_nobody(policy: Path) -> None:
    async with watching(policy) as told:
        waiting = asyncio.ensure_future(is_quiet(told))
        for name in ("envoy.log", "other.yaml", "policy.yaml.swp", "policy.yaml~", ".policy.yaml"):
            (policy.parent / name).write_text("x")
        assert await waiting


async def test_files_of_a_directory_come_change_and_go(policy: Path) -> None:
    async with watching(policy.parent) as told:
        more = policy.with_name("more.yml")
        async with expecting(told):
            more.write_text("b: 1\n")
        async with expecting(told):
            replace_file(more, "b: 2\n")
        async with expecting(told):
            more.unlink()


@pytest.mark.parametrize("name", ["notes.txt", "policy.yaml.swp", ".hidden.yaml"])
async def test_files_of_a_directory_that_are_not_read_wake_nobody(policy: Path, name: str) -> None:
    async with watching(policy.parent) as told:
        waiting = asyncio.ensure_future(is_quiet(told))
        policy.with_name(name).write_text("x")
        assert await waiting


@pytest.mark.parametrize("is_directory", [True, False])
async def test_swap_of_a_mounted_configmap_is_told(tmp_path: Path, *, is_directory: bool) -> None:
    for version in ("..v1", "..v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "policy.yaml").write_text(f"a: {version}\n")
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    async with watching(tmp_path if is_directory else tmp_path / "policy.yaml") as told:
        async with expecting(told):
            (tmp_path / "..data_tmp").symlink_to("..v2")
            (tmp_path / "..data_tmp").rename(tmp_path / "..data")


async def test_watch_ends_when_asked_to(policy: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    told = [None async for _ in changes(policy, stop, fingerprint(policy))]
    assert [] == told


FILE_NAMES = [
    ("policy.yaml", True, True),
    ("other.yaml", False, True),
    ("other.yml", False, True),
    ("..data", True, True),
    (".policy.yaml", False, False),
    ("policy.yaml.swp", False, False),
    ("policy.json", False, False),
    ("envoy.log", False, False),
]


@pytest.mark.parametrize(("name", "of_file", "of_directory"), FILE_NAMES)
def test_filter_takes_what_concerns_the_policy(tmp_path: Path, name: str, *, of_file: bool, of_directory: bool) -> None:
    changed = str(tmp_path / name)
    assert of_file == PolicyFilter(tmp_path / "policy.yaml")(Change.modified, changed)
    assert of_directory == PolicyFilter(tmp_path)(Change.added, changed)


def test_fingerprint_is_that_of_the_content_behind_links(policy: Path) -> None:
    link = policy.with_name("link.yaml")
    link.symlink_to(policy)
    before, status = fingerprint(link), policy.stat()
    assert before == fingerprint(link)
    replace_file(policy, "a: 2\n")
    os.utime(policy, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert before != fingerprint(link), "another file of the same size and time"


def test_fingerprint_of_what_is_not_there_is_empty(tmp_path: Path) -> None:
    assert () == fingerprint(tmp_path / "none.yaml")
    assert () == fingerprint(tmp_path)
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    assert () == fingerprint(tmp_path)


def test_a_path_that_cannot_even_be_looked_at_has_no_fingerprint_and_raises_nothing(tmp_path: Path) -> None:
    assert () == fingerprint(tmp_path / ("x" * 300))
