"""The account cannot be talked into anything: what no rule covers is unaccounted for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ask import Ask, Draw, Kind
from client import Outcome
from ledger import Class, executed_twice, judge
from pointsman.router.table import Table
from server import ModelServer
from timeline import Rule, Timeline
from variant import Variant, table_of

JSON = (("content-type", "application/json"),)
ASK = Ask("1", Kind.JSON, headers=JSON, opening=b'{"model":"support-chat"', ending=b"}")
STABLE, CANARY = "support-chat@v2.2", "support-chat@v2.3-beta"
GOOD = Outcome(ASK, 10.0, 10.1, 200, {"x-pointsman-target": STABLE}, served_by=STABLE, is_whole=True)
BROKEN = Outcome(ASK, 10.0, 10.1, error="ConnectionResetError: reset")
SERVERS = ("STABLE", "CANARY", "THIRD_PORT", "SMALL", "BUSY", "DEAD", "STORE", "OTLP")
PLACES = {**dict.fromkeys(SERVERS, 1), "LISTEN": 2, "ADMIN": 3}


def table(folder: Path, variant: Variant) -> Table:
    file = folder / "policy.yaml"
    file.write_text(variant.text({**PLACES, "STATE": folder}))
    return table_of(file)


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    """All to the stable version until 20 s, all to the canary from then on."""
    timeline = Timeline()
    timeline.policy_written(table(tmp_path, Variant(weight=0)), "stable", 0.0)
    timeline.policy_settled("stable", 0.0)
    timeline.policy_written(table(tmp_path, Variant(weight=100)), "canary", 20.0)
    timeline.policy_settled("canary", 21.0)
    return timeline


def from_canary(outcome: Outcome) -> Outcome:
    return replace(outcome, served_by=CANARY, headers={"x-pointsman-target": CANARY})


def test_the_right_answer_is_a_success(timeline: Timeline) -> None:
    assert judge(GOOD, timeline).kind is Class.SUCCESS


@pytest.mark.parametrize(
    "outcome",
    [
        from_canary(GOOD),
        replace(GOOD, headers={"x-pointsman-target": CANARY}),
        replace(GOOD, headers={}),
        replace(GOOD, wrong="an answer to another request"),
        replace(GOOD, is_whole=False),
        replace(GOOD, served_by=None, headers={}, status=503, is_refusal_shaped=True),
        replace(GOOD, served_by=None, headers={"x-pointsman-target": "canned", "retry-after": "7"}, status=503),
        BROKEN,
        replace(GOOD, started_s=30.0, ended_s=30.1),
    ],
)
def test_what_nothing_covers_is_unaccounted_for(timeline: Timeline, outcome: Outcome) -> None:
    assert judge(outcome, timeline).kind is Class.UNACCOUNTED


def test_both_policies_are_right_while_one_replaces_the_other(timeline: Timeline) -> None:
    during = replace(GOOD, started_s=20.5, ended_s=20.6)
    assert judge(during, timeline).kind is Class.SUCCESS
    assert judge(from_canary(during), timeline).kind is Class.SUCCESS
    after = replace(GOOD, started_s=22.5, ended_s=22.6)
    assert judge(after, timeline).kind is Class.UNACCOUNTED


def test_a_refusal_is_right_only_where_the_table_refuses(timeline: Timeline) -> None:
    unknown = replace(ASK, opening=b'{"model":"nobody"')
    refused = Outcome(unknown, 10.0, 10.1, 404, is_whole=True, is_refusal_shaped=True)
    assert judge(refused, timeline).kind is Class.REFUSED
    assert judge(replace(refused, is_refusal_shaped=False), timeline).kind is Class.UNACCOUNTED
    assert judge(replace(refused, status=400), timeline).kind is Class.UNACCOUNTED
    assert judge(replace(refused, ask=ASK), timeline).kind is Class.UNACCOUNTED


def test_a_fault_covers_its_own_time_only(timeline: Timeline) -> None:
    timeline.fault_began(Rule.ENVOY_DIED, 11.0)
    timeline.faults_ended(12.0)
    assert judge(BROKEN, timeline).kind is Class.UNACCOUNTED
    assert judge(replace(BROKEN, ended_s=11.5), timeline).kind is Class.BY_RULE
    assert judge(replace(BROKEN, started_s=12.5, ended_s=13.0), timeline).kind is Class.UNACCOUNTED


def test_no_fault_covers_a_wrong_answer_or_a_request_without_an_end(timeline: Timeline) -> None:
    timeline.fault_began(Rule.ENVOY_DIED, 9.0)
    assert judge(from_canary(GOOD), timeline).kind is Class.UNACCOUNTED
    assert judge(replace(GOOD, wrong="other bytes"), timeline).kind is Class.UNACCOUNTED
    assert judge(replace(BROKEN, error="no end within 60 s"), timeline).kind is Class.UNACCOUNTED


def test_a_stop_covers_only_who_came_after_it_and_got_no_answer(timeline: Timeline) -> None:
    timeline.fault_began(Rule.STOPPED, 9.5)
    assert judge(BROKEN, timeline).kind is Class.BY_RULE
    assert judge(replace(BROKEN, started_s=9.4), timeline).kind is Class.UNACCOUNTED
    assert judge(replace(BROKEN, status=200), timeline).kind is Class.UNACCOUNTED


def test_a_request_that_two_servers_executed_is_found() -> None:
    servers = [ModelServer("a"), ModelServer("b"), ModelServer("busy", status=503)]
    for server in servers:
        server.executed["1"] += 1
    servers[0].executed["2"] += 1
    servers[0].executed[""] += 2
    servers[2].executed["2"] += 1
    assert executed_twice(servers) == {"1": 2}


def test_a_seed_draws_the_same_requests() -> None:
    one, other, third = Draw(1), Draw(1), Draw(2)
    drawn = [one.next() for _ in range(200)]
    assert drawn == [other.next() for _ in range(200)]
    assert drawn != [third.next() for _ in range(200)]
    assert {ask.kind for ask in drawn} == set(Kind) - {Kind.PROBE}
