"""Log entries in, metrics and spans out: the only reader of what Envoy logs in this version.

Called by the log receiver in the event loop, for batches; it must not wait and does not raise for an entry it cannot
place (a row of a table long gone): that counts under unknown names.
"""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.otel.exporter import SpanExporter
from pointsman.otel.metrics import Metrics
from pointsman.router.entry import LogGap, RequestEntry, TryEntry
from pointsman.router.outcome import TryOutcome, is_its_only_try, outcome_of
from pointsman.sidecar.attribution import Attribution
from pointsman.sidecar.json_log import event


class Recorder:
    """Turns entries into measurements. `attribution` and `exporter` are replaced when the policy changes."""

    def __init__(self, metrics: Metrics, attribution: Attribution) -> None:
        """Without an exporter no spans are made."""
        self.metrics = metrics
        self.attribution = attribution
        self.exporter: SpanExporter | None = None

    def record(self, entries: Sequence[RequestEntry | TryEntry | LogGap]) -> None:
        """Record a batch, in order."""
        for entry in entries:
            if isinstance(entry, RequestEntry):
                routed = self.attribution.routed(entry)
                self.metrics.record_request(entry, routed)
                if entry.target is not None and is_its_only_try(entry):
                    self.metrics.record_try(entry.target, TryOutcome.SUCCESS.value)
                if self.exporter is not None and entry.is_sampled:
                    self.exporter.record(entry, routed)
            elif isinstance(entry, TryEntry):
                self.metrics.record_try(entry.target, outcome_of(entry).value)
            else:
                self.metrics.log_gap_seen()
                event("request log interrupted: entries may be missing", node=entry.node, reason=entry.reason)
