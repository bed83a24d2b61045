"""The breaker's loop: outcomes from the log, probes, and a new table when a state moved.

Looks when entries arrive and every LOOK_MS, so that a trip is a new table within the log's flush and one look. Decides
nothing: router/breakers.py does. In observe mode it computes, tells and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from pointsman.otel.metrics import Metrics
from pointsman.router.breaker import BreakerChanged
from pointsman.router.breakers import Breakers
from pointsman.router.entry import LogGap, RequestEntry, TryEntry
from pointsman.router.intent import PATH_INTENTS, known_intent, strip_query
from pointsman.router.outcome import TryOutcome, is_its_only_try, outcome_of
from pointsman.router.policy import GENERATING_INTENTS, LoopMode, Policy
from pointsman.router.table import Reason, Row
from pointsman.sidecar.json_log import event
from pointsman.sidecar.prober import Prober
from pointsman.xds.names import CANNED_TARGET

LOOK_MS = 100
"""Time alone moves ramps and makes probes due; steps are hundreds of milliseconds or more."""

PROBE_EVERY_S = 0.5

Entry = RequestEntry | TryEntry | LogGap


class BreakerLoop:
    """Feeds `Breakers` and tells the owner when admits changed."""

    def __init__(self, policy: Policy, metrics: Metrics, on_change: Callable[[], None]) -> None:
        """`on_change` is called in the event loop when the table must be made again."""
        self.breakers = Breakers()
        self._metrics = metrics
        self._on_change = on_change
        self._policy = policy
        self._rows: dict[str, Row] = {}
        self.adopt(policy, {})

    @property
    def acts(self) -> bool:
        """Whether what it finds changes traffic."""
        return self._policy.settings.mode.breaker is LoopMode.ACT

    def adopt(self, policy: Policy, rows: dict[str, Row]) -> None:
        """Take the policy in force and its rows by name."""
        self._policy = policy
        self._rows = rows
        self.breakers.adopt(policy)

    def observe(self, entries: Sequence[Entry]) -> None:
        """Count what a batch of log entries says of tries, and look at once."""
        now_ms = _now_ms()
        for entry in entries:
            if isinstance(entry, TryEntry):
                self._count(entry.target, entry.row, outcome_of(entry), now_ms)
            elif isinstance(entry, RequestEntry) and entry.target is not None and is_its_only_try(entry):
                self._count(entry.target, entry.row, TryOutcome.SUCCESS, now_ms)
                self._count_latency(entry, entry.target, now_ms)
        self._look(now_ms)

    def _count(self, target: str, row_name: str, outcome: TryOutcome, now_ms: int) -> None:
        if outcome in (TryOutcome.CANCELLED, TryOutcome.REJECTED) or target == CANNED_TARGET:
            return
        row = self._rows.get(row_name)
        pinned = row is not None and row.reason is Reason.PINNED
        self.breakers.record(target, failed=outcome is TryOutcome.FAILURE, now_ms=now_ms, pinned=pinned)

    def _count_latency(self, entry: RequestEntry, target: str, now_ms: int) -> None:
        """Count very late answers: by the first token on generating intents (where it was seen), else by total time."""
        row = self._rows.get(entry.row)
        if row is None or row.qos is None:
            return
        factor = self.breakers.late_over_budget(target, row.qos.name)
        intent = known_intent(entry.headers.get("x-intent")) or PATH_INTENTS.get(strip_query(entry.path))
        took_ms = entry.first_chunk_ms if intent in GENERATING_INTENTS else entry.duration_ms
        if factor is not None and took_ms is not None:
            late = took_ms > factor * row.qos.latency_budget_ms
            self.breakers.record_latency(target, row.qos.name, late=late, now_ms=now_ms)

    async def run(self) -> None:
        """Probe what is open and let time pass, until cancelled."""
        async with Prober() as prober:
            probed_at = 0.0
            while True:
                await asyncio.sleep(LOOK_MS / 1_000)
                wanted = self.breakers.wanted_probes()
                if wanted and time.monotonic() - probed_at >= PROBE_EVERY_S:
                    probed_at = time.monotonic()
                    for target, answered in (await prober.probe(wanted, self._policy)).items():
                        self.breakers.probed(target, answered=answered)
                self._look(_now_ms())

    def _look(self, now_ms: int) -> None:
        changes = self.breakers.look(now_ms)
        for change in changes:
            self._tell(change)
        if changes and self.acts:
            self._on_change()

    def _tell(self, change: BreakerChanged) -> None:
        self._metrics.breaker_changed(change)
        event(
            "breaker moved",
            logging.WARNING if change.after.admit < change.before.admit else logging.INFO,
            target=change.target,
            qos_class=change.qos,
            before=change.before.phase.value,
            after=change.after.phase.value,
            admit=change.after.admit,
            reason=change.after.cause.value,
            evidence=[[counts.total, counts.failures, counts.late] for counts in change.evidence],
            acts=self.acts,
        )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
