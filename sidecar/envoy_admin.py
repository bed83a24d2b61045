"""A client of one Envoy's admin interface over its unix socket: ready, in flight, drain.

Decides when an Envoy has nothing in flight any more. Refuses nothing; an Envoy that does not answer is
AdminUnreachable. Called by envoy_process.py for its own Envoy and for one that it replaces.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp

_CALL_S = 2.0
"""Deadline of one call: Envoy answers in a millisecond unless its main thread is stuck."""

_POLL_S = 0.05
_REQUESTS = "http.pointsman.downstream_rq_active"
_CONNECTIONS = "http.pointsman.downstream_cx_active"
"""Gauges of the client listener's connection manager (xds/listeners.py names it so)."""

_GAUGES_PATH = "/stats?format=json&filter=" + quote(r"^http\.pointsman\.downstream_(rq|cx)_active$", safe="")

LEAVE_MS = 1_000
"""How long clients get to leave by themselves: every answer closes its connection then, new ones are still accepted.
Together with Envoy's end (under 100 ms) this stays below the 2 s that SIGTERM may take when nothing is in flight."""


class AdminUnreachable(Exception):
    """Envoy's admin interface did not answer as expected."""

    code = "admin_unreachable"


@dataclass(frozen=True, slots=True)
class InFlight:
    """What clients hold open: requests (streams included) and connections."""

    requests: int
    connections: int


class EnvoyAdmin:
    """Calls to one admin socket; use it as a context manager. The socket need not exist yet."""

    __slots__ = ("_path", "_session")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # A connection would outlive the Envoy behind it: each call makes its own.
        connector = aiohttp.UnixConnector(str(self._path), force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=_CALL_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def is_ready(self) -> bool:
        """Tell whether Envoy serves; False also when nobody answers."""
        try:
            status, _ = await self._call("GET", "/ready")
        except AdminUnreachable:
            return False
        return status == 200

    async def in_flight(self) -> InFlight:
        """Return what is in flight now; an Envoy without a client listener has nothing."""
        gauges = await self._gauges()
        return InFlight(gauges.get(_REQUESTS, 0), gauges.get(_CONNECTIONS, 0))

    async def has_client_listener(self) -> bool:
        """Tell whether Envoy took a listener for clients; ready alone does not say so. False also without an answer."""
        try:
            return _CONNECTIONS in await self._gauges()
        except AdminUnreachable:
            return False

    async def get(self, path: str) -> str:
        """Return what Envoy shows under the path."""
        return await self._expect("GET", path)

    async def fail_health(self) -> None:
        """Make Envoy not ready, and every answer from now on close its connection (HTTP/2: GOAWAY)."""
        await self._expect("POST", "/healthcheck/fail")

    async def close_listeners(self) -> None:
        """Stop accepting connections; those that exist go on."""
        await self._expect("POST", "/drain_listeners")

    async def _gauges(self) -> dict[str, int]:
        text = await self.get(_GAUGES_PATH)
        try:
            return {row["name"]: int(row["value"]) for row in json.loads(text)["stats"] if "name" in row}
        except (ValueError, KeyError, TypeError) as error:
            raise AdminUnreachable(f"{self._path}: expected gauges as JSON from /stats: {error}") from error

    async def _expect(self, method: str, path: str) -> str:
        status, text = await self._call(method, path)
        if status != 200:
            raise AdminUnreachable(f"{self._path}: expected 200 from {method} {path}, found {status}")
        return text

    async def _call(self, method: str, path: str) -> tuple[int, str]:
        if self._session is None:
            raise RuntimeError("EnvoyAdmin is used outside its context")
        try:
            async with self._session.request(method, f"http://envoy{path}") as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, OSError) as error:
            raise AdminUnreachable(f"{self._path}: {method} {path}: {error or type(error).__name__}") from error


async def drain(admin: EnvoyAdmin, within_ms: int) -> int | None:
    """Let clients leave and requests finish, then return how many are left: zero, or those at the deadline.

    None: Envoy stopped answering. Afterwards nothing is accepted any more; ending the process is the caller's part.
    """
    deadline_s = time.monotonic() + within_ms / 1000
    try:
        await admin.fail_health()
        await _connections_left(admin, min(time.monotonic() + LEAVE_MS / 1000, deadline_s))
        await admin.close_listeners()
        return await _requests_left(admin, deadline_s)
    except AdminUnreachable:
        return None


async def _connections_left(admin: EnvoyAdmin, deadline_s: float) -> int:
    """Wait until no client holds a connection, or for the deadline."""
    while True:
        found = await admin.in_flight()
        if not found.connections or time.monotonic() >= deadline_s:
            return found.connections
        await asyncio.sleep(_POLL_S)


async def _requests_left(admin: EnvoyAdmin, deadline_s: float) -> int:
    """Wait until two looks in a row find no request: a connection accepted last may only now have sent its first."""
    was_idle = False
    while True:
        found = await admin.in_flight()
        if time.monotonic() >= deadline_s or not found.connections or (was_idle and not found.requests):
            return found.requests
        was_idle = not found.requests
        await asyncio.sleep(_POLL_S)
