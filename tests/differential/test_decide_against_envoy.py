"""Envoy's choice equals `decide`'s: generated policies, generated requests, hostile ones included."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from generated_policies import PolicyGenerator, RequestGenerator
from pointsman.router.decide import Decision, decide
from pointsman.router.request import Request
from pointsman.router.table import Row
from rig import Rig
from wire import Answer, Client

POLICIES = 20
REQUESTS = 100


def expected_statuses(decision: Decision) -> set[int]:
    """Statuses that agree with the decision; a row may begin with a canned rung."""
    if decision.refusal is not None:
        return {decision.refusal.status}
    if decision.listed_models is not None:
        return {200}
    return {200, 429, 503} if decision.target is None else {200}


def targets(row: Row) -> dict[str, str]:
    """Each possible first target of a row, with the reason that its arm gives."""
    found = {}
    for arm in row.arms:
        if arm.base:
            found[str(arm.ladder.first_target or "canned")] = row.arm_label(arm)
    return found


def disagreement(decision: Decision, answer: Answer) -> str | None:
    """What Envoy did otherwise, or None."""
    if answer.status not in expected_statuses(decision):
        return f"status {answer.status}"
    if decision.refusal is not None:
        return None if answer.headers.get("x-pointsman-reason") == "refused" else "refused without the reason"
    if decision.row is None:
        return None
    seen = answer.headers.get("x-pointsman-target", "-")
    possible = {decision.target or "canned": decision.reason} if decision.arm else targets(decision.row)
    if seen not in possible:
        return f"target {seen}"
    reason = answer.headers.get("x-pointsman-reason")
    return None if reason == possible[seen] else f"reason {reason}, not {possible[seen]}"


def shown(request: Request) -> str:
    return f"{request.method} {request.path} {request.headers} {(request.body or b'')[:120]!r}"


@pytest.mark.envoy
async def test_envoy_chooses_as_decide_does(rig: Rig) -> None:
    seed = int(os.environ.get("DIFFERENTIAL_SEED", "20261130"))
    source = random.Random(seed)
    print(f"DIFFERENTIAL_SEED={seed}")
    wrong: list[str] = []
    outcomes: Counter[str] = Counter()
    client = Client(rig.port)
    for number in range(POLICIES):
        policy = PolicyGenerator(source, rig.ports).policy(rig.settings)
        table = await rig.publish(policy)
        requests = RequestGenerator(source)
        for _ in range(REQUESTS):
            request = requests.request()
            decision = decide(request, table)
            answer = await client.ask(request)
            outcomes[str(decision.refusal.status) if decision.refusal else decision.reason.partition(";")[0]] += 1
            if found := disagreement(decision, answer):
                wrong.append(
                    f"policy {number}: Envoy {found}, decide {decision.target} {decision.reason} "
                    f"{decision.refusal and decision.refusal.status} for {shown(request)}"
                )
    await client.close()
    assert not wrong, f"seed {seed}: {len(wrong)} of {POLICIES * REQUESTS} differ:\n" + "\n".join(wrong[:20])
    assert {"canary", "pinned", "qos", "default", "fallback", "400", "404", "415"} <= set(outcomes), outcomes
