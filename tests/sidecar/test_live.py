"""The policy in force: good changes replace it whole, bad ones leave it as it is and are told once."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from pointsman.otel import names
from pointsman.router.policy import Policy, Settings, Tracing
from pointsman.router.problem import Code, Problem, Severity
from pointsman.sidecar.live import MAX_LOGGED_PROBLEMS, Live
from pointsman.xds.render import Renderer
from pointsman.xds.snapshot import Snapshot, SnapshotRefused
from prometheus_client.parser import text_string_to_metric_families
from sample_policies import EMBED, SUPPORT, SUPPORT_CHAT, SUPPORT_POLICY, with_route

CHANGED = with_route(canary=replace(SUPPORT.canary, weight_parts=2_500))  # type: ignore[type-var]
UNRENDERABLE = replace(SUPPORT_POLICY, models=(*SUPPORT_POLICY.models, SUPPORT_CHAT))
"""Two models of one name: the decoder would not let it pass, the snapshot does not either."""


class Told:
    """A policy in force, what it published, and what it logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.live = Live(SUPPORT_POLICY, Renderer(has_scanner=True))
        self.first = self.live.in_force
        self.published: list[Snapshot] = []
        self._caplog = caplog

    def apply(self, policy: Policy | None, *problems: Problem) -> bool:
        return self.live.apply(policy, problems, self.published.append)

    @property
    def messages(self) -> list[str]:
        return [record.message for record in self._caplog.records]

    def fields(self) -> dict[str, object]:
        """The fields of the last log line."""
        return dict(self._caplog.records[-1].__dict__["fields"])

    def reloads(self) -> tuple[float, float]:
        """How many changes were counted as applied and as refused."""
        page, _ = self.live.metrics.render(None)
        found = {
            sample.labels["result"]: sample.value
            for family in text_string_to_metric_families(page.decode())
            for sample in family.samples
            if sample.name == names.POLICY_RELOADS_TOTAL
        }
        return found["applied"], found["refused"]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.INFO, logger="pointsman")
    return Told(caplog)


def problem(line: int = 7, severity: Severity = Severity.ERROR) -> Problem:
    return Problem(severity, Code.WRONG_VALUE, "policy.yaml", line, "Route support", "spec.canary.weight", "500")


REFUSED = "policy change refused, the last good policy stays in force"


def test_first_policy_is_in_force_without_a_change_being_counted(told: Told) -> None:
    assert SUPPORT_POLICY == told.live.in_force.policy
    assert told.live.in_force.table.node("support-chat") is not None
    assert ((0, 0), [], ()) == (told.reloads(), told.messages, told.live.problems)


def test_first_policy_without_consistent_resources_is_refused() -> None:
    with pytest.raises(SnapshotRefused):
        Live(UNRENDERABLE, Renderer(has_scanner=True))


def test_good_change_is_published_whole_counted_and_told(told: Told) -> None:
    assert told.apply(CHANGED)
    in_force = told.live.in_force
    assert CHANGED == in_force.policy
    assert [in_force.snapshot] == told.published
    assert in_force.snapshot.version != told.first.snapshot.version
    assert 2_500 == next(row for row in in_force.table.rows() if len(row.arms) == 2).arms[0].base
    assert (1, 0) == told.reloads()
    assert ["policy in force"] == told.messages
    rows = sum(1 for _ in in_force.table.rows())
    assert {"version": in_force.snapshot.version, "rows": rows} == told.fields()


def test_metrics_take_the_new_policys_targets(told: Told) -> None:
    told.apply(replace(SUPPORT_POLICY, models=(replace(SUPPORT_CHAT, name="brand-new"), *SUPPORT_POLICY.models)))
    assert b'target="brand-new@v2.2"' in told.live.metrics.render(None)[0]


def test_rows_that_a_change_removed_stay_known(told: Told) -> None:
    told.apply(replace(SUPPORT_POLICY, routes=(EMBED,)))
    assert "support/support-chat/interactive/default" in told.live.in_force.attribution.rows


