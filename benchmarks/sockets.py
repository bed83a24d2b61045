"""Loopback ports of the measured processes: which is free, and when one is listened on."""

from __future__ import annotations

import socket
import subprocess
import time

START_S = 20.0


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return once the port accepts connections; RuntimeError when the process ends first or takes too long."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r}: ended with {process.returncode} before it listened on port {port}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r}: not listening on port {port} after {START_S:.0f} s")
