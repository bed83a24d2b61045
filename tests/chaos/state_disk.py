"""A disk of its own, 1 MiB large, for the state directory of a chaos run, so that it can be filled.

Needs root for the mount; without, `why_not` says so and the state directory is a plain folder. Always unmounted.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

SIZE_MIB = 1
_PIECE_BYTES = 4_096


class StateDisk:
    """The state directory's place; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.why_not = ""
        self._filler = path / "filler"
        self._is_mounted = False

    def __enter__(self) -> Self:
        self.path.mkdir(mode=0o700)
        if os.geteuid() != 0:
            self.why_not = "mounting a small disk needs root"
            return self
        options = f"size={SIZE_MIB}m,mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "pointsman-chaos", str(self.path)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        self._is_mounted = mounted.returncode == 0
        self.why_not = "" if self._is_mounted else f"mount: {mounted.stderr.strip()}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_mounted:
            # Lazily: a process that should have ended must not keep the mount.
            subprocess.run(["umount", "-l", str(self.path)], check=True)

    def fill(self) -> int:
        """Fill the disk to the last page and return how many bytes that took."""
        written = 0
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while True:
                written += os.write(descriptor, b"\0" * _PIECE_BYTES)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(descriptor)
        return written

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)
