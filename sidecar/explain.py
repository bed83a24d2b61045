"""`pointsman explain`: what would happen to a request under a policy, and why. Needs no running agent."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pointsman.router.build import build_table
from pointsman.router.decide import decide
from pointsman.sidecar.policy_report import load_or_report
from pointsman.sidecar.question import QuestionRefused, ask
from pointsman.sidecar.views import decision_lines, decision_view


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-c", "--config", type=Path, required=True, help="policy file or directory")
    parser.add_argument("-X", "--method", default="POST", help="default POST")
    parser.add_argument("--path", default="/v1/chat/completions", help="default /v1/chat/completions")
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
        request = ask(
            method=arguments.method,
            path=arguments.path,
            headers=arguments.header,
            model=arguments.model,
            body=_body(arguments.body),
        )
    except QuestionRefused as refused:
        print(f"pointsman explain: {refused}", file=sys.stderr)
        return 2
    decision = decide(request, build_table(policy), reads_body=not arguments.header_mode)
    if arguments.json:
        print(json.dumps(decision_view(decision), indent=2))
    else:
        print("\n".join(decision_lines(decision)))
    return 0


def _body(text: str | None) -> bytes | None:
    if text is None or not text.startswith("@"):
        return None if text is None else text.encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise QuestionRefused(f"--body: {text[1:]} cannot be read: {error.strerror}") from error
