"""`pointsman xds status`: how each xDS client of a running agent stands, from its admin server's `/xds`.

Decides nothing and changes nothing. Refuses an admin server that does not answer, or answers something else.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import cast

from pointsman.router.policy import Settings
from pointsman.sidecar.views import Json

ANSWER_WITHIN_S = 5.0
MAX_ANSWER_BYTES = 16 * 1_024 * 1_024
"""A thousand nodes with all their refusals are about 5 MB."""


class NoStatus(Exception):
    """The status cannot be had; the text says why and what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("what", choices=("status",), help="status: per client what was sent, acknowledged and refused")
    parser.add_argument(
        "--admin", default=Settings().admin, metavar="HOST:PORT", help="the agent's admin server (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the answer of /xds")


def run(arguments: argparse.Namespace) -> int:
    """Print the status; 0, or 1 when it cannot be had."""
    try:
        status = fetch(arguments.admin)
    except NoStatus as error:
        print(f"pointsman xds: {error}", file=sys.stderr)
        return 1
    print(json.dumps(status, indent=2) if arguments.json else "\n".join(status_lines(status)))
    return 0


def fetch(admin: str) -> Json:
    """Return the answer of `/xds`, or raise NoStatus."""
    # No proxy from the environment: the admin server is on this host.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{admin}/xds", timeout=ANSWER_WITHIN_S) as answer:
            body = answer.read(MAX_ANSWER_BYTES)
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NoStatus(
            f"no answer from admin server {admin}: {reason}; is the agent running, and is this its `admin`?"
        ) from error
    try:
        status = json.loads(body)
        if not isinstance(status["nodes"], list):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise NoStatus(f"{admin} answers, but not with an xDS status; give the `admin` of the Settings") from None
    return cast(Json, status)


def status_lines(status: Json) -> list[str]:
    """Return the status as lines for a terminal."""
    nodes = cast(list[Json], status["nodes"])
    if not nodes:
        return ["no xDS client has connected"]
    lines: list[str] = []
    for node in nodes:
        lines.extend(_node_lines(node))
    return lines


def _node_lines(node: Json) -> list[str]:
    presence = "connected" if node["connected"] else "gone"
    details = [str(node[key]) for key in ("variant", "group", "agent") if node.get(key)]
    lines = [f"{node['id']}  {node['outcome']}, {presence}" + (f"  ({', '.join(details)})" if details else "")]
    taken, meant = node["acknowledgedSnapshot"] or "none", node["snapshot"] or "none"
    lines.append(f"  snapshot {meant}" + ("" if taken == meant else f", acknowledged {taken}"))
    lines.append(f"  {'type':<5}{'sent':<18}{'acknowledged':<18}{'resources':>9}{'acks':>7}{'nacks':>7}")
    for kind in cast(list[Json], node["types"]):
        if not kind["subscribed"]:
            continue
        sent, acknowledged = kind["sent"] or "-", kind["acknowledged"] or "-"
        counts = f"{kind['resources']:>9}{kind['acks']:>7}{kind['nacks']:>7}"
        lines.append(f"  {kind['type']:<5}{sent:<18}{acknowledged:<18}{counts}")
        for refusal in cast(list[Json], kind["refused"]):
            lines.append(f"    refused {refusal['name']} {refusal['version'] or '(its removal)'}: {refusal['text']}")
    if node["lastRefusal"]:
        lines.append(f"  last refusal: {node['lastRefusal']}")
    if node["ignoredRequests"] or node["staleRequests"]:
        lines.append(f"  ignored requests {node['ignoredRequests']}, stale requests {node['staleRequests']}")
    return lines
