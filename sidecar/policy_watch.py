"""Says when the policy may have changed on disk: writes, atomic renames, and the symlink swaps of a mounted ConfigMap.

Decides only whether a change concerns the policy's files; reading and judging them is the agent's. Other files in the
same folder (logs, state) wake nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from watchfiles import Change, awatch

DEBOUNCE_MS = 20
"""Longest wait for more changes of one burst: an editor's write and rename should be one reload."""

STEP_MS = 5
"""How long nothing more must happen before a burst is over."""

CATCH_UP_MS = 500
"""How often the files themselves are looked at."""

SUFFIXES = (".yaml", ".yml")


class PolicyFilter:
    """Accepts changes of one policy file, or of any policy file in a directory."""

    def __init__(self, path: Path) -> None:
        """`path` is what `-c` names."""
        self._file = None if path.is_dir() else path.name

    def __call__(self, _change: Change, changed: str) -> bool:
        """Tell whether the change concerns the policy. `..data` is the link that Kubernetes swaps."""
        name = Path(changed).name
        if name == "..data":
            return True
        if self._file is not None:
            return name == self._file
        return _is_policy(Path(name))


def _is_policy(file: Path) -> bool:
    return file.suffix in SUFFIXES and not file.name.startswith(".")


Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of every policy file."""


def fingerprint(path: Path) -> Fingerprint:
    """Return what tells whether the policy's files are still those that were read; take it before reading."""
    try:
        files = sorted(filter(_is_policy, path.iterdir())) if path.is_dir() else [path]
    except OSError:  # a folder that cannot be looked into: reading it will tell why
        return ()
    found = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        found.append((file.name, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


async def changes(path: Path, stop: asyncio.Event, seen: Fingerprint) -> AsyncIterator[None]:
    """Yield once for every burst of changes since `seen`, until `stop` is set.

    Notifications come at once; the fingerprint, looked at every CATCH_UP_MS, finds what no notification told: a change
    before the watch began, or on a file system without notifications.
    """
    folder = path if path.is_dir() else path.parent
    async for told in awatch(
        folder,
        watch_filter=PolicyFilter(path),
        debounce=DEBOUNCE_MS,
        step=STEP_MS,
        stop_event=stop,
        recursive=False,
        rust_timeout=CATCH_UP_MS,
        yield_on_timeout=True,
    ):
        now = fingerprint(path)
        if told or now != seen:
            seen = now
            yield
