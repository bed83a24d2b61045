"""The account of a chaos run: every request ends in exactly one class, and servers must not have worked twice.

Decides with the product's own `decide` which answers were right under the policies that a request may have met.
Refuses to explain away: a failure needs a documented rule whose time it touches, and the failure that the rule names.
Pure but for the list that it keeps; fed by trial.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ask import MIB, Ask, Kind
from client import Outcome
from pointsman.router.decide import decide
from pointsman.router.table import Table
from server import ModelServer
from timeline import Rule, Timeline

BODY_LIMIT_BYTES = 8 * MIB
"""policy.yaml's limits.bodyBytes."""

BUSY, DEAD, SMALL = "busy-chat@v1", "dead-chat@v1", "small-chat@v1"
CANNED = "canned"
LISTED = "listed"


class Class(Enum):
    """What a request ended as."""

    SUCCESS = "success"
    REFUSED = "documented refusal"
    BY_RULE = "failed by a documented rule"
    LEFT = "the client left"
    UNACCOUNTED = "UNACCOUNTED"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class of one request and why."""

    outcome: Outcome
    kind: Class
    why: str


def judge(outcome: Outcome, timeline: Timeline) -> Verdict:
    """Return the request's class."""
    if outcome.has_left:
        return Verdict(outcome, Class.LEFT, "")
    if outcome.error or not outcome.is_whole:
        return _judge_failure(outcome, timeline)
    if outcome.wrong:
        return Verdict(outcome, Class.UNACCOUNTED, outcome.wrong)
    spells = timeline.policies(outcome.started_s, outcome.ended_s)
    expected = set().union(*(expected_answers(outcome.ask, spell.table) for spell in spells))
    found = _found(outcome)
    if found not in expected:
        why = f"found {found}, expected one of {sorted(map(str, expected))} by {len(spells)} policies"
        return Verdict(outcome, Class.UNACCOUNTED, why)
    if isinstance(found, str) and found != CANNED:
        told = outcome.headers.get("x-pointsman-target")
        if outcome.ask.kind is not Kind.WEBSOCKET and told != found:
            return Verdict(outcome, Class.UNACCOUNTED, f"{found} answered, x-pointsman-target says {told}")
        return Verdict(outcome, Class.SUCCESS, found)
    if not outcome.is_refusal_shaped:
        return Verdict(outcome, Class.UNACCOUNTED, f"status {outcome.status} without the API's error object")
    return Verdict(outcome, Class.REFUSED, f"{outcome.status}{' canned' if found == CANNED else ''}")


def _judge_failure(outcome: Outcome, timeline: Timeline) -> Verdict:
    for spell in timeline.faults(outcome.started_s, outcome.ended_s):
        # A drain lets what had begun finish: only who came later may be turned away, and has not seen an answer then.
        is_later = outcome.started_s >= spell.from_s and outcome.status is None
        if "no end within" not in outcome.error and (spell.rule is not Rule.STOPPED or is_later):
            return Verdict(outcome, Class.BY_RULE, spell.rule.value)
    return Verdict(outcome, Class.UNACCOUNTED, f"{outcome.error or 'no whole answer'}; status {outcome.status}")


def _found(outcome: Outcome) -> str | int:
    """Who answered, or the status of an answer that no server gave."""
    if outcome.served_by is not None:
        return outcome.served_by
    is_canned = outcome.headers.get("x-pointsman-target") == CANNED and outcome.headers.get("retry-after") == "7"
    return CANNED if is_canned and outcome.status == 503 else outcome.status or 0


def expected_answers(ask: Ask, table: Table) -> set[str | int]:
    """Return who may answer under the table: targets, `canned`, or a refusal's status."""
    if ask.pad_bytes > BODY_LIMIT_BYTES:
        return {413}
    decision = decide(ask.as_table_sees_it(), table)
    if decision.refusal is not None:
        return {decision.refusal.status}
    if decision.row is None:
        return {LISTED}
    arms = [decision.arm] if decision.arm else [arm for arm in decision.row.arms if arm.base]
    targets = {str(arm.ladder.first_target) for arm in arms}
    # The ladder repairs what these two servers cannot do.
    return {{BUSY: SMALL, DEAD: CANNED}.get(target, target) for target in targets}


class Ledger:
    """All verdicts so far."""

    def __init__(self) -> None:
        self.classes: Counter[tuple[Kind, Class]] = Counter()
        self.reasons: Counter[tuple[Class, str]] = Counter()
        self.unaccounted: list[Verdict] = []

    def add(self, verdict: Verdict) -> None:
        """Count one."""
        self.classes[verdict.outcome.ask.kind, verdict.kind] += 1
        self.reasons[verdict.kind, verdict.why if verdict.kind is not Class.UNACCOUNTED else ""] += 1
        if verdict.kind is Class.UNACCOUNTED:
            self.unaccounted.append(verdict)

    @property
    def total(self) -> int:
        """Requests judged."""
        return self.classes.total()


def executed_twice(servers: Iterable[ModelServer]) -> dict[str, int]:
    """Return the requests that servers worked on more than once, by id. A refusal with 503 is retried by rule.

    What has no id is no client's: the agent's own probes.
    """
    times: Counter[str] = Counter()
    for server in servers:
        if server.status == 200:
            times.update(server.executed)
    return {ask_id: count for ask_id, count in times.items() if count > 1 and ask_id}
