"""Results as Markdown tables: one a workload, then the floors. Pure but for `machine`, which reads /proc/cpuinfo."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from burst import Burst
from comparison import Rounds, over, spread
from floors import Verdict
from measured import BARE

HEADINGS = ("", "req/s", "P50 ms", "P99 ms", "Envoy us/req", "ratio to bare Envoy", "Python us/req")


def machine() -> str:
    """Return the processor's name and how many there are."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"unknown processor, {os.cpu_count()} cores"


def workload_table(name: str, rounds: Rounds) -> str:
    """Return what every subject showed under one workload: medians of the rounds."""
    lines = [f"### {name}", "", _row(HEADINGS), _row(["---", *["---:"] * (len(HEADINGS) - 1)])]
    for subject, bursts in rounds.items():
        has_envoy = bursts[0].envoy_us is not None
        has_ratio = has_envoy and BARE in rounds
        cells = [
            subject,
            f"{_median(bursts, lambda burst: burst.per_s):,.0f}",
            f"{_median(bursts, lambda burst: burst.p50_ms):.2f}",
            f"{_median(bursts, lambda burst: burst.p99_ms):.2f}",
            f"{_median(bursts, lambda burst: burst.envoy_us or 0.0):.0f}" if has_envoy else "–",
            over(rounds, subject, BARE).text(2) if has_ratio else "–",
            spread([burst.python_us for burst in bursts if burst.python_us is not None]).text(0)
            if bursts[0].python_us is not None
            else "–",
        ]
        lines.append(_row(cells))
    return "\n".join(lines)


def floor_table(verdicts: Sequence[Verdict]) -> str:
    """Return each floor with what was found."""
    lines = [_row(("floor", "request", "at most", "found", "")), _row(("---", "---", "---:", "---:", "---"))]
    for verdict in verdicts:
        floor = verdict.floor
        digits = 2 if floor.unit == "x" else 0
        limit = f"{floor.limit:g} {floor.unit}"
        lines.append(
            _row((floor.name, floor.workload, limit, verdict.found.text(digits), "met" if verdict.is_met else "missed"))
        )
    return "\n".join(lines)


def as_json(results: Mapping[str, Rounds]) -> dict[str, dict[str, list[dict[str, float | None]]]]:
    """Return every burst, for later comparison."""
    return {
        name: {subject: [_burst(burst) for burst in bursts] for subject, bursts in rounds.items()}
        for name, rounds in results.items()
    }


def _burst(burst: Burst) -> dict[str, float | None]:
    return {
        "requests": burst.requests,
        "per_s": burst.per_s,
        "p50_ms": burst.p50_ms,
        "p99_ms": burst.p99_ms,
        "envoy_us": burst.envoy_us,
        "python_us": burst.python_us,
    }


def _median(bursts: Sequence[Burst], value: Callable[[Burst], float]) -> float:
    return statistics.median(value(burst) for burst in bursts)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
