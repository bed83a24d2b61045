"""Breaker decisions on the table: each arm's admit, and the retries that are left where a bypass is in use.

Pure: (table, admits) -> table. Bases and ladders stay as they are (each field has one owner). A bypass is one rung
shorter than its ladder, so a row whose bypass has traffic retries once less: tries never wrap round to the first rung.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pointsman.router.table import Arm, Branch, Branches, ClassChoice, Leaf, ModelNode, Outcome, Row, Table

Admits = Mapping[tuple[str, str | None], float]
"""Ratio 0..1 by (target, class); class None holds for all classes. What is not in it is admitted whole."""


def admit_table(table: Table, admits: Admits) -> Table:
    """Return the table with the breakers' decisions in its arms; the table itself when there are none."""
    if all(admit >= 1.0 for admit in admits.values()):
        return table
    return replace(table, nodes=tuple(_node(node, admits) for node in table.nodes))


def _node(node: ModelNode, admits: Admits) -> ModelNode:
    return replace(
        node,
        pins=tuple((version, _branches(branches, admits)) for version, branches in node.pins),
        unpinned=_branches(node.unpinned, admits),
    )


def _branches(branches: Branches, admits: Admits) -> Branches:
    changed: tuple[Branch, ...] = tuple(
        replace(branch, outcome=_outcome(branch.outcome, admits)) for branch in branches.branches
    )
    return replace(branches, branches=changed)


def _outcome(outcome: Outcome, admits: Admits) -> Outcome:
    if not isinstance(outcome, ClassChoice):
        return _leaf(outcome, admits)
    return ClassChoice(
        named=tuple((name, _leaf(leaf, admits)) for name, leaf in outcome.named),
        default=_leaf(outcome.default, admits),
        unknown=_leaf(outcome.unknown, admits),
        numeric=tuple((qos, _leaf(leaf, admits)) for qos, leaf in outcome.numeric),
        unreadable=_leaf(outcome.unreadable, admits),
        unmet=_leaf(outcome.unmet, admits),
    )


def _leaf(leaf: Leaf, admits: Admits) -> Leaf:
    if not isinstance(leaf, Row):
        return leaf
    arms = tuple(_arm(arm, leaf.qos.name if leaf.qos else None, admits) for arm in leaf.arms)
    if arms == leaf.arms:
        return leaf
    bypassed = [len(arm.ladder.bypass.rungs) for arm in arms if arm.weights[1] > 0]
    retries = min(leaf.retries, *(rungs - 1 for rungs in bypassed)) if bypassed else leaf.retries
    return replace(leaf, arms=arms, retries=retries)


def _arm(arm: Arm, qos: str | None, admits: Admits) -> Arm:
    target = str(arm.ladder.first_target) if arm.ladder.first_target else None
    if target is None:
        return arm
    admit = min(admits.get((target, None), 1.0), admits.get((target, qos), 1.0))
    return arm if admit >= 1.0 else replace(arm, admit=admit)
