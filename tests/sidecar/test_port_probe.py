"""The port probe against real sockets."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pointsman.sidecar.port_probe import PortHolder, PortRefused, check_port, claimed_port, port_holders

LOCALHOST = ipaddress.ip_address("127.0.0.1")
OWN_COMMAND = Path("/proc/self/comm").read_text().strip()


@pytest.fixture
def runtime() -> Iterator[Path]:
    with TemporaryDirectory(prefix="pm-") as folder:
        yield Path(folder) / "run"


@contextmanager
def _listening(host: str = "127.0.0.1", *, shares: bool = False) -> Iterator[int]:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares))
        server.bind((host, 0))
        server.listen()
        yield server.getsockname()[1]


def _free_port() -> int:
    with _listening() as port:
        return port


def test_free_port_passes() -> None:
    check_port(f"127.0.0.1:{_free_port()}")
    check_port("127.0.0.1:0")
    check_port(f"0.0.0.0:{_free_port()}")


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_port_in_use_names_address_pid_and_command(host: str, shares: bool) -> None:
    with _listening(host, shares=shares) as port:
        with pytest.raises(PortRefused) as refused:
            check_port(f"127.0.0.1:{port}")

    assert f"127.0.0.1:{port}: already in use by pid {os.getpid()} ({OWN_COMMAND})" in str(refused.value)


def test_wildcard_is_refused_while_one_address_is_in_use() -> None:
    with _listening() as port:
        with pytest.raises(PortRefused, match="already in use"):
            check_port(f"0.0.0.0:{port}")


def test_same_port_of_another_address_is_free() -> None:
    with _listening() as port:
        check_port(f"127.0.0.2:{port}")


def test_port_of_our_own_old_envoy_passes() -> None:
    with _listening(shares=True) as port:
        check_port(f"127.0.0.1:{port}", own_pids=frozenset({os.getpid()}))


def test_stranger_beside_our_own_old_envoy_is_refused() -> None:
    program = (
        "import socket, sys; s = socket.socket(); s.setsockopt(1, socket.SO_REUSEPORT, 1)\n"
        "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); print('up', flush=True); sys.stdin.read()\n"
    )
    with _listening(shares=True) as port:
        arguments = [sys.executable, "-c", program, str(port)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stranger:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "up\n"
            with pytest.raises(PortRefused) as refused:
                check_port(f"127.0.0.1:{port}", own_pids=frozenset({os.getpid()}))
            stranger.communicate()

    assert f"pid {stranger.pid}" in str(refused.value)
    assert f"pid {os.getpid()}" not in str(refused.value)


def test_port_of_a_connection_alone_is_refused_without_a_holder() -> None:
    with _listening() as port, socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        client.connect(("127.0.0.1", port))
        with pytest.raises(PortRefused, match="a connection or an unlisted socket"):
            check_port(f"127.0.0.1:{client.getsockname()[1]}")


def test_connections_in_time_wait_are_no_obstacle() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            # Who closes first keeps the port in TIME_WAIT.
            accepted.close()
            assert client.recv(1) == b""
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", port))

    check_port(f"127.0.0.1:{port}")


def test_address_that_is_not_ours_is_told_apart() -> None:
    with pytest.raises(PortRefused, match=r"192\.0\.2\.1:80.*no such address"):
        check_port("192.0.2.1:8080")


@pytest.mark.skipif(
    os.getuid() == 0 or int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) < 2,
    reason="every user here may take low ports",
)
def test_missing_permission_is_told_apart() -> None:
    with pytest.raises(PortRefused, match="no permission for port 1;"):
        check_port("127.0.0.1:1")


@pytest.mark.parametrize("address", ["", "8080", "localhost:8080", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"])
def test_text_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(PortRefused, match="expected"):
        check_port(address)


def test_ipv6_is_probed() -> None:
    try:
        server = socket.socket(socket.AF_INET6)
        server.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(PortRefused, match=rf"already in use by pid {os.getpid()}"):
            check_port(f"[::1]:{port}")
        check_port(f"127.0.0.1:{port}")


def test_holders_of_a_free_port_are_none() -> None:
    assert port_holders(LOCALHOST, _free_port()) == ()
    with _listening() as port:
        assert port_holders(LOCALHOST, port) == (PortHolder(os.getpid(), OWN_COMMAND),)


def test_claim_keeps_a_second_pointsman_off_an_idle_port(runtime: Path) -> None:
    address = f"127.0.0.1:{_free_port()}"
    with claimed_port(address, runtime=runtime):
        with pytest.raises(PortRefused, match=rf"{address} is in use by another pointsman, pid {os.getpid()};"):
            with claimed_port(address, runtime=runtime):
                pass

    with claimed_port(address, runtime=runtime):
        pass


def test_refused_claim_leaves_no_lock(runtime: Path) -> None:
    with _listening() as port:
        for _ in range(2):
            with pytest.raises(PortRefused, match="already in use"):
                with claimed_port(f"127.0.0.1:{port}", runtime=runtime):
                    pass

    with claimed_port(f"127.0.0.1:{port}", runtime=runtime):
        pass
