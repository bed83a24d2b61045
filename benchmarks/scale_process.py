"""A process of the bench that answers commands with lines of JSON."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

ANSWER_S = 120.0


class Speaker:
    """One of our scripts as a process; use with `with`. RuntimeError where it ends or stays silent."""

    def __init__(self, script: str, *arguments: str) -> None:
        """Starts it."""
        command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._script = script

    def __enter__(self) -> Self:
        self.hear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None and kind is None:
            self.tell("stop")
        else:
            self._process.kill()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def tell(self, command: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, float]:
        """Return the next answer."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_S)[0]:
            raise RuntimeError(f"{self._script} gave no answer within {ANSWER_S:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._script} ended with {self._process.wait(10)}; its errors are above")
        answer: dict[str, float] = json.loads(line)
        return answer

    def ask(self, command: str) -> dict[str, float]:
        """Send a command and return the answer."""
        self.tell(command)
        return self.hear()
