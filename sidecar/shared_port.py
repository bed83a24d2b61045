"""The port that an old and a new Envoy share (SO_REUSEPORT): which of them gets new connections.

The kernel deals connections out over all sockets of the port, and resets those that wait at one that closes. A filter
on the group sends them to the new Envoy's sockets, so that the old one's are empty when they close. Decides the filter
from the order of the group. Refuses nothing: where the system does not let us (Linux before 5.6, seccomp, an Envoy with
file capabilities) it says so, and the kernel goes on dealing. Called by envoy_handover.py.

The order, as the kernel keeps it: sockets stand in the order in which they began to listen, the old Envoy's first; one
that closes is replaced by the last. So the place after the old ones belongs to a new one before, during and after the
old ones' closing, if there are as many new sockets as old ones. With fewer, the last moments are dealt out as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pointsman.sidecar.listening import IpAddress, listening_of
from pointsman.sidecar.process_identity import ProcessIdentity, opened

_SYS_PIDFD_GETFD = 438
"""The same number on every architecture; Python has no function for it."""

_SO_ATTACH_REUSEPORT_CBPF = 51
_SO_DETACH_REUSEPORT_BPF = 68

_RETURN_CONSTANT = 0x06
_RETURN_RESULT = 0x16
_LOAD_WORD = 0x20
_ADD_CONSTANT = 0x04
_MODULO_CONSTANT = 0x94
_RANDOM = 0xFFFF_F000 + 56
"""Where a filter finds a random number: SKF_AD_OFF + SKF_AD_RANDOM."""

Address = tuple[IpAddress, int]
Socket = tuple[int, int]
"""Descriptor in its process, and inode."""

Filter = tuple[tuple[int, int], ...]
"""Instructions of classic BPF: code and constant. The result is a place in the group; past its end the kernel deals."""


@dataclass(frozen=True, slots=True)
class SharedPort:
    """The addresses on which `new` listens, shared with `old`."""

    new: ProcessIdentity
    old: tuple[ProcessIdentity, ...]

    def prefer_new(self) -> bool:
        """Spread new connections over the new Envoy's sockets alone; tell whether that is in force."""
        return self._attach(spread_filter)

    def pin_new(self) -> bool:
        """Send new connections to the one new socket that keeps its place while the old ones close; tell likewise."""
        return self._attach(lambda first, _: pin_filter(first))

    def release(self) -> None:
        """Let the kernel deal connections out again."""
        for shared in _by_address(self.new).values():
            # No filter is there, or no way to take it off.
            with contextlib.suppress(OSError), _borrowed(self.new, shared[0]) as own:
                own.setsockopt(socket.SOL_SOCKET, _SO_DETACH_REUSEPORT_BPF, 0)

    def is_accepted(self) -> bool:
        """Tell whether no connection waits at an old socket."""
        return not any(found.waiting for process in self.old for found in listening_of(process.pid).values())

    def is_left(self) -> bool:
        """Tell whether the old Envoys have no listening socket any more."""
        return not any(listening_of(process.pid) for process in self.old)

    def _attach(self, make: Callable[[int, int], Filter]) -> bool:
        old: Counter[Address] = Counter()
        for process in self.old:
            old.update({address: len(sockets) for address, sockets in _by_address(process).items()})
        new = _by_address(self.new)
        try:
            for address, sockets in new.items():
                if old[address]:
                    with _borrowed(self.new, sockets[0]) as own:
                        _attach_filter(own, make(old[address], len(sockets)))
        except OSError:
            return False
        return any(old[address] for address in new)


def spread_filter(first: int, count: int) -> Filter:
    """Return the filter that draws one of `count` places from `first` on."""
    return (
        (_LOAD_WORD, _RANDOM),
        (_MODULO_CONSTANT, count),
        (_ADD_CONSTANT, first),
        (_RETURN_RESULT, 0),
    )


def pin_filter(place: int) -> Filter:
    """Return the filter that always takes the place."""
    return ((_RETURN_CONSTANT, place),)


def _by_address(process: ProcessIdentity) -> dict[Address, list[Socket]]:
    """Return the process's listening sockets; those of one address share its port."""
    found: dict[Address, list[Socket]] = {}
    for descriptor, one in listening_of(process.pid).items():
        found.setdefault((one.ip, one.port), []).append((descriptor, one.inode))
    return found


def _attach_filter(own: socket.socket, instructions: Filter) -> None:
    code = b"".join(struct.pack("=HBBI", code, 0, 0, constant) for code, constant in instructions)
    memory = ctypes.create_string_buffer(code, len(code))
    own.setsockopt(
        socket.SOL_SOCKET,
        _SO_ATTACH_REUSEPORT_CBPF,
        struct.pack("HP", len(instructions), ctypes.addressof(memory)),
    )


@contextlib.contextmanager
def _borrowed(process: ProcessIdentity, listening: Socket) -> Iterator[socket.socket]:
    """Give our own descriptor of another process's socket; OSError where we get none.

    Held for a moment only: a socket that we kept open would take connections for an Envoy that has ended.
    """
    number, inode = listening
    with opened(process) as pidfd:
        if pidfd is None:
            raise ProcessLookupError(process.pid)
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
    try:
        # The number may have gone to another file meanwhile.
        if os.fstat(descriptor).st_ino != inode:
            raise OSError(f"descriptor {number} is another file now")
        own = socket.socket(fileno=descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    with own:
        yield own
