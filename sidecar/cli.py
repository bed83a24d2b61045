"""The command line: one program, one subcommand a file. Exit codes: 0 done, 1 failed, 2 refused (usage or policy)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata

from pointsman.sidecar import (
    command_run,
    demo,
    explain,
    policy_report,
    render_command,
    rollout_command,
    simulator,
    xds_command,
)

COMMANDS = (
    ("run", "run Envoy and its agent on this host under a policy", command_run),
    ("check", "tell every problem of a policy; exit 2 when it would be refused", policy_report),
    ("explain", "tell what would happen to a request, and why", explain),
    ("render", "print the Envoy resources that a policy becomes", render_command),
    ("xds", "tell how each xDS client stands", xds_command),
    ("rollout", "tell how canaries' rollouts stand; pause, resume, promote, abort or retry one", rollout_command),
    ("simulate", "run a model server that behaves like a real one", simulator),
    ("demo", "show routing, refusals and a trace on this machine, with a real Envoy", demo),
)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="pointsman", description="Sidecar proxy with adaptive model routing: Python decides, Envoy executes."
    )
    parser.add_argument("--version", action="version", version=f"pointsman {metadata.version('pointsman')}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary, module in COMMANDS:
        subparser = subparsers.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = make_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