def test_bad_policy_leaves_the_last_in_force(told: Told) -> None:
    told.apply(CHANGED)
    good = told.live.in_force
    assert not told.apply(None, problem())
    assert good is told.live.in_force
    assert [good.snapshot] == told.published
    assert (problem(),) == told.live.problems
    assert (1, 1) == told.reloads()
    assert {
        "version": good.snapshot.version,
        "problems": ["policy.yaml:7: Route support spec.canary.weight: found 500"],
        "problem_count": 1,
    } == told.fields()


def test_the_same_mistake_is_told_and_counted_once_and_another_again(told: Told) -> None:
    for _ in range(3):
        told.apply(None, problem())
    assert [REFUSED] == told.messages
    told.apply(None, problem(8))
    assert [REFUSED] * 2 == told.messages
    assert (0, 2) == told.reloads()


def test_a_log_line_has_some_problems_and_the_count_of_all(told: Told) -> None:
    told.apply(None, *(problem(line) for line in range(1, 101)))
    assert 100 == told.fields()["problem_count"]
    assert MAX_LOGGED_PROBLEMS == len(told.fields()["problems"])  # type: ignore[arg-type]
    assert 100 == len(told.live.problems)


def test_warnings_are_no_problems_of_a_refused_or_an_accepted_policy(told: Told) -> None:
    warning = problem(3, Severity.WARNING)
    told.apply(None, warning, problem())
    assert (problem(),) == told.live.problems
    assert told.apply(CHANGED, warning)
    assert () == told.live.problems


@pytest.mark.parametrize("policy", [SUPPORT_POLICY, CHANGED], ids=["back to the old", "on to a new"])
def test_a_good_policy_ends_the_problems(told: Told, policy: Policy) -> None:
    told.apply(None, problem())
    told.apply(policy)
    assert () == told.live.problems
    told.apply(None, problem())
    assert 2 == told.messages.count(REFUSED), "the same mistake again is a new one"


def test_equal_policy_publishes_nothing(told: Told) -> None:
    assert not told.apply(with_route())
    assert told.first is told.live.in_force
    assert ([], [], (0, 0)) == (told.published, told.messages, told.reloads())


OTHER_PLACES = Settings(listen="127.0.0.1:1", admin="127.0.0.1:2", state_dir="/elsewhere")
PENDING = "settings that take effect at the next start"


def test_settings_of_the_next_start_are_kept_and_the_rest_comes_into_force(told: Told) -> None:
    running = told.first.policy.settings
    traced = replace(OTHER_PLACES, tracing=Tracing(otlp="127.0.0.1:4317"))
    assert told.apply(replace(CHANGED, settings=traced))
    in_force = told.live.in_force.policy
    assert replace(running, tracing=traced.tracing) == in_force.settings
    assert CHANGED.routes == in_force.routes
    assert ("listen", "admin", "state_dir") == told.live.pending
    assert [PENDING, "policy in force"] == told.messages


def test_a_change_of_such_settings_alone_publishes_nothing_and_is_told_once(told: Told) -> None:
    for _ in range(2):
        assert not told.apply(replace(SUPPORT_POLICY, settings=replace(Settings(), admin="127.0.0.1:2")))
    assert (("admin",), []) == (told.live.pending, told.published)
    assert [PENDING] == told.messages
    assert {"settings": ["admin"]} == told.fields()


def test_settings_that_are_back_are_not_pending(told: Told) -> None:
    told.apply(replace(SUPPORT_POLICY, settings=OTHER_PLACES))
    told.apply(SUPPORT_POLICY)
    assert () == told.live.pending


def test_policy_without_consistent_resources_leaves_the_last_in_force(told: Told) -> None:
    assert not told.apply(UNRENDERABLE)
    assert told.first is told.live.in_force
    assert ([], (0, 1)) == (told.published, told.reloads())
    assert ["policy change refused, the last good policy stays in force"] == told.messages
    assert any("support-chat" in text for text in told.fields()["problems"])  # type: ignore[attr-defined]
    assert told.apply(CHANGED), "and the next change is taken"


def test_policy_without_consistent_resources_is_a_problem_in_the_status(told: Told) -> None:
    told.apply(UNRENDERABLE)
    assert () != told.live.problems


def test_policy_without_consistent_resources_is_told_and_counted_once(told: Told) -> None:
    for _ in range(3):
        told.apply(UNRENDERABLE)
    assert (1, (0, 1)) == (len(told.messages), told.reloads())
