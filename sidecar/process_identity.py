"""Processes that outlive their parent: who they are, whether they live, how to signal them; and the file of Envoys.

A pid alone may have gone to another process; with its start time and the machine's boot it names one process for ever.
Refuses to signal anything else. Used by envoy_process.py for its own Envoy and for those of an agent that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from pointsman.sidecar.envoy_origin import EnvoyOrigin


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, unmistakably."""

    pid: int
    start_ticks: int
    """Since boot, in the kernel's clock ticks."""

    boot_id: str


@dataclass(frozen=True, slots=True)
class EnvoyRecord:
    """An Envoy that was started on a state directory."""

    process: ProcessIdentity
    admin_socket: Path
    node_id: str = ""
    """Its own: while one Envoy replaces another, their answers must not be taken for each other's."""

    origin: EnvoyOrigin = field(default_factory=EnvoyOrigin)


def identify(pid: int) -> ProcessIdentity | None:
    """Return who has the pid now; None when nobody has, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return None
    # The command, in parentheses, may hold spaces and parentheses itself.
    state, *fields = text.rpartition(")")[2].split()
    if state in ("Z", "X"):
        return None
    return ProcessIdentity(pid, int(fields[18]), boot_id)


def is_alive(process: ProcessIdentity) -> bool:
    """Tell whether this very process still runs."""
    return identify(process.pid) == process


@contextlib.contextmanager
def opened(process: ProcessIdentity) -> Iterator[int | None]:
    """Give a pidfd of this very process, or None. Compared once opened, it cannot come to name another."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor if is_alive(process) else None
    finally:
        os.close(descriptor)


def send_signal(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal this very process; False when it has ended."""
    with opened(process) as descriptor:
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        return True


async def until_ended(process: ProcessIdentity) -> None:
    """Wait for the process's end. How it ended only its parent knows."""
    with opened(process) as descriptor:
        if descriptor is None:
            return
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)


async def has_ended(process: ProcessIdentity, within_ms: int) -> bool:
    """Wait for the process's end, that long at most, and tell whether it came."""
    try:
        async with asyncio.timeout(within_ms / 1000):
            await until_ended(process)
    except TimeoutError:
        return False
    return True


def living_envoys(path: Path) -> tuple[EnvoyRecord, ...]:
    """Return the Envoys in the file that still run, oldest first. A missing or damaged file names none.

    It may be another version's: parts that it does not name are not known, others are of no interest.
    """
    try:
        records = tuple(_record_of(row) for row in json.loads(path.read_bytes())["envoys"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()
    return tuple(record for record in records if is_alive(record.process) and _runs(record.process.pid, path.parent))


def _runs(pid: int, folder: Path) -> bool:
    """Whether the process was started with a file of the folder: an Envoy of ours names its bootstrap there.

    Whoever can write the file could else have us end any process of this user.
    """
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False
    prefix = os.fsencode(folder.absolute()) + b"/"
    return any(argument.startswith(prefix) for argument in arguments)


def write_envoys(path: Path, records: tuple[EnvoyRecord, ...]) -> None:
    """Replace the file whole; without records it is removed."""
    if not records:
        path.unlink(missing_ok=True)
        return
    rows = [asdict(record) | {"admin_socket": str(record.admin_socket)} for record in records]
    replace_file(path, json.dumps({"envoys": rows}).encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write the file for this user alone, so that a reader sees the old content or the new."""
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    new.replace(path)


def _record_of(row: dict[str, object]) -> EnvoyRecord:
    process, origin = row["process"], row.get("origin", {})
    if not isinstance(process, dict) or not isinstance(origin, dict):
        raise ValueError("expected objects")
    return EnvoyRecord(
        ProcessIdentity(int(process["pid"]), int(process["start_ticks"]), str(process["boot_id"])),
        Path(str(row["admin_socket"])),
        str(row.get("node_id", "")),
        EnvoyOrigin(**{name.name: str(origin.get(name.name, "")) for name in fields(EnvoyOrigin)}),
    )
