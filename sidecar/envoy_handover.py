"""Envoys of an earlier agent: which one is adopted, and how the others hand their clients over and end.

Decides that an Envoy may stay when it would be started just so today, and the order of a replacement: new connections
go to the new Envoy, old ones are told to close, the old listeners close empty, and the process ends once its clients
have left. Refuses nothing; one that does not answer is ended. Called by envoy_process.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from enum import Enum, unique
from pathlib import Path

from pointsman.sidecar.envoy_admin import LEAVE_MS, AdminUnreachable, EnvoyAdmin
from pointsman.sidecar.envoy_origin import EnvoyOrigin
from pointsman.sidecar.process_identity import EnvoyRecord, ProcessIdentity, has_ended, send_signal
from pointsman.sidecar.shared_port import SharedPort

_POLL_S = 0.02
_QUIET_MS = 300
"""How long old listeners stay open without getting connections: a handshake that began before may end there."""

_CLOSE_MS = 1_000
"""What accepting the last connections, or closing the listeners, may take: milliseconds, unless a worker is stuck."""


@unique
class Urgency(Enum):
    """How long a replaced Envoy stays for its clients."""

    PATIENT = "patient"
    """Until they have left: an idle connection that is cut may just be carrying a request."""

    STOPPING = "stopping"
    """Until no request is in flight."""

    AT_ONCE = "at_once"


def adoptable(living: tuple[EnvoyRecord, ...], admin_socket: Path, origin: EnvoyOrigin) -> EnvoyRecord | None:
    """Return the Envoy that is what we would start, at its usual place; None when there is none.

    One whose admin socket was moved aside was being replaced when its agent died.
    """
    for record in reversed(living):
        if record.admin_socket == admin_socket and record.origin == origin:
            return record
    return None


async def hand_over(old: tuple[EnvoyRecord, ...], new: ProcessIdentity | None) -> None:
    """Have the old Envoys' clients come to the new one, and the old ones take no connection any more.

    `new` None: there is none, they just close.
    """
    admins = [EnvoyAdmin(record.admin_socket) for record in old]
    port = None if new is None else SharedPort(new, tuple(record.process for record in old))
    async with contextlib.AsyncExitStack() as held:
        for admin in admins:
            await held.enter_async_context(admin)
        if port is None:
            await asyncio.gather(*(_empty(admin) for admin in admins))
            await asyncio.gather(*(_close_listeners(admin) for admin in admins))
            return
        held.callback(port.release)
        is_steered = port.prefer_new()
        quiet_s = time.monotonic() + _QUIET_MS / 1000 * is_steered
        await asyncio.gather(*(_empty(admin) for admin in admins))
        is_steered = is_steered and port.pin_new()
        if is_steered:
            await _until(lambda: time.monotonic() >= quiet_s and port.is_accepted())
        await asyncio.gather(*(_close_listeners(admin) for admin in admins))
        if is_steered:
            await _until(port.is_left)


async def end(record: EnvoyRecord, *, within_ms: int, end_ms: int, urgency: Callable[[], Urgency]) -> int | None:
    """End an Envoy that accepts nothing any more, and return how many requests that cut; None: not known."""
    deadline_s = time.monotonic() + within_ms / 1000
    try:
        async with EnvoyAdmin(record.admin_socket) as admin:
            cut_requests: int | None = await _clients_left(admin, deadline_s, urgency)
    except AdminUnreachable:
        cut_requests = None
    send_signal(record.process, signal.SIGTERM)
    if not await has_ended(record.process, end_ms):
        send_signal(record.process, signal.SIGKILL)
        await has_ended(record.process, end_ms)
    with contextlib.suppress(OSError):
        record.admin_socket.unlink(missing_ok=True)
    return cut_requests


async def _empty(admin: EnvoyAdmin) -> None:
    """Have every answer close its connection, and give the clients time to leave."""
    deadline_s = time.monotonic() + LEAVE_MS / 1000
    with contextlib.suppress(AdminUnreachable):
        await admin.fail_health()
        while (await admin.in_flight()).connections:
            if time.monotonic() >= deadline_s:
                break
            await asyncio.sleep(_POLL_S)


async def _close_listeners(admin: EnvoyAdmin) -> None:
    with contextlib.suppress(AdminUnreachable):
        await admin.close_listeners()


async def _clients_left(admin: EnvoyAdmin, deadline_s: float, urgency: Callable[[], Urgency]) -> int:
    """Wait as long as the urgency says, the deadline at most, and return how many requests are left."""
    was_idle = False
    while True:
        found = await admin.in_flight()
        how = urgency()
        # Two looks: a connection accepted last may only now have sent its first request.
        is_served = how is Urgency.STOPPING and was_idle and not found.requests
        if not found.connections or is_served or how is Urgency.AT_ONCE or time.monotonic() >= deadline_s:
            return found.requests
        was_idle = not found.requests
        await asyncio.sleep(_POLL_S)


async def _until(holds: Callable[[], bool]) -> None:
    """Wait for what the kernel shows and nobody reports, for a bounded time."""
    deadline_s = time.monotonic() + _CLOSE_MS / 1000
    while not holds():
        if time.monotonic() >= deadline_s:
            break
        await asyncio.sleep(_POLL_S)
