"""`pointsman rollout`: how each canary's rollout stands, and an operator's word to it, over the agent's admin server.

Decides nothing: the agent does, and tells why it refuses. Refuses an admin server that does not answer, or answers
something else. A command is a POST with a header of its own, which no page in a browser can send unasked.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import cast

from pointsman.router.policy import Settings
from pointsman.router.rollout import Verb
from pointsman.sidecar.views import Json

COMMAND_HEADER = "x-pointsman-command"
"""Must be on a POST that changes something; a browser asks first before it sends it to another origin."""

STATUS = "status"
ANSWER_WITHIN_S = 5.0
MAX_ANSWER_BYTES = 16 * 1_024 * 1_024
"""A thousand rollouts with their histories are about 12 MB."""


class NoRollout(Exception):
    """The admin server cannot be asked; the text says why and what to do."""


class CommandRefused(Exception):
    """The agent, or this command, refuses; the text says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "what",
        choices=(STATUS, *(verb.value for verb in Verb)),
        help="status: how rollouts stand; pause and resume: keep the step, go on; promote: all traffic, now;"
        " abort: none, now; retry: start an aborted one again",
    )
    parser.add_argument("route", nargs="?", metavar="ROUTE", help="its name; not needed where there is one rollout")
    parser.add_argument(
        "--admin", default=Settings().admin, metavar="HOST:PORT", help="the agent's admin server (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the answer of /rollouts")


def run(arguments: argparse.Namespace) -> int:
    """Do it and print how the rollout stands; 0, 1 without an answer, 2 when it is refused."""
    try:
        page = _asked(arguments.what, arguments.route, arguments.admin)
    except (NoRollout, CommandRefused) as error:
        print(f"pointsman rollout: {error}", file=sys.stderr)
        return 1 if isinstance(error, NoRollout) else 2
    print(json.dumps(page, indent=2) if arguments.json else "\n".join(status_lines(page)))
    return 0


def _asked(what: str, route: str | None, admin: str) -> Json:
    """Return the page of the route (of all without one), after the command was done."""
    page = _fetch(admin, "/rollouts", is_command=False)
    names = [str(item["route"]) for item in _rollouts(page)]
    if what != STATUS and route is None:
        if len(names) != 1:
            raise CommandRefused(f"{what}: name the route, there are {len(names)} rollouts ({_words(names)})")
        route = names[0]
    if route is None:
        return page
    if route not in names:
        raise CommandRefused(f"route {route} has no rollout; known: {_words(names)}")
    if what != STATUS:
        page = _fetch(admin, f"/rollouts/{urllib.parse.quote(route, safe='')}/{what}", is_command=True)
    return {**page, "rollouts": [item for item in _rollouts(page) if item["route"] == route]}


def _fetch(admin: str, path: str, *, is_command: bool) -> Json:
    # No proxy from the environment: the admin server is on this host.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {COMMAND_HEADER: "1"} if is_command else {}
    request = urllib.request.Request(f"http://{admin}{path}", headers=headers, data=b"" if is_command else None)
    try:
        with opener.open(request, timeout=ANSWER_WITHIN_S) as answer:
            body = answer.read(MAX_ANSWER_BYTES)
    except urllib.error.HTTPError as refusal:
        raise _refusal(refusal, admin) from refusal
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NoRollout(
            f"no answer from admin server {admin}: {reason}; is the agent running, and is this its `admin`?"
        ) from error
    try:
        page = json.loads(body)
        if not all(isinstance(item["route"], str) for item in page["rollouts"]):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise NoRollout(f"{admin} answers, but not with rollouts; give the `admin` of the Settings") from None
    return cast(Json, page)


def _refusal(refusal: urllib.error.HTTPError, admin: str) -> Exception:
    try:
        text = json.loads(refusal.read(MAX_ANSWER_BYTES))["error"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return NoRollout(f"{admin} answers {refusal.code}, but not as an agent would; give the `admin` of the Settings")
    return CommandRefused(str(text))


def status_lines(page: Json) -> list[str]:
    """Return the page as lines for a terminal."""
    rollouts = _rollouts(page)
    if not rollouts:
        return ["no route has a canary with a weight or steps"]
    lines = ["mode observe: shares stay as the policy states them"] if page.get("mode") == "observe" else []
    for rollout in rollouts:
        lines += _rollout_lines(rollout)
    return lines


def _rollout_lines(rollout: Json) -> list[str]:
    steps = cast(list[float], rollout["steps"])
    next_ms = cast(int | None, rollout["nextLookInMs"])
    limit = cast(float | None, rollout["maxErrorRatio"])
    lines = [
        f"{rollout['route']}  {rollout['phase']} ({rollout['reason']})"
        + (f" since {rollout['since']}" if rollout["since"] else ""),
        f"  step {rollout['step']} of {len(steps)}, share {rollout['sharePercent']:g} %"
        + (f", next look in {next_ms / 1_000:.0f} s" if next_ms is not None else "")
        + (f", at most {limit * 100:g} % errors" if limit is not None else ""),
        f"  {'':<8}{'target':<32}{'requests':>9}  {'errors % (99.9 % bounds)':<26}"
        f"{'P50/P90 ms':>16}{'first token':>16}{'tokens/s':>10}",
    ]
    return lines + [_side_line(side, cast(Json, rollout[side])) for side in ("canary", "stable")]


def _side_line(name: str, side: Json) -> str:
    ratio, (least, most) = cast(float | None, side["errorRatio"]), cast(list[float], side["errorRatioBounds"])
    errors = "-" if ratio is None else f"{ratio * 100:.2f} ({least * 100:.2f} to {most * 100:.2f})"
    times = [_times(cast(Json, side[key])) for key in ("durationMs", "firstTokenMs")]
    rate = side["tokensPerSecond"]
    return (
        f"  {name:<8}{side['target']!s:<32}{side['requests']!s:>9}  {errors:<26}{times[0]:>16}{times[1]:>16}"
        f"{'-' if rate is None else rate!s:>10}"
    )


def _times(quantiles: Json) -> str:
    return "-" if quantiles["p50"] is None else f"{quantiles['p50']}/{quantiles['p90']}"


def _rollouts(page: Json) -> list[Json]:
    return cast(list[Json], page["rollouts"])


def _words(names: list[str]) -> str:
    return ", ".join(names) if names else "none"
