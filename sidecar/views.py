"""Values as JSON for the admin server and the command line: the table, a decision, the xDS status. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.router.breakers import Breakers
from pointsman.router.decide import Decision
from pointsman.router.table import CannedRung, Row, Rung, Table, TargetRung
from pointsman.xds.status import NodeStatus

Json = dict[str, object]


def table_view(table: Table, version: str) -> Json:
    """Return rows with arms in parts of 10,000 and reasons, and endpoints with weights."""
    return {
        "version": version,
        "models": list(table.listed_models),
        "rows": [row_view(row) for row in table.rows()],
        "endpoints": [
            {"target": str(spec.target), "address": address, "weight": 1}
            for spec in table.targets
            for address in spec.addresses
        ],
    }


def row_view(row: Row) -> Json:
    """Return one row."""
    view: Json = {
        "name": row.name,
        "route": row.route,
        "reason": row.label,
        "qosClass": row.qos.name if row.qos else None,
        "arms": [
            {
                "target": str(arm.ladder.first_target) if arm.ladder.first_target else "canned",
                "base": arm.base,
                "admit": arm.admit,
                "reason": row.arm_label(arm),
                "rungs": [_rung_view(rung) for rung in arm.ladder.rungs],
            }
            for arm in row.arms
        ],
        "stickBy": list(row.stick_by),
        "retries": row.retries,
        "retryOn": list(row.retry_on),
    }
    return view


def _rung_view(rung: Rung) -> str:
    if isinstance(rung, TargetRung):
        return str(rung.target) if rung.rewrite_to is None else f"{rung.target} as {rung.rewrite_to}"
    assert isinstance(rung, CannedRung)
    return f"canned {rung.status}, Retry-After {rung.retry_after_s}"


def decision_view(decision: Decision) -> Json:
    """Return a decision with its whole explanation."""
    view: Json = {
        "target": decision.target,
        "reason": decision.reason,
        "steps": [{"stage": step.stage, "finding": step.finding} for step in decision.steps],
    }
    if decision.refusal is not None:
        view["refusal"] = {"status": decision.refusal.status, "message": decision.refusal.message}
    if decision.listed_models is not None:
        view["models"] = list(decision.listed_models)
    row = decision.row
    if row is not None:
        view["row"] = row_view(row)
        view["candidates"] = [
            {"target": str(candidate.target), "taken": candidate.is_taken, "why": candidate.why}
            for candidate in row.candidates
        ]
    return view


def decision_lines(decision: Decision) -> list[str]:
    """Return the explanation as lines for a terminal."""
    lines = [f"{step.stage:<9}{step.finding}" for step in decision.steps]
    if decision.row is not None:
        lines.append(f"{'row':<9}{decision.row.name} ({decision.row.label})")
        for candidate in decision.row.candidates:
            mark = "+" if candidate.is_taken else "-"
            lines.append(f"{'':<9}{mark} {candidate.target}: {candidate.why}")
        for arm in decision.row.arms:
            rungs = " > ".join(_rung_view(rung) for rung in arm.ladder.rungs)
            lines.append(f"{'arm':<9}{arm.base / 100:g} % {ladder_text(decision.row, rungs)}")
    if decision.refusal is not None:
        lines.append(f"{'answer':<9}{decision.refusal.status} {decision.refusal.message}")
    elif decision.listed_models is not None:
        lines.append(f"{'answer':<9}200 {', '.join(decision.listed_models)}")
    else:
        lines.append(f"{'goes to':<9}{decision.target or 'by chance, see the arms'} ({decision.reason})")
    return lines


def ladder_text(row: Row, rungs: str) -> str:
    """Return an arm's ladder with what a retry needs, for a terminal."""
    if row.retries == 0:
        return rungs
    times = "1 retry" if row.retries == 1 else f"{row.retries} retries"
    return f"{rungs}   ({times} on {', '.join(row.retry_on)})"


def breakers_view(breakers: Breakers, now_ms: int, *, acts: bool) -> Json:
    """Return every breaker: state, admitted ratio, reason, since when, and its windows' counts."""
    return {
        "mode": "act" if acts else "observe",
        "breakers": [
            {
                "target": target,
                "class": qos,
                "state": state.phase.value,
                "admit": state.admit,
                "reason": state.cause.value,
                "sinceMs": now_ms - state.since_ms if state.since_ms else None,
                "windows": [
                    {"widthMs": width, "tries": found.total, "failures": found.failures, "late": found.late}
                    for width, found in counts.items()
                ],
            }
            for target, qos, state, counts in breakers.states(now_ms)
        ],
    }


def xds_view(nodes: Iterable[NodeStatus]) -> Json:
    """Return per node what was acknowledged, sent and refused, with the refusals' texts."""
    return {
        "nodes": [
            {
                "id": node.identity.node_id,
                "connected": node.is_connected,
                "variant": node.variant,
                "group": node.group,
                "agent": node.identity.agent,
                "outcome": node.outcome.value,
                "snapshot": node.snapshot_version,
                "acknowledgedSnapshot": node.acknowledged_snapshot,
                "lastRefusal": node.last_refusal,
                "ignoredRequests": node.ignored_requests,
                "staleRequests": node.stale_requests,
                "types": [
                    {
                        "type": status.type_url.label,
                        "subscribed": status.is_subscribed,
                        "sent": status.sent_version,
                        "acknowledged": status.acknowledged_version,
                        "resources": status.resources_held,
                        "responses": status.responses_sent,
                        "acks": status.acknowledgements,
                        "nacks": status.nacks,
                        "refused": [
                            {"name": refusal.name, "version": refusal.version, "text": refusal.text}
                            for refusal in status.refused
                        ],
                    }
                    for status in node.types
                ],
            }
            for node in nodes
        ]
    }
