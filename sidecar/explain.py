"""`pointsman explain`: what would happen to a request under a policy, and why. Needs no running agent."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pointsman.router.build import build_table
from pointsman.router.decide import decide
from pointsman.router.request import Request, on_the_wire
from pointsman.sidecar.policy_report import load_or_report
from pointsman.sidecar.views import decision_lines, decision_view


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-c", "--config", type=Path, required=True, help="policy file or directory")
    parser.add_argument("-X", "--method", default="POST")
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("-H", "--header", action="append", default=[], metavar="NAME:VALUE", help="may be repeated")
    parser.add_argument("--model", help='the body\'s model; the body is then {"model": …}')
    parser.add_argument("-d", "--body", help="the body; @FILE reads a file")
    parser.add_argument("--header-mode", action="store_true", help="as if Envoy could not read bodies")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the decision; 0, or 2 when the policy or the question is wrong."""
    policy = load_or_report(arguments.config, as_json=arguments.json)
    if policy is None:
        return 2
    try:
        request = _request(arguments)
    except (ValueError, OSError) as error:
        print(f"pointsman explain: {error}", file=sys.stderr)
        return 2
    decision = decide(request, build_table(policy), reads_body=not arguments.header_mode)
    if arguments.json:
        print(json.dumps(decision_view(decision), indent=2))
    else:
        print("\n".join(decision_lines(decision)))
    return 0


def _request(arguments: argparse.Namespace) -> Request:
    headers = []
    for text in arguments.header:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"--header must be NAME:VALUE, found {text!r}")
        headers.append((name.strip().lower(), on_the_wire(value.strip())))
    body: bytes | None = None
    if arguments.body is not None:
        body = Path(arguments.body[1:]).read_bytes() if arguments.body.startswith("@") else arguments.body.encode()
    elif arguments.method.upper() not in ("GET", "HEAD"):
        body = json.dumps({"model": arguments.model} if arguments.model else {}).encode()
    if body is not None and not any(name == "content-type" for name, _ in headers):
        headers.append(("content-type", "application/json"))
    return Request(arguments.method.upper(), arguments.path, tuple(headers), body)
