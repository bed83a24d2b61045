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
        return name.endswith(SUFFIXES) and not name.startswith(".")


async def changes(path: Path, stop: asyncio.Event) -> AsyncIterator[None]:
    """Yield once for every burst of changes until `stop` is set."""
    folder = path if path.is_dir() else path.parent
    async for _ in awatch(
        folder,
        watch_filter=PolicyFilter(path),
        debounce=DEBOUNCE_MS,
        step=STEP_MS,
        stop_event=stop,
        recursive=False,
        rust_timeout=1_000,
    ):
        yield
