"""One burst of load at one subject: requests, latencies, and the processor time that they took."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from measured import Subject
from processor_time import processor_us
from workload import Workload

CONNECTIONS = 16
LOAD = Path(__file__).with_name("load.lua")
SETTLE_S = 0.25
"""Log entries and spans that are under way when the load ends are counted too."""


class LoadFailed(Exception):
    """Requests failed: what was measured would not be what was meant."""


@dataclass(frozen=True, slots=True)
class Burst:
    """What one burst showed; times of latency in ms, processor times in microseconds a request."""

    requests: int
    per_s: float
    p50_ms: float
    p99_ms: float
    envoy_us: float | None
    python_us: float | None


def send(subject: Subject, workload: Workload, body: Path, seconds: float) -> Burst:
    """Send the workload to the subject for whole seconds or tenths; LoadFailed when a request did not end in 200."""
    pids = (subject.envoy_pid, subject.python_pid)
    before = [processor_us(pid) if pid is not None else 0.0 for pid in pids]
    found = _wrk(subject.port, workload, body, seconds)
    time.sleep(SETTLE_S)
    after = [processor_us(pid) if pid is not None else 0.0 for pid in pids]
    requests = found["requests"]
    if found["bad"] or not requests:
        raise LoadFailed(f"{subject.name}, {workload.name}: {found['bad']} of {requests} requests failed")
    envoy_us, python_us = (
        (late - early) / requests if pid is not None else None
        for pid, early, late in zip(pids, before, after, strict=True)
    )
    return Burst(
        requests=requests,
        per_s=requests / (found["took_us"] / 1e6),
        p50_ms=found["p50_us"] / 1e3,
        p99_ms=found["p99_us"] / 1e3,
        envoy_us=envoy_us,
        python_us=python_us,
    )


def _wrk(port: int, workload: Workload, body: Path, seconds: float) -> dict[str, int]:
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "-s", str(LOAD), f"http://127.0.0.1:{port}/"]
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "BENCH_BODY": str(body),
        "BENCH_PATH": workload.path,
        "BENCH_HEADERS": "\n".join(f"{name}:{value}" for name, value in workload.headers),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds + 20, check=True)
    found: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
