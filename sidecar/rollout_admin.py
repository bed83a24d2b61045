"""The admin server's pages of rollouts: `GET /rollouts`, and `POST /rollouts/{route}/{verb}` for an operator's word.

Decides nothing: the loop does. Refuses a POST that a page in a browser could send: one without the command's header,
and one whose Host is a name (a name can be made to lead here; an address cannot).
"""

from __future__ import annotations

import ipaddress
import json
from typing import Protocol

from aiohttp import web
from pointsman.router.rollout import RolloutRefused, Verb
from pointsman.sidecar.rollout_command import COMMAND_HEADER
from pointsman.sidecar.views import Json


class RolloutSource(Protocol):
    """What the pages ask of the agent."""

    def rollouts(self) -> Json:
        """Return every rollout with its evidence and history."""

    def rollout_command(self, route: str, verb: Verb) -> Json:
        """Do what an operator asks and return the view; KeyError for an unknown route, RolloutRefused else."""


def add_rollout_pages(app: web.Application, source: RolloutSource) -> None:
    """Put the pages into the application."""

    async def rollouts(_: web.Request) -> web.Response:
        return web.json_response(source.rollouts())

    async def command(request: web.Request) -> web.Response:
        if COMMAND_HEADER not in request.headers or not _is_address(request.host):
            return _refused(403, f"send {COMMAND_HEADER}: 1, and an address or localhost as Host")
        route, verb = request.match_info["route"], request.match_info["verb"]
        if verb not in tuple(Verb):
            return _refused(404, f"unknown command {verb[:40]!r}; known: {', '.join(Verb)}")
        try:
            return web.json_response(source.rollout_command(route, Verb(verb)))
        except KeyError:
            return _refused(404, f"route {route[:80]!r} has no rollout; GET /rollouts lists them")
        except RolloutRefused as refused:
            return _refused(409, str(refused))

    app.router.add_get("/rollouts", rollouts)
    app.router.add_post("/rollouts/{route}/{verb}", command)


def _is_address(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if host.count(":") == 1 or host.startswith("[") else host
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _refused(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=json.dumps({"error": text}), content_type="application/json")
