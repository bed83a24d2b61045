"""`pointsman render`: the Envoy resources that a policy becomes, as JSON. Starts nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

from pointsman.router.build import build_table
from pointsman.sidecar.policy_report import load_or_report
from pointsman.xds.as_json import resources_json
from pointsman.xds.render import Renderer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-c", "--config", type=Path, required=True, help="policy file or directory")
    parser.add_argument("--header-mode", action="store_true", help="as if Envoy could not read bodies")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the output is always JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the resources by type; 0, or 2 when the policy is refused."""
    policy = load_or_report(arguments.config, as_json=arguments.json)
    if policy is None:
        return 2
    renderer = Renderer(has_scanner=not arguments.header_mode)
    print(resources_json(renderer.render(build_table(policy), policy.settings)))
    return 0
