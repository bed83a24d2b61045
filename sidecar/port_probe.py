"""Whether an address is free for Envoy to listen on, and the claim that keeps a second pointsman off it.

Envoy shares ports silently (SO_REUSEPORT): two of them on one address would both start and split the traffic. Decides
by a bind without sharing and by a lock a listen address. Refuses an address that anyone but our own old Envoy holds.
Called by the agent before Envoy starts.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pointsman.sidecar.listening import IpAddress, all_listening, socket_descriptors
from pointsman.sidecar.state_dir import StateRefused, lock_file, own_private_directory
from pointsman.xds.clusters import split_address


class PortRefused(Exception):
    """The address cannot be listened on; the text says why, who holds it and what to do."""

    code = "port_refused"


@dataclass(frozen=True, slots=True)
class PortHolder:
    """Who listens. `pid` None: the system does not show whose socket it is."""

    pid: int | None
    command: str = ""


@contextlib.contextmanager
def claimed_port(address: str, *, runtime: Path, own_pids: frozenset[int] = frozenset()) -> Iterator[None]:
    """Hold the address against other pointsmen of this user; PortRefused when anyone has it.

    `own_pids`: Envoys that this agent will replace, which may listen there.
    """
    name = re.sub("[^0-9A-Za-z.]", "-", address)
    try:
        own_private_directory(runtime)
        # Equal addresses in two network namespaces are two addresses.
        lock = lock_file(
            runtime / f"listen-{_network_namespace()}-{name}.lock",
            f"listen address {address}",
            "choose another address",
        )
    except StateRefused as refused:
        raise PortRefused(str(refused)) from refused
    try:
        check_port(address, own_pids=own_pids)
        yield
    finally:
        os.close(lock)


def check_port(address: str, *, own_pids: frozenset[int] = frozenset()) -> None:
    """Return if Envoy can listen on `ip:port`; else PortRefused. Port 0 is always free."""
    try:
        host, port = split_address(address)
        ip = ipaddress.ip_address(host)
    except ValueError:
        raise PortRefused(f"listen address {address}: expected ip:port or [ipv6]:port") from None
    if not 0 <= port <= 65_535:
        raise PortRefused(f"listen address {address}: expected a port from 0 to 65535, found {port}")
    try:
        _bind(ip, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise PortRefused(_bind_text(address, port, error)) from error
    else:
        return
    holders = port_holders(ip, port, likely_pids=own_pids)
    if holders and all(holder.pid in own_pids for holder in holders):
        return
    raise PortRefused(_in_use_text(address, tuple(holder for holder in holders if holder.pid not in own_pids)))


def port_holders(ip: IpAddress, port: int, *, likely_pids: frozenset[int] = frozenset()) -> tuple[PortHolder, ...]:
    """Return who listens on the address or on one that includes it, as far as /proc shows."""
    inodes = {found.inode for found in all_listening() if found.port == port and _overlap(ip, found.ip)}
    owners: dict[int, int] = {}
    for pid in (*sorted(likely_pids), *_pids()):
        if len(owners) == len(inodes):
            break
        for inode in socket_descriptors(pid).keys() & inodes:
            owners.setdefault(inode, pid)
    pids = {owners.get(inode) for inode in inodes}
    return tuple(
        PortHolder(pid, "" if pid is None else _command(pid)) for pid in sorted(pids, key=lambda pid: pid or 0)
    )


def _bind(ip: IpAddress, port: int) -> None:
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections of a server that has ended stay in TIME_WAIT and are no obstacle to Envoy either.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind((str(ip), port))


def _bind_text(address: str, port: int, error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        next_step = "choose a port from 1024 up, or grant CAP_NET_BIND_SERVICE"
        return f"listen address {address}: no permission for port {port}; {next_step}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"listen address {address}: this machine has no such address; choose one of its own, or 0.0.0.0"
    return f"listen address {address}: {error.strerror}; choose another address"


def _in_use_text(address: str, holders: tuple[PortHolder, ...]) -> str:
    known = [f"pid {holder.pid} ({holder.command})" for holder in holders if holder.pid is not None]
    who = ", ".join(known) or (
        "a process that /proc does not show" if holders else "a connection or an unlisted socket"
    )
    return f"listen address {address}: already in use by {who}; end it or choose another address"


def _overlap(wanted: IpAddress, found: IpAddress) -> bool:
    """Tell whether both can be meant by one connection; an IPv6 wildcard may take IPv4 too, ours does not."""
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    if wanted.version != found.version:
        return wanted.version == 4 and found.is_unspecified
    return wanted == found or wanted.is_unspecified or found.is_unspecified


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _command(pid: int) -> str:
    """Return the program's name alone: arguments may hold secrets."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "ended"


def _network_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0
