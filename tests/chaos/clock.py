"""The wall clock of the agent in a chaos run: a preloaded shim adds an offset that changes while the agent runs.

Decides nothing; `why_not` tells why it cannot be had (no C compiler, or a Python that the shim does not reach).
Only CLOCK_REALTIME moves: that is what an operator or a time server can move.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

SHIM = Path(__file__).with_name("clock_shim.c")


class MovableClock:
    """Give `environ` to a process; `move` changes its clock."""

    def __init__(self, folder: Path) -> None:
        """Compile the shim and try it on a Python process."""
        self._file = folder / "clock"
        self._library = folder / "clock_shim.so"
        self.move(0)
        self.why_not = self._build() or self._try()

    @property
    def environ(self) -> dict[str, str]:
        """Variables for the process whose clock shall move; none where that cannot be."""
        return {} if self.why_not else self._variables

    @property
    def _variables(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._file)}

    def move(self, offset_s: int) -> None:
        """Set the offset, in place: the processes have the file mapped."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(descriptor, struct.pack("q", offset_s), 0)
        os.close(descriptor)

    def _build(self) -> str:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            return "no C compiler"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SHIM), "-ldl"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        return built.stderr.strip().splitlines()[-1] if built.returncode else ""

    def _try(self) -> str:
        self.move(86_400)
        command = [sys.executable, "-c", "import time; print(int(time.time()))"]
        told = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | self._variables)
        self.move(0)
        moved_s = int(told.stdout or 0) - time.time()
        return "" if abs(moved_s - 86_400) < 60 else f"the shim moved Python's clock by {moved_s:.0f} s, not by a day"
