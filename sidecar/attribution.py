"""Which row, arm and reason a log entry belongs to: the route table's part of a span and of a metric.

Pure. Rows keep their names from table to table, so an entry of the table before is told by name too; a row that is
gone for good leaves its facts unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pointsman.otel.genai_span import Routed
from pointsman.router.entry import RequestEntry
from pointsman.router.intent import PATH_INTENTS, known_intent, strip_query
from pointsman.router.policy import Intent, Policy
from pointsman.router.table import Arm, Reason, Row, Table
from pointsman.xds.names import CANNED_TARGET, MODELS_ROW

Answered = tuple[str, str, str | None, Intent | None, str | None, bool]
"""Row, ladder, target, intent, model (if known), whether the sidecar answered itself: all that an answer depends on.
None of it is the client's to choose freely, so the memory is bounded by the table; MAX_ANSWERS is a guard."""

MAX_ANSWERS = 10_000


@dataclass(frozen=True, slots=True)
class Attribution:
    """An index of one table, made once when the table is published."""

    rows: dict[str, Row]
    providers: dict[str, str]
    canaries: frozenset[tuple[str, str]]
    models: frozenset[str]
    answers: dict[Answered, Routed] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, policy: Policy, table: Table, before: Attribution | None = None) -> Attribution:
        """Index the table; rows that only the one before had stay known for entries that are still under way."""
        rows = dict(before.rows) if before is not None and len(before.rows) < _MAX_OLD_ROWS else {}
        rows.update({row.name: row for row in table.rows()})
        return cls(
            rows=rows,
            providers={model.name: model.provider for model in policy.models},
            canaries=frozenset(
                (route.name, f"{route.canary.model}@{route.canary.version}") for route in policy.routes if route.canary
            ),
            models=frozenset(table.listed_models) | {model.name for model in policy.models},
        )

    def routed(self, entry: RequestEntry) -> Routed:
        """Return the row's facts for the entry. Equal questions are answered from memory: traffic repeats itself."""
        asked = entry.params.get("model")
        model = asked if isinstance(asked, str) and asked in self.models else None
        named = entry.headers.get("x-intent")
        intent = (known_intent(named) if named else None) or PATH_INTENTS.get(strip_query(entry.path))
        is_own = entry.target is None and entry.details.startswith(OWN_ANSWERS)
        key = (entry.row, entry.ladder, entry.target, intent, model, is_own)
        found = self.answers.get(key)
        if found is None:
            if len(self.answers) >= MAX_ANSWERS:
                self.answers.clear()
            found = self.answers[key] = self._routed(entry, intent, model, is_own=is_own)
        return found

    def _routed(self, entry: RequestEntry, intent: Intent | None, model: str | None, *, is_own: bool) -> Routed:
        row = self.rows.get(entry.row)
        is_model = entry.target is not None and entry.target != CANNED_TARGET
        answering = entry.target.partition("@")[0] if is_model and entry.target else None
        return Routed(
            route=row.route if row else "",
            reason=self._reason(entry, row, is_own=is_own),
            qos_class=row.qos.name if row and row.qos else None,
            intent=intent.value if intent else None,
            provider=self.providers.get(answering) if answering else None,
            model=answering,
            is_canary=row is not None and entry.target is not None and (row.route, entry.target) in self.canaries,
            is_known_model=model is not None,
        )

    def _reason(self, entry: RequestEntry, row: Row | None, *, is_own: bool) -> str:
        if entry.row == MODELS_ROW:
            return Reason.LISTED.value
        if row is None or is_own:
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
