"""`pointsman check`, and the report of a policy's problems that other commands share."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pointsman.router.policy import Policy
from pointsman.router.problem import Severity
from pointsman.sidecar.policy_file import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `check`."""
    parser.add_argument("-c", "--config", type=Path, required=True, help="policy file or directory")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print every problem; 0 when the policy can be used (warnings or not), 2 when it is refused."""
    decoded = load(arguments.config)
    errors = sum(problem.severity is Severity.ERROR for problem in decoded.problems)
    warnings = len(decoded.problems) - errors
    if arguments.json:
        problems = [problem.as_json() for problem in decoded.problems]
        print(json.dumps({"accepted": errors == 0, "problems": problems}, indent=2))
    else:
        for problem in decoded.problems:
            print(problem.render())
        verdict = "refused" if errors else "accepted"
        print(f"{arguments.config}: {verdict}, {_count(errors, 'error')}, {_count(warnings, 'warning')}")
    return 2 if errors else 0


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def load_or_report(path: Path, *, as_json: bool = False) -> Policy | None:
    """Return the policy, or None after its errors were printed to standard error."""
    decoded = load(path)
    errors = [problem for problem in decoded.problems if problem.severity is Severity.ERROR]
    if as_json and errors:
        print(json.dumps({"accepted": False, "problems": [problem.as_json() for problem in errors]}), file=sys.stderr)
    else:
        for problem in errors:
            print(problem.render(), file=sys.stderr)
    return decoded.policy
