"""The scale bench's results as Markdown. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from scale_change import FLOOR_ROWS, MAX_LIVE_MS, STAGES, Change
from scale_fleet import CLUSTERS, ENDPOINTS_EACH
from scale_push import Push

MEANINGS = {
    "noticed": "the file system's notification, and 5 ms without another",
    "decoded": "file → policy",
    "built": "policy → table",
    "rendered": "table → Envoy's messages",
    "checked": "messages → snapshot: serialised, hashed, references checked",
    "published": "attribution, handing over to the stream",
    "acknowledged": "sent, taken by Envoy, answered",
    "live": "until a request shows it",
}


def push_table(push: Push) -> str:
    """Return one weight's way to all clients, and the memory."""
    size = push.size
    heading = (
        f"### One weight of {CLUSTERS * ENDPOINTS_EACH:,} endpoints in {CLUSTERS} clusters, {size.clients} clients"
    )
    lines = [heading, "", *_row("", "P50", "max"), *_row("---", "---:", "---:")]
    for name, values in (
        ("snapshot built, ms", push.build_ms),
        ("published until acknowledged by all, ms", push.acknowledged_ms),
        ("processor time of the server, ms", push.server_ms),
    ):
        lines += _row(name, f"{statistics.median(values):.1f}", f"{max(values):.1f}")
    lines += _row("processor time of the clients, ms", f"{push.clients_ms:.1f}", "–")
    lines += _row("responses a client", "1 (the changed assignment)", "1")
    lines += _row("bytes a client", f"{push.bytes_each:,.0f}", "–")
    lines += ["", *_row("the server's memory", "resident MiB", "Python objects"), *_row("---", "---:", "---:")]
    for moment in push.memory:
        lines += _row(moment.when, f"{moment.resident_kib / 1_024:.1f}", f"{moment.objects:,}")
    return "\n".join(lines)


def change_table(changes: Sequence[Change]) -> str:
    """Return a policy change's way, in total and by stage, a column a table."""
    rows = [f"{change.rows} rows" for change in changes]
    lines = ["### From the write of the policy to the first request on the new side", ""]
    lines += _row("ms", "", *rows) + _row("---", "---", *("---:" for _ in rows))
    for name, share in (("P50", 0.5), ("P90", 0.9), ("max", 1.0)):
        lines += _row(f"**live, {name}**", "", *(f"{_at(change.live_ms, share):.1f}" for change in changes))
    for stage in STAGES:
        medians = (statistics.median(times[stage] for times in change.stages_ms) for change in changes)
        lines += _row(stage, MEANINGS[stage], *(f"{median:.1f}" for median in medians))
    lines += _row("a request", "while nothing changes", *(f"{change.request_ms:.1f}" for change in changes))
    return "\n".join(lines)


def floor_line(changes: Sequence[Change]) -> str:
    """Return whether the floor was met."""
    found = next(_at(change.live_ms, 0.5) for change in changes if change.rows == FLOOR_ROWS)
    verdict = "met" if found <= MAX_LIVE_MS else "missed"
    floor = f"a table of {FLOOR_ROWS} rows live within {MAX_LIVE_MS:.0f} ms in the median"
    return f"Floor: {floor}: {found:.1f} ms, {verdict}."


def _at(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _row(*cells: str) -> list[str]:
    return [f"| {' | '.join(cells)} |"]
