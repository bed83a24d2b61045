"""`pointsman run` as a process of its own, for tests that kill, restart and reload it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import aiohttp
from until import until
from wire import free_port

POLICY = """
apiVersion: pointsman.dev/v1alpha1
kind: Model
metadata: {{name: support-chat}}
spec:
  versions:
    - {{name: v2.2, endpoints: [{{address: "127.0.0.1:{stable}"}}]}}
    - {{name: v2.3-beta, endpoints: [{{address: "127.0.0.1:{canary}"}}]}}
{more}
---
apiVersion: pointsman.dev/v1alpha1
kind: Route
metadata: {{name: support}}
spec:
  match: {{intents: [chat]}}
  targets: [support-chat]
  canary: {{model: support-chat, version: v2.3-beta, weight: {weight}, stickBy: [x-context-id]}}
---
apiVersion: pointsman.dev/v1alpha1
kind: Settings
metadata: {{name: default}}
spec: {{listen: "127.0.0.1:{listen}", admin: "127.0.0.1:{admin}", stateDir: "{state}"}}
"""


class AgentProcess:
    """One policy file and state directory; the process may be started again and again."""

    def __init__(self, folder: Path, *, stable: int, canary: int) -> None:
        self.folder = folder
        self.policy = folder / "policy.yaml"
        self.listen = free_port()
        self.admin = free_port()
        self._values = {"stable": stable, "canary": canary, "weight": 0, "more": "", "listen": self.listen,
                        "admin": self.admin, "state": folder / "state"}  # fmt: skip
        self.process: asyncio.subprocess.Process | None = None
        self._starts = 0
        self.write()

    def write(self, **changes: object) -> None:
        """Replace the policy file atomically."""
        self._values.update(changes)
        aside = self.folder / "policy.new"
        aside.write_text(POLICY.format(**self._values))
        aside.rename(self.policy)

    @property
    def log(self) -> str:
        """What the process said on standard error, all starts together."""
        return "".join(file.read_text() for file in sorted(self.folder.glob("run-*.log")))

    async def start(self, **environ: str) -> str:
        """Start it and return its first line of output, empty when it ended before."""
        self._starts += 1
        with (self.folder / f"run-{self._starts:02}.log").open("wb") as errors:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "pointsman.sidecar", "run", "-c", str(self.policy),
                stdout=asyncio.subprocess.PIPE, stderr=errors, env={**os.environ, **environ},
            )  # fmt: skip
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        return line.decode().strip()

    async def stop(self) -> int:
        """Ask it to end and return its exit code."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), 45)

    async def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    def envoy_pid(self) -> int:
        """The newest Envoy's pid, from the state directory."""
        rows = json.loads((self.folder / "state" / "envoy.pid").read_bytes())["envoys"]
        return int(rows[-1]["process"]["pid"])

    def end_envoys(self) -> None:
        """End every Envoy that the state directory names: for tests that killed its agent."""
        with contextlib.suppress(FileNotFoundError):
            for row in json.loads((self.folder / "state" / "envoy.pid").read_bytes())["envoys"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(row["process"]["pid"]), signal.SIGKILL)

    async def admin_json(self, path: str) -> tuple[int, dict[str, object]]:
        """GET an admin page."""
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.admin}{path}") as response:
            return response.status, await response.json()

    async def until_log(self, text: str, within_s: float = 20) -> None:
        """Wait until the log holds the text (the log is a file: it is looked at, not listened to)."""

        async def said() -> bool:
            return text in self.log

        await until(said, within_s)
