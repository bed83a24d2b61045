"""Which row, arm and reason a log entry belongs to: the route table's part of a span and of a metric.

Pure. Rows keep their names from table to table, so an entry of the table before is told by name too; a row that is
gone for good leaves its facts unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.otel.genai_span import Routed
from pointsman.router.entry import RequestEntry
from pointsman.router.intent import PATH_INTENTS, known_intent, strip_query
from pointsman.router.policy import Policy
from pointsman.router.table import Arm, Reason, Refusal, Row, Table
from pointsman.xds.names import CANNED_TARGET, MODELS_ROW


@dataclass(frozen=True, slots=True)
class Attribution:
    """An index of one table, made once when the table is published."""

    rows: dict[str, Row]
    refusals: frozenset[str]
    providers: dict[str, str]
    canaries: frozenset[tuple[str, str]]
    models: frozenset[str]

    @classmethod
    def of(cls, policy: Policy, table: Table, before: Attribution | None = None) -> Attribution:
        """Index the table; rows that only the one before had stay known for entries that are still under way."""
        rows = dict(before.rows) if before is not None and len(before.rows) < _MAX_OLD_ROWS else {}
        rows.update({row.name: row for row in table.rows()})
        refusals = {leaf.name for leaf in table.leaves() if isinstance(leaf, Refusal)}
        refusals |= {refusal.name for refusal in (table.unknown_model, table.contradictory_pin, table.bad_session_ttl)}
        return cls(
            rows=rows,
            refusals=frozenset(refusals),
            providers={model.name: model.provider for model in policy.models},
            canaries=frozenset(
                (route.name, f"{route.canary.model}@{route.canary.version}") for route in policy.routes if route.canary
            ),
            models=frozenset(table.listed_models) | {model.name for model in policy.models},
        )

    def routed(self, entry: RequestEntry) -> Routed:
        """Return the row's facts for the entry."""
        asked = entry.params.get("model")
        model = asked if isinstance(asked, str) else None
        intent = known_intent(entry.headers.get("x-intent")) or PATH_INTENTS.get(strip_query(entry.path))
        row = self.rows.get(entry.row)
        answering = entry.target.partition("@")[0] if entry.target else None
        return Routed(
            route=row.route if row else "",
            reason=self._reason(entry, row),
            qos_class=row.qos.name if row and row.qos else None,
            intent=intent.value if intent else None,
            provider=self.providers.get(answering or model or ""),
            model=answering,
            is_canary=row is not None and entry.target is not None and (row.route, entry.target) in self.canaries,
            is_known_model=model in self.models,
        )

    def _reason(self, entry: RequestEntry, row: Row | None) -> str:
        if entry.row == MODELS_ROW:
            return Reason.LISTED.value
        if row is None or (entry.target is None and entry.details.startswith(OWN_ANSWERS)):
            return Reason.REFUSED.value if entry.target is None else "unknown"
        arm = _arm_of(row, entry.ladder)
        if arm is None:
            return row.label
        first = arm.ladder.first_target
        if entry.target is not None and entry.target != (str(first) if first else CANNED_TARGET):
            return Reason.FALLBACK.value
        return row.arm_label(arm)


_MAX_OLD_ROWS = 20_000
"""Beyond this the rows of older tables are forgotten: a bound on memory, far above one table's size."""

OWN_ANSWERS = ("pointsman_", "direct_response")
"""Envoy's response code details of answers that no server gave: the scanner's refusals, the table's."""


def _arm_of(row: Row, ladder: str) -> Arm | None:
    """The arm whose ladder it is, else whose bypass: a bypass may be another arm's ladder (the canary's is)."""
    own = next((arm for arm in row.arms if arm.ladder.name == ladder), None)
    return own or next((arm for arm in row.arms if arm.ladder.bypass.name == ladder), None)
