"""Arguments, listening, and the program's start and end."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from pointsman.sidecar.simulator import ListenFailed, SimulatorOptions, add_arguments, listening, read_options
from pointsman.sidecar.simulator_behaviour import Behaviour

PROGRAM = """
import argparse, sys
from pointsman.sidecar import simulator
parser = argparse.ArgumentParser()
simulator.add_arguments(parser)
sys.exit(simulator.run(parser.parse_args()))
"""


def _read(*words: str) -> SimulatorOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_options(parser.parse_args(words))


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_targets_model_is_accepted_by_default() -> None:
    expected = SimulatorOptions("127.0.0.1", 9001, "support-chat@v2.2", ("support-chat",), 5.0, Behaviour())
    assert expected == _read("--listen", "127.0.0.1:9001", "--target", "support-chat@v2.2")


def test_start_values_are_read() -> None:
    words = "--listen [::1]:0 --target a@1 --accepts a b a --slots 4 --latency-ms 2.5 --hang --reset-after-chunks 0"
    options = _read(*words.split(), "--keepalive-s", "60")
    assert (options.host, options.accepts, options.keepalive_s) == ("::1", ("a", "b"), 60.0)
    assert Behaviour(latency_ms=2.5, hang=True, reset_after_chunks=0, slots=4) == options.behaviour


def test_wrong_arguments_are_all_named() -> None:
    words = "--listen 9001 --target support-chat --slots 0 --error-ratio 2 --keepalive-s 0"
    with pytest.raises(ValueError) as refused:
        _read(*words.split())
    for named in (
        "--listen: found '9001'",
        "--target: found 'support-chat'",
        "slots: found 0",
        "errorRatio: found 2",
        "--keepalive-s",
    ):
        assert named in str(refused.value)


async def test_address_in_use_is_a_failure_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenFailed, match=f"listen 127.0.0.1:{port}: "):
            async with listening(SimulatorOptions("127.0.0.1", port, "a@1", ("a",))):
                pass


@pytest.mark.parametrize("in_flight", ["idle", "hanging", "streaming"])
def test_sigterm_ends_within_two_seconds_whatever_is_in_flight(in_flight: str) -> None:
    flags = {"idle": (), "hanging": ("--hang",), "streaming": ("--ttft-ms", "3600000")}[in_flight]
    program = _start("--listen", "127.0.0.1:0", "--target", "support-chat@v2.2", *flags)
    try:
        assert program.stdout is not None
        line = program.stdout.readline()
        assert line.startswith("simulating support-chat@v2.2 listen=127.0.0.1:")
        port = int(line.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as one:
            body = b'{"stream": true}'
            one.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 16\r\n\r\n" + body)
            if in_flight != "hanging":
                assert one.recv(15) == b"HTTP/1.1 200 OK"
            started_s = time.monotonic()
            os.kill(program.pid, signal.SIGTERM)
            assert program.wait(10) == 0
        assert time.monotonic() - started_s < 2
        assert program.stderr is not None
        assert program.stderr.read() == ""
    finally:
        program.kill()
        program.communicate()


def test_exit_codes_tell_refused_from_failed() -> None:
    refused = _start("--listen", "nowhere", "--target", "a@1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        failed = _start("--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--target", "a@1")
        _, failed_text = failed.communicate(timeout=30)
    _, refused_text = refused.communicate(timeout=30)
    assert (refused.returncode, failed.returncode) == (2, 1)
    assert (refused_text.count("\n"), failed_text.count("\n")) == (1, 1)
