"""The product of a chaos run: `pointsman run` and its Envoys on one policy file and state directory.

Starts, signals and asks; decides nothing about when. Refuses to leave a process behind: `end_all` ends what it started
by its identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from pointsman.router.table import Table
from pointsman.sidecar.envoy_admin import AdminUnreachable, EnvoyAdmin
from pointsman.sidecar.process_identity import ProcessIdentity, identify, send_signal
from variant import Variant, table_of

READY_WITHIN_S = 60.0
STOPS_WITHIN_S = 45.0
_ASK_S = 5.0


class StartFailed(Exception):
    """`pointsman run` ended, or did not say that it is ready."""


class Product:
    """One policy file, one state directory, one agent at a time."""

    def __init__(self, folder: Path, places: Mapping[str, object], environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.policy = folder / "policy.yaml"
        self.log = folder / "agent.log"
        self.listen = int(str(places["LISTEN"]))
        self._admin = f"http://127.0.0.1:{places['ADMIN']}"
        self._places = places
        self._state = Path(str(places["STATE"]))
        self._environ = {**os.environ, "PYTHONUNBUFFERED": "1", **environ}
        self.process: asyncio.subprocess.Process | None = None
        self._envoys: set[ProcessIdentity] = set()

    # ---- policy

    def write(self, variant: Variant) -> tuple[Table, str]:
        """Put a good policy into place; return its table and text."""
        text = variant.text(self._places)
        aside = self.folder / "policy.new"
        aside.write_text(text)
        table = table_of(aside)
        aside.replace(self.policy)
        return table, text

    # ---- life

    async def start(self) -> float:
        """Start the agent; return the seconds until its ready line. StartFailed tells its exit code and last words."""
        started_s = time.monotonic()
        await self.spawn()
        line = await self._first_line()
        if not line.startswith(b"ready "):
            assert self.process is not None
            code = await asyncio.wait_for(self.process.wait(), STOPS_WITHIN_S)
            raise StartFailed(f"exit {code}: {self.log_tail()}")
        return time.monotonic() - started_s

    async def start_refused(self) -> int:
        """Start an agent that should refuse to run; return its exit code."""
        await self.spawn()
        line = await self._first_line()
        if line:
            raise StartFailed(f"expected an exit, found {line!r}")
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), STOPS_WITHIN_S)

    async def spawn(self) -> None:
        """Start the agent and wait for nothing. Ctrl-C on the terminal is for the harness alone: it stops the agent."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "pointsman.sidecar", "run", "-c", str(self.policy),
                stdout=asyncio.subprocess.PIPE, stderr=log, env=self._environ,
                start_new_session=True,
            )  # fmt: skip

    async def _first_line(self) -> bytes:
        assert self.process is not None
        assert self.process.stdout is not None
        return await asyncio.wait_for(self.process.stdout.readline(), READY_WITHIN_S)

    @property
    def agent_pid(self) -> int | None:
        """The living agent's pid."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None

    def signal_agent(self, number: signal.Signals) -> None:
        """Signal the agent, if it lives."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def kill_agent(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.signal_agent(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        """Drain and end; return the exit code."""
        assert self.process is not None
        self.signal_agent(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), STOPS_WITHIN_S)

    def envoys(self) -> list[ProcessIdentity]:
        """Return the living Envoys of this state directory, oldest first: all of them, recorded by the agent or not."""
        bootstrap = os.fsencode(self._state / "bootstrap.pb")
        pids = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                    # Not those that only judge the bootstrap.
                    if bootstrap in words and b"validate" not in words:
                        pids.append(int(entry.name))
        found = [process for process in map(identify, pids) if process is not None]
        self._envoys.update(found)
        return sorted(found, key=lambda process: process.start_ticks)

    def kill_envoys(self) -> list[int]:
        """kill -9 every Envoy that lives; return their pids."""
        found = self.envoys()
        for process in found:
            send_signal(process, signal.SIGKILL)
        return [process.pid for process in found]

    async def end_all(self) -> list[int]:
        """End what still lives; return the pids of Envoys that an ended agent left."""
        if self.agent_pid is not None:
            self.signal_agent(signal.SIGCONT)
            try:
                await self.stop()
            except TimeoutError:
                await self.kill_agent()
        self.envoys()
        return [process.pid for process in self._envoys if send_signal(process, signal.SIGKILL)]

    # ---- what it says

    async def page(self, path: str) -> dict[str, object]:
        """Return an admin page; OSError when nobody answers in time."""
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_S)) as session:
                async with session.get(self._admin + path) as response:
                    return dict(await response.json())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise OSError(f"{path}: {type(error).__name__}: {error}") from error

    async def has_table_in_force(self) -> bool:
        """Tell whether every connected Envoy has acknowledged the agent's version."""
        version = (await self.page("/readyz")).get("version")
        nodes = (await self.page("/xds")).get("nodes")
        living = [node for node in nodes if node["connected"]] if isinstance(nodes, list) else []
        return bool(living) and all(node["acknowledgedSnapshot"] == version for node in living)

    async def gauges(self) -> dict[str, int]:
        """Return what Envoy holds open: requests and connections of clients, requests to servers."""
        names = r"(http\.pointsman\.downstream_(rq|cx)_active|^cluster\..*\.upstream_rq_active)$"
        try:
            async with EnvoyAdmin(self._state / "admin.sock") as admin:
                rows = json.loads(await admin.get(f"/stats?format=json&filter={names}"))["stats"]
        except AdminUnreachable as error:
            raise OSError(str(error)) from error
        # The agent's own streams are requests of Envoy too, and stay.
        own = ("cluster.pointsman_xds.", "cluster.pointsman_log.")
        return {row["name"]: int(row["value"]) for row in rows if "name" in row and not row["name"].startswith(own)}

    def log_entries(self, from_byte: int = 0) -> list[dict[str, object]]:
        """Return the agent's log from there on; a line that is no JSON comes as `{"not_json": …}`."""
        entries: list[dict[str, object]] = []
        with self.log.open("rb") as file:
            file.seek(from_byte)
            for line in file.read().decode("utf-8", "replace").splitlines():
                try:
                    entries.append(json.loads(line))
                except ValueError:
                    entries.append({"not_json": line})
        return entries

    def log_size(self) -> int:
        """Return where the log ends now."""
        return self.log.stat().st_size if self.log.exists() else 0

    def log_tail(self) -> str:
        """Return what the agent said last."""
        return self.log.read_text("utf-8", "replace")[-600:].strip()
