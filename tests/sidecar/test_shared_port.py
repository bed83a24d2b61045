"""Who gets the connections of a shared port: real sockets of two processes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pointsman.sidecar.process_identity import ProcessIdentity, identify
from pointsman.sidecar.shared_port import SharedPort
from until import until
from wire import free_port

CONNECTIONS = 60
NEW = """
import socket, sys
sockets = []
for _ in range(int(sys.argv[2])):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("127.0.0.1", int(sys.argv[1])))
    one.listen(500)
    one.settimeout(0)
    sockets.append(one)
print(flush=True)
for _ in sys.stdin:
    counts = []
    for one in sockets:
        counts.append(0)
        try:
            while True:
                one.accept()[0].close()
                counts[-1] += 1
        except BlockingIOError:
            pass
    print(*counts, flush=True)
"""
"""Listens beside us, and tells on each line how many connections each of its sockets got."""


def _listener(port: int) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("127.0.0.1", port))
    one.listen(500)
    one.settimeout(0)
    return one


def _accepted(listener: socket.socket) -> int:
    count = 0
    with contextlib.suppress(BlockingIOError):
        while listener.fileno() >= 0:
            listener.accept()[0].close()
            count += 1
    return count


@dataclass
class Shared:
    """Old sockets are this process's, new ones are another's."""

    old: list[socket.socket]
    new: subprocess.Popen[str]
    port: SharedPort
    address: tuple[str, int]

    def shares(self) -> tuple[int, list[int]]:
        """Connect often; return how many connections came to old sockets, and to each new one."""
        with contextlib.ExitStack() as clients:
            for _ in range(CONNECTIONS):
                clients.enter_context(socket.create_connection(self.address))
            old = sum(_accepted(listener) for listener in self.old)
            return old, _accept(self.new)


def _identity(pid: int) -> ProcessIdentity:
    found = identify(pid)
    assert found is not None
    return found


@contextlib.contextmanager
def _listening(port: int, count: int) -> Iterator[subprocess.Popen[str]]:
    """A process with that many sockets on the port."""
    command = [sys.executable, "-c", NEW, str(port), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _accept(process: subprocess.Popen[str]) -> list[int]:
    """Have the process accept all that waits; return how many came to each of its sockets."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return [int(count) for count in process.stdout.readline().split()]


@contextlib.contextmanager
def _sharing(old_count: int, new_count: int) -> Iterator[Shared]:
    with contextlib.ExitStack() as held:
        old = [held.enter_context(_listener(0))]
        address = old[0].getsockname()
        old += [held.enter_context(_listener(address[1])) for _ in range(old_count - 1)]
        new = held.enter_context(_listening(address[1], new_count))
        shared = Shared(old, new, SharedPort(_identity(new.pid), (_identity(os.getpid()),)), address)
        yield shared


@pytest.fixture
def shared() -> Iterator[Shared]:
    with _sharing(2, 2) as shared:
        if not shared.port.prefer_new():
            pytest.skip("this system lets nobody have another process's descriptor (pidfd_getfd)")
        shared.port.release()
        yield shared


def test_kernel_deals_connections_out_to_all(shared: Shared) -> None:
    old, new = shared.shares()

    assert 0 < old < CONNECTIONS
    assert old + sum(new) == CONNECTIONS


def test_preference_sends_all_to_the_new_sockets_and_release_ends_it(shared: Shared) -> None:
    assert shared.port.prefer_new()
    old, new = shared.shares()
    assert (old, sum(new)) == (0, CONNECTIONS)
    assert all(new)

    shared.port.release()

    assert shared.shares()[0] > 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (2, 3), (1, 2)])
def test_no_connection_meets_an_old_socket_while_they_close(
    shared: Shared, counts: tuple[int, int], order: tuple[int, int]
) -> None:
    with _sharing(*counts) as other:
        assert other.port.pin_new()
        assert other.shares()[0] == 0
        for place in [place for place in order if place < counts[0]]:
            other.old[place].close()
            old, new = other.shares()
            assert (old, sum(new)) == (0, CONNECTIONS)
        other.port.release()
        assert all(other.shares()[1])


async def test_waiting_and_closed_sockets_are_told() -> None:
    # Both are other processes here: this one may listen for other tests too.
    with contextlib.ExitStack() as held:
        old = held.enter_context(_listening(free_port(), 2))
        new = held.enter_context(_listening(int(old.args[3]), 2))  # type: ignore[index]  # the list of _listening
        port = SharedPort(_identity(new.pid), (_identity(old.pid),))
        for _ in range(CONNECTIONS):
            held.enter_context(socket.create_connection(("127.0.0.1", int(old.args[3]))))  # type: ignore[index]

        async def is_accepted() -> bool:
            _accept(old)  # again: a connection may reach its queue a moment after the client has it
            return port.is_accepted()

        async def is_waiting() -> bool:
            return not port.is_accepted()

        await until(is_waiting)
        await until(is_accepted)
        assert not port.is_left()
        old.kill()
        old.wait()
        assert port.is_left()


def test_ended_process_and_a_port_of_one_steer_nothing(shared: Shared) -> None:
    alone = SharedPort(shared.port.new, ())
    assert not alone.prefer_new()

    shared.new.kill()
    shared.new.wait()

    assert not shared.port.prefer_new()
    shared.port.release()
