"""Listening sockets, by the kernel's diagnosis and by its tables, against real ones."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pointsman.sidecar.listening import Listening, all_listening, listening_of, read_table

TABLES = {"127.0.0.1": Path("/proc/net/tcp"), "::1": Path("/proc/net/tcp6")}


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in request.param else socket.AF_INET) as server:
        try:
            server.bind((request.param, 0))
        except OSError:
            pytest.skip(f"no {request.param} on this machine")
        server.listen()
        yield server


def _expected(server: socket.socket, *, waiting: int) -> Listening:
    host, port = server.getsockname()[:2]
    return Listening(ipaddress.ip_address(host), port, os.fstat(server.fileno()).st_ino, waiting)


def test_own_socket_is_found_by_its_descriptor_with_what_waits_at_it(server: socket.socket) -> None:
    with ExitStack() as clients:
        for count in range(3):
            assert _expected(server, waiting=count) == listening_of(os.getpid())[server.fileno()]
            clients.enter_context(socket.create_connection(server.getsockname()[:2]))
        server.accept()[0].close()
        assert _expected(server, waiting=2) == listening_of(os.getpid())[server.fileno()]


def test_table_and_diagnosis_say_the_same(server: socket.socket) -> None:
    with socket.create_connection(server.getsockname()[:2]):
        expected = _expected(server, waiting=1)
        assert expected in all_listening()
        assert expected in tuple(read_table(TABLES[str(expected.ip)]))


def test_bound_and_connected_sockets_do_not_listen() -> None:
    with socket.socket() as bound, socket.create_server(("127.0.0.1", 0)) as server:
        bound.bind(("127.0.0.1", 0))
        with socket.create_connection(server.getsockname()) as client:
            found = listening_of(os.getpid())
            assert server.fileno() in found
            assert not {bound.fileno(), client.fileno()} & found.keys()


def test_process_that_does_not_exist_has_none() -> None:
    assert listening_of(4_194_305) == {}
    assert list(read_table(Path("/nowhere"))) == []
