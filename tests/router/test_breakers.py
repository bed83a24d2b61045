"""All breakers together: who is watched, what is counted, what changes."""

from dataclasses import replace

from pointsman.router.admission import admit_table
from pointsman.router.breaker import Phase
from pointsman.router.breakers import Breakers
from pointsman.router.build import build_table
from pointsman.router.policy import Breaker, Pin, PinMode
from pointsman.router.table import Row, Table
from sample_policies import SUPPORT_POLICY, with_route

CANARY = "support-chat@v2.3-beta"
STABLE = "support-chat@v2.2"


def failing(target: str = CANARY) -> Breakers:
    breakers = Breakers()
    breakers.adopt(SUPPORT_POLICY)
    for now in range(0, 1_000, 10):
        breakers.record(target, failed=True, now_ms=now)
        breakers.record(STABLE, failed=False, now_ms=now)
    return breakers


def row(table: Table, name: str) -> Row:
    return next(row for row in table.rows() if row.name == name)


def test_a_failing_target_opens_and_no_other() -> None:
    breakers = failing()
    (change,) = breakers.look(1_000)
    assert (CANARY, None, Phase.OPEN) == (change.target, change.qos, change.after.phase)
    assert {(CANARY, None): 0.0} == breakers.admits()
    assert (CANARY,) == breakers.wanted_probes()


def test_old_evidence_is_forgotten_when_it_opens() -> None:
    breakers = failing()
    breakers.look(1_000)
    breakers.probed(CANARY, answered=True)
    (risen,) = breakers.look(6_000)
    assert risen.after.phase is Phase.RAMPING
    assert () == breakers.look(6_001)


def test_a_policy_change_keeps_what_is_known() -> None:
    breakers = failing()
    breakers.look(1_000)
    breakers.adopt(with_route(fallback=()))
    assert {(CANARY, None): 0.0} == breakers.admits()
    breakers.adopt(with_route(breaker=Breaker(error_ratio=0.5)))
    assert {(CANARY, None): 0.0} == breakers.admits()


def test_a_target_that_is_gone_is_not_watched() -> None:
    breakers = failing()
    breakers.look(1_000)
    breakers.adopt(replace(SUPPORT_POLICY, models=SUPPORT_POLICY.models[1:], routes=()))
    assert {} == breakers.admits()
    breakers.record("nobody@v1", failed=True, now_ms=1)


def test_pinned_tries_count_for_a_fifth_at_most() -> None:
    breakers = Breakers()
    breakers.adopt(SUPPORT_POLICY)
    for now in range(0, 1_000, 10):
        breakers.record(CANARY, failed=False, now_ms=now)
        breakers.record(CANARY, failed=True, now_ms=now, pinned=True)
    counts = next(found for target, _, _, found in breakers.states(1_000) if target == CANARY)[5_000]
    assert counts.failures <= 0.2 * counts.total + 1


def test_lateness_takes_from_its_class_only() -> None:
    breakers = Breakers()
    breakers.adopt(SUPPORT_POLICY)
    for now in range(0, 1_000, 10):
        breakers.record_latency(STABLE, "interactive", late=True, now_ms=now)
    breakers.look(1_000)
    table = admit_table(build_table(SUPPORT_POLICY), breakers.admits())
    late = row(table, "support/support-chat/interactive/default").arms[1]
    calm = row(table, "support/support-chat/batch/named").arms[1]
    assert (0.75, 1.0) == (late.admit, calm.admit)


def test_an_open_target_gets_nothing_and_its_bypass_all() -> None:
    table = admit_table(build_table(SUPPORT_POLICY), {(CANARY, None): 0.0})
    canary, stable = row(table, "support/support-chat/batch/named").arms
    assert ((0, 500), (9_500, 0)) == (canary.weights, stable.weights)


def test_a_bypass_in_use_leaves_one_retry_less() -> None:
    whole = row(build_table(SUPPORT_POLICY), "support/support-chat/batch/named")
    shed = row(admit_table(build_table(SUPPORT_POLICY), {(STABLE, None): 0.5}), "support/support-chat/batch/named")
    assert (2, 1) == (whole.retries, shed.retries)


def test_a_strict_pin_to_an_open_target_is_answered_by_the_sidecar() -> None:
    table = admit_table(build_table(with_route(pin=Pin(PinMode.STRICT))), {(CANARY, None): 0.0})
    arm = row(table, "support/support-chat/-/pin=v2.3-beta").arms[0]
    assert ((0, 10_000), "pin>canned:503:2") == (arm.weights, arm.ladder.bypass.name)


def test_nothing_tripped_changes_nothing() -> None:
    table = build_table(SUPPORT_POLICY)
    assert admit_table(table, {}) is table
