"""The admin server (aiohttp): health, metrics, the table, explanations, xDS status. Reads only; changes nothing.

Every answer but `/metrics` is JSON; a bad question gets 400 with the parameter's name. It is for the operator of this
host: it listens where Settings.admin says, loopback by default, and tells no secrets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web
from pointsman.router.decide import decide
from pointsman.router.request import Request
from pointsman.router.table import Table
from pointsman.sidecar.json_log import event
from pointsman.sidecar.question import QuestionRefused, ask
from pointsman.sidecar.rollout_admin import RolloutSource, add_rollout_pages
from pointsman.sidecar.views import Json, decision_view, table_view, xds_view
from pointsman.xds.status import NodeStatus

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_ASK_BYTES = 65_536
"""A question to `/explain` is small: headers and the start of a body."""


class AdminSource(RolloutSource, Protocol):
    """What the admin server asks of the agent."""

    def health(self) -> Json:
        """Return `status` (starting, ready, degraded or draining) and the reasons."""

    def metrics(self, accept: str | None) -> tuple[bytes, str]:
        """Return the metrics page and its content type."""

    def table(self) -> tuple[Table, str, bool]:
        """Return the table in force, its version, and whether bodies are read."""

    def breakers(self) -> Json:
        """Return every breaker with its state, reason and counts."""

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Return the xDS nodes."""


PAGES = {
    "/healthz": "200 while the process works",
    "/readyz": "200 once Envoy has acknowledged a table (`degraded` with reasons after a refusal), else 503",
    "/metrics": "Prometheus or OpenMetrics text",
    "/table": "rows with arms in parts of 10,000, reasons, endpoints with weights",
    "/explain": "what would happen to a request: ?method=&path=&header=NAME:VALUE&model=NAME, or POST its body",
    "/breakers": "per target and class: state closed, open or ramping, reason, since, tries per window",
    "/rollouts": "per route: phase, step, share, both versions side by side, history; POST /rollouts/ROUTE/VERB",
    "/xds": "per node what was sent, acknowledged and refused",
}


def make_app(source: AdminSource) -> web.Application:
    """Return the application."""
    app = web.Application(client_max_size=MAX_ASK_BYTES, middlewares=[_errors_as_json])

    async def index(_: web.Request) -> web.Response:
        return _json({"pages": PAGES})

    async def healthz(_: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        health = source.health()
        return _json(health, status=503 if health["status"] in ("starting", "draining") else 200)

    async def metrics(request: web.Request) -> web.Response:
        body, content_type = source.metrics(request.headers.get("accept"))
        return web.Response(body=body, headers={"content-type": content_type})

    async def table(_: web.Request) -> web.Response:
        current, version, _reads_body = source.table()
        return _json(table_view(current, version))

    async def explain(request: web.Request) -> web.Response:
        current, version, reads_body = source.table()
        asked = await _asked(request)
        decision = decide(asked, current, reads_body=reads_body)
        return _json({"version": version, "readsBody": reads_body, **decision_view(decision)})

    async def breakers(_: web.Request) -> web.Response:
        return _json(source.breakers())

    async def xds(_: web.Request) -> web.Response:
        return _json(xds_view(source.nodes()))

    for path, handler in (
        ("/", index),
        ("/healthz", healthz),
        ("/readyz", readyz),
        ("/metrics", metrics),
        ("/table", table),
        ("/explain", explain),
        ("/breakers", breakers),
        ("/xds", xds),
    ):
        app.router.add_get(path, handler)
    app.router.add_post("/explain", explain)
    add_rollout_pages(app, source)
    return app


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give aiohttp's own refusals (404, 405, 413) the form of ours."""
    try:
        return await handler(request)
    except web.HTTPException as refusal:
        if refusal.content_type == "application/json":
            raise
        return _json({"error": f"{refusal.reason}: {request.method} {request.path}"}, status=refusal.status)
    except Exception as error:  # noqa: BLE001 - the outermost handler: a fault of one page must not be silent
        event("admin page failed", logging.ERROR, error=error, page=request.path)
        return _json({"error": "internal error; it is in the log"}, status=500)


async def _asked(request: web.Request) -> Request:
    """Build the request in question from query parameters, and from the body where one is posted."""
    unknown = set(request.query) - {"method", "path", "header", "model"}
    if unknown:
        raise _bad(f"unknown parameter {sorted(unknown)[0]!r}; known: method, path, header (NAME:VALUE), model")
    try:
        return ask(
            method=request.query.get("method", "POST"),
            path=request.query.get("path", "/v1/chat/completions"),
            headers=request.query.getall("header", []),
            model=request.query.get("model"),
            body=await _read(request) if request.method == "POST" else None,
        )
    except QuestionRefused as refused:
        raise _bad(f"parameter {refused}") from refused


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except (web.RequestPayloadError, ValueError) as error:
        raise QuestionRefused("body: it cannot be read; send it as it is, without content-encoding") from error


def _bad(message: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=json.dumps({"error": message}), content_type="application/json")


def _json(value: Json, status: int = 200) -> web.Response:
    return web.json_response(value, status=status)
