"""`pointsman run`: the agent and its Envoy on this host."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from pointsman.sidecar.agent import Agent, AgentFault, AgentRefused, RunOptions
from pointsman.sidecar.envoy_binary import EnvoyFailed
from pointsman.sidecar.json_log import event, start_logging
from pointsman.xds.ads import NotAcknowledged


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-c", "--config", type=Path, required=True, help="policy file or directory")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument(
        "--drain-seconds", type=int, default=30, help="what requests in flight may take after SIGTERM (default 30)"
    )
    parser.add_argument(
        "--concurrency", type=int, default=0, help="Envoy's worker threads (default: as many as processors, at most 2)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run until a signal; 0 after a clean drain, 1 failed, 2 refused."""
    if arguments.drain_seconds < 0 or arguments.concurrency < 0:
        print("pointsman run: --drain-seconds and --concurrency must not be negative", file=sys.stderr)
        return 2
    start_logging(arguments.log_level)
    options = RunOptions(arguments.config, arguments.drain_seconds * 1_000, arguments.concurrency)
    try:
        return asyncio.run(Agent(options).run())
    except AgentRefused as refused:
        print(refused, file=sys.stderr)
        return 2
    except AgentFault as fault:
        event(str(fault), logging.ERROR, error=fault)
        sys.stderr.flush()
        os._exit(1)  # an orderly exit would end the child with us
    except (EnvoyFailed, NotAcknowledged) as failed:
        print(f"pointsman run: {failed}", file=sys.stderr)
        return 1
