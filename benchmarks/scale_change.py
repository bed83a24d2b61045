"""Measures a policy change's way: from the write of the file to the first request on the new side, at a real Envoy.

Starts two simulated servers and the product itself (scale_stamps.py), turns one model's canary from none to all and
back, and asks over one connection until the other server answers. Refuses (RuntimeError) where a request fails.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scale_table import model_name, policy
from sockets import free_port, wait_until_listening

STAGES = ("noticed", "decoded", "built", "rendered", "checked", "published", "acknowledged", "live")
"""What ended, in order; the first starts with the write."""

READY_S = 60.0
CHANGE_S = 5.0
PAUSE_S = 0.001
"""Between two requests: who asks without a pause takes the core that the change needs."""

OLD, NEW = "old@v1", "new@v2"
WARM_CHANGES = 2
MAX_LIVE_MS = 60.0
"""The floor: a table of FLOOR_ROWS is live within this, in the median."""

FLOOR_ROWS = 50


@dataclass(frozen=True, slots=True)
class Change:
    """What a table of so many rows showed; one entry a change."""

    rows: int
    live_ms: tuple[float, ...]
    stages_ms: tuple[Mapping[str, float], ...]
    request_ms: float
    """What one request takes while nothing changes: how exactly the end is seen."""


def measure(rows: int, changes: int) -> Change:
    """Start everything, change the policy so many times, and end everything."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pm-scale-")))
        sidecar = _Sidecar(stack, folder, rows)
        connection = sidecar.connect(stack)
        request_ms = statistics.median(_request(connection)[1] for _ in range(50))
        found = [_change(sidecar, connection, number) for number in range(WARM_CHANGES + changes)][WARM_CHANGES:]
    return Change(rows, tuple(live for live, _ in found), tuple(stages for _, stages in found), request_ms)


class _Sidecar:
    """The product and its servers, as processes that end with the stack."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, rows: int) -> None:
        self._folder, self._rows = folder, rows
        self._ports, self._listen, self._admin = (free_port(), free_port()), free_port(), free_port()
        self.stamps = folder / "stamps"
        for port, target in zip(self._ports, (OLD, NEW), strict=True):
            arguments = ["--listen", f"127.0.0.1:{port}", "--target", target, "--accepts", model_name(0)]
            server = self._start(stack, ["-m", "pointsman.sidecar", "simulate", *arguments])
            wait_until_listening(port, server)
        self.write(0)
        script = str(Path(__file__).with_name("scale_stamps.py"))
        agent = self._start(stack, [script, str(self.stamps), "run", "-c", str(folder / "policy.yaml")])
        until = time.monotonic() + READY_S
        while "ready " not in (folder / "output").read_text():
            if agent.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"pointsman run did not get ready: {(folder / 'output').read_text()[-500:]}")
            time.sleep(0.05)

    def write(self, weight: int) -> float:
        """Replace the policy's file; return when, by the system's monotonic clock."""
        fresh = self._folder / "policy.new"
        fresh.write_text(
            policy(
                self._rows,
                weight,
                ports=self._ports,
                listen=self._listen,
                admin=self._admin,
                state=str(self._folder / "state"),
            )
        )
        written_s = time.monotonic()
        fresh.replace(self._folder / "policy.yaml")
        return written_s

    def connect(self, stack: contextlib.ExitStack) -> http.client.HTTPConnection:
        """Return a connection to Envoy."""
        connection = http.client.HTTPConnection("127.0.0.1", self._listen, timeout=20)
        stack.callback(connection.close)
        return connection

    def _start(self, stack: contextlib.ExitStack, arguments: list[str]) -> subprocess.Popen[bytes]:
        output = stack.enter_context((self._folder / "output").open("ab"))
        process = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=output, env=os.environ)
        stack.callback(_end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _request(connection: http.client.HTTPConnection) -> tuple[str, float]:
    """Send a chat request; return who answered, and the time that it took."""
    body = json.dumps({"model": model_name(0), "messages": [{"role": "user", "content": "hello"}]})
    started_s = time.monotonic()
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json", "x-context-id": "a"})
    response = connection.getresponse()
    response.read()
    if response.status != 200:
        raise RuntimeError(f"a request got {response.status} instead of 200")
    return response.getheader("x-served-by", ""), (time.monotonic() - started_s) * 1e3


def _change(sidecar: _Sidecar, connection: http.client.HTTPConnection, number: int) -> tuple[float, dict[str, float]]:
    """Change the policy once; return the time until it was live, and that of each stage."""
    time.sleep(random.uniform(0.05, 0.15))  # not in step with anything that happens at intervals
    before = len(_lines(sidecar.stamps))
    wanted = OLD if number % 2 else NEW
    written_s = sidecar.write(0 if number % 2 else 100)
    while _request(connection)[0] != wanted:
        if time.monotonic() - written_s > CHANGE_S:
            raise RuntimeError(f"a change was not live after {CHANGE_S:.0f} s")
        time.sleep(PAUSE_S)
    live_s = time.monotonic()
    while len(lines := _lines(sidecar.stamps)) <= before:
        if time.monotonic() - written_s > CHANGE_S:
            raise RuntimeError(f"a change was not acknowledged after {CHANGE_S:.0f} s")
        time.sleep(0.005)
    times_s = json.loads(lines[before]) | {"live": live_s}
    stages_ms, last_s = {}, written_s
    for stage in STAGES:
        # Envoy uses a table before its acknowledgement has arrived: then this stage took nothing.
        stages_ms[stage] = max(0.0, times_s[stage] - last_s) * 1e3
        last_s = max(last_s, times_s[stage])
    return (live_s - written_s) * 1e3, stages_ms


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
