"""Measures the ADS server with many clients: one weight's way to all, then memory over connects and disconnects.

Decides the numbers of clients, changes and visits. Refuses (RuntimeError) to report where anything but the changed
assignment travelled.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scale_process import Speaker

CLIENT_PROCESSES = 2
WARM_CHANGES = 3


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    clients: int
    changes: int
    visits: int


FULL = Size(clients=200, changes=20, visits=1_000)
QUICK = Size(clients=40, changes=5, visits=100)


@dataclass(frozen=True, slots=True)
class Memory:
    """The server's memory at one moment."""

    when: str
    resident_kib: int
    objects: int
    """What Python's collector tracks, after a collection: unlike resident memory it is exact."""


@dataclass(frozen=True, slots=True)
class Push:
    """What was found; one entry a change."""

    size: Size
    build_ms: tuple[float, ...]
    acknowledged_ms: tuple[float, ...]
    server_ms: tuple[float, ...]
    clients_ms: float
    """Processor time of all clients, a change."""
    bytes_each: float
    """Bytes of responses, a change and client."""
    memory: tuple[Memory, ...]


def measure(size: Size) -> Push:
    """Start the server and the clients, and measure."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pm-scale-")))
        server = stack.enter_context(Speaker("scale_server.py", str(folder / "ads.sock")))
        clients = [
            stack.enter_context(Speaker("scale_clients.py", str(folder / "ads.sock"))) for _ in range(CLIENT_PROCESSES)
        ]
        memory = [_memory(server, "no client yet")]
        connect(server, clients, size.clients)
        memory.append(_memory(server, f"{size.clients} clients connected"))
        for _ in range(WARM_CHANGES):
            server.ask("change")
        tallies(clients)
        answers = [server.ask("change") for _ in range(size.changes)]
        arrived, clients_ms = tallies(clients)
        _check(arrived, size)
        memory.append(_memory(server, f"after {size.changes + WARM_CHANGES} changes"))
        leave(server, clients)
        memory.append(_memory(server, "all gone: the base"))
        for share in (1, 2):
            _each(clients, "churn fleet", size.visits // 2, names=size.clients)
            server.ask("settle 0")
            memory.append(_memory(server, f"after {share * size.visits // 2:,} visits of known clients"))
        _each(clients, "churn new", size.visits, names=size.visits)
        server.ask("settle 0")
        memory.append(_memory(server, f"after {size.visits:,} visits of clients never seen before"))
    return Push(
        size=size,
        build_ms=tuple(answer["build_ms"] for answer in answers),
        acknowledged_ms=tuple(answer["acknowledged_ms"] for answer in answers),
        server_ms=tuple(answer["processor_ms"] for answer in answers),
        clients_ms=clients_ms / size.changes,
        bytes_each=arrived["bytes"] / size.changes / size.clients,
        memory=tuple(memory),
    )


def connect(server: Speaker, clients: Sequence[Speaker], count: int) -> None:
    """Connect so many clients and wait until each has the snapshot."""
    _each(clients, "connect fleet", count)
    server.ask(f"settle {count}")


def leave(server: Speaker, clients: Sequence[Speaker]) -> None:
    """Disconnect all and wait until the server knows."""
    _each(clients, "leave")
    server.ask("settle 0")


def tallies(clients: Sequence[Speaker]) -> tuple[dict[str, int], float]:
    """Return what arrived since the last time, and the clients' processor time."""
    arrived: dict[str, int] = {}
    processor_ms = 0.0
    for answer in _each(clients, "tally"):
        processor_ms += answer["processor_ms"]
        for key, count in answer["arrived"].items():  # type: ignore[attr-defined]
            arrived[key] = arrived.get(key, 0) + count
    return arrived, processor_ms


def _each(clients: Sequence[Speaker], command: str, count: int = 0, *, names: int = 0) -> list[dict[str, float]]:
    """Ask all at once; each process has its own prefix and does its part of the count."""
    for place, process in enumerate(clients):
        shares = "".join(f" {share // len(clients)}" for share in (count, names) if share)
        process.tell(f"{command}{place if count else ''}{shares}")
    return [process.hear() for process in clients]


def _check(arrived: dict[str, int], size: Size) -> None:
    """Refuse a run in which anything but one assignment a client and change travelled."""
    expected = size.changes * size.clients
    found = {key: count for key, count in arrived.items() if key != "bytes"}
    if found != {"EDS responses": expected, "EDS resources": expected}:
        raise RuntimeError(
            f"{size.changes} changes for {size.clients} clients brought {found}, not one assignment each"
        )


def _memory(server: Speaker, when: str) -> Memory:
    answer = server.ask("memory")
    return Memory(when, int(answer["resident_kib"]), int(answer["objects"]))
