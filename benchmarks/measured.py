"""What is measured: the server itself, a bare Envoy, and sidecars that do more and more, in processes of their own.

Decides which processes a variant has and whose processor time counts. Every process ends with the `ExitStack`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import policies
from pointsman.sidecar.agent import MODULE
from pointsman.sidecar.envoy_binary import envoy_environment, find_envoy
from sockets import START_S, free_port, wait_until_listening

HERE = Path(__file__).parent

DIRECT = "server, direct"
BARE = "bare Envoy"
HEADERS = "header routing, request log"
BODY = "+ body routing, answer tokens"
TRIES = "+ per-try log"
TRACED = "+ every request traced"
ONE_ROW = "body routing, one row"
LARGE_TABLE = f"body routing, {policies.MODELS} x {policies.VERSIONS} x {policies.CLASSES} table"
"""Subjects, step by step; the last two differ in their table only and log no tries."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A sidecar's shape. `policy` takes listener, server and trace ports."""

    name: str
    policy: Callable[[int, int, int | None], str]
    has_scanner: bool = True
    logs_tries: bool = False
    is_traced: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """A running thing to send load to; None: it has no such process, or it is not measured."""

    name: str
    port: int
    envoy_pid: int | None = None
    python_pid: int | None = None


def start_bare_envoy(stack: contextlib.ExitStack, folder: Path, backend: int) -> Subject:
    """Start an Envoy that does nothing but forward: one listener, one cluster, the router."""
    port = free_port()
    folder.mkdir()
    config = folder / "bare.yaml"
    config.write_text(
        (HERE / "bare.yaml").read_text().replace("@LISTEN@", str(port)).replace("@BACKEND@", str(backend))
    )
    envoy = _start(stack, _envoy_command(config), envoy_environment(os.environ, None), folder / "envoy.log")
    wait_until_listening(port, envoy)
    return Subject(BARE, port, envoy_pid=envoy.pid)


def start_sidecar(
    stack: contextlib.ExitStack, folder: Path, variant: Variant, *, backend: int, traces: int | None
) -> Subject:
    """Start the agent's part and its Envoy, and wait until the table is in force."""
    port = free_port()
    folder.mkdir()
    policy = folder / "policy.yaml"
    policy.write_text(variant.policy(port, backend, traces if variant.is_traced else None))
    command = [sys.executable, str(HERE / "agent_process.py"), str(folder), str(policy)]
    command += ["1" if variant.has_scanner else "0", "1" if variant.logs_tries else "0"]
    agent = _start(stack, command, dict(os.environ), folder / "agent.log")
    bootstrap = folder / "bootstrap.pb"
    _wait(bootstrap.exists, agent, "wrote no bootstrap")
    module_folder = MODULE.parent if variant.has_scanner else None
    envoy = _start(stack, _envoy_command(bootstrap), envoy_environment(os.environ, module_folder), folder / "envoy.log")
    _wait(lambda: "ready" in (folder / "agent.log").read_text(), agent, "did not get its table to Envoy")
    wait_until_listening(port, envoy)
    return Subject(variant.name, port, envoy_pid=envoy.pid, python_pid=agent.pid)


def start_trace_sink(stack: contextlib.ExitStack, folder: Path) -> int:
    """Start the receiver of traces; return its port."""
    port = free_port()
    folder.mkdir()
    sink = _start(
        stack, [sys.executable, str(HERE / "trace_sink.py"), str(port)], dict(os.environ), folder / "sink.log"
    )
    wait_until_listening(port, sink)
    return port


def _envoy_command(config: Path) -> list[str]:
    binary = str(find_envoy(os.environ))
    return [binary, "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "warn"]


def _start(
    stack: contextlib.ExitStack, command: list[str], environment: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(is_done: Callable[[], bool], process: subprocess.Popen[bytes], failure: str) -> None:
    until = time.monotonic() + START_S
    while not is_done():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the agent's process {failure} (exit {process.poll()}); see its log beside the policy")
        time.sleep(0.02)


VARIANTS = (
    Variant(HEADERS, policies.canary, has_scanner=False),
    Variant(BODY, policies.canary),
    Variant(TRIES, policies.canary, logs_tries=True),
    Variant(TRACED, policies.canary, logs_tries=True, is_traced=True),
    Variant(ONE_ROW, lambda listen, backend, _: policies.one_row(listen, backend)),
    Variant(LARGE_TABLE, lambda listen, backend, _: policies.large(listen, backend)),
)
