"""The TCP sockets that listen in this network namespace, and those of one process.

Asks the kernel's socket diagnosis, which looks at listening sockets alone; where that is missing it reads /proc/net,
which lists every connection (a second for 30,000 of them). Decides nothing. Called by port_probe.py and shared_port.py.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTEN = 10
_LISTEN_TEXT = "0A"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP = 0x301
"""NLM_F_REQUEST and NLM_F_DUMP."""

_DONE = 3
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_ROW = struct.Struct("=B3xH2x16s28x4xI8xI")
"""Family, port, address, accept queue, inode: struct inet_diag_msg as far as it matters here."""

_ANSWER_S = 1.0
_BUFFER_BYTES = 65_536

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Listening:
    """A TCP socket that listens."""

    ip: IpAddress
    port: int
    inode: int
    waiting: int
    """Connections that nobody has accepted yet."""


def all_listening() -> tuple[Listening, ...]:
    """Return all of them; where the system shows none, none."""
    try:
        return tuple(row for family in (socket.AF_INET, socket.AF_INET6) for row in _diagnosed(family))
    except (OSError, struct.error):
        return tuple(row for table in _TABLES for row in read_table(table))


def listening_of(pid: int) -> dict[int, Listening]:
    """Return the process's own, by a descriptor that it has of each."""
    descriptors = socket_descriptors(pid)
    if not descriptors:
        return {}
    return {descriptors[row.inode]: row for row in all_listening() if row.inode in descriptors}


def socket_descriptors(pid: int) -> dict[int, int]:
    """Return one descriptor for each of the process's sockets, by inode; empty when we may not look."""
    found: dict[int, int] = {}
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                link = os.readlink(f"{folder}/{name}")
                if link.startswith("socket:["):
                    found[int(link[8:-1])] = int(name)
    return found


def read_table(table: Path) -> Iterator[Listening]:
    """Yield those in a table of /proc/net."""
    try:
        rows = table.read_text("ascii").splitlines()[1:]
    except OSError:
        return
    for row in rows:
        fields = row.split()
        if len(fields) >= 10 and fields[3] == _LISTEN_TEXT:
            ip, _, port = fields[1].partition(":")
            waiting = int(fields[4].partition(":")[2], 16)
            yield Listening(_table_ip(ip), int(port, 16), int(fields[9]), waiting)


def _diagnosed(family: socket.AddressFamily) -> Iterator[Listening]:
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTEN)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            answer = kernel.recv(_BUFFER_BYTES)
            at = 0
            while at < len(answer):
                size, kind, *_ = _HEADER.unpack_from(answer, at)
                if kind == _DONE:
                    return
                if kind != _SOCK_DIAG_BY_FAMILY:
                    raise OSError("the kernel diagnoses no TCP sockets")
                yield _row_of(answer, at + _HEADER.size)
                at += (size + 3) & ~3


def _row_of(answer: bytes, at: int) -> Listening:
    family, port, ip, waiting, inode = _ROW.unpack_from(answer, at)
    packed = ip if family == socket.AF_INET6 else ip[:4]
    return Listening(ipaddress.ip_address(packed), socket.ntohs(port), inode, waiting)


def _table_ip(text: str) -> IpAddress:
    """Return the address from the kernel's table: words of 32 bits in the machine's order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return ipaddress.ip_address(packed)
