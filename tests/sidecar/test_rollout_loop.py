"""The loop in virtual time: entries in, shares and a view out, across restarts and modes."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from pointsman.router.build import build_table
from pointsman.router.entry import LogGap, RequestEntry, TryEntry
from pointsman.router.policy import Analysis, Canary, LoopMode, Modes, Policy, Settings, Step
from pointsman.router.rollout import RolloutRefused, Verb
from pointsman.router.table import Row
from pointsman.sidecar.rollout_loop import RolloutLoop
from pointsman.sidecar.rollout_store import HISTORY, RolloutStore
from sample_policies import with_route

POLICY = with_route(
    canary=Canary(
        "support-chat",
        "v2.3-beta",
        steps=(Step(500, 10_000), Step(10_000, 10_000)),
        analysis=Analysis(window_ms=5_000, min_requests=100, max_error_ratio=0.02),
    )
)
ROWS: dict[str, Row] = {row.name: row for row in build_table(POLICY).rows()}
SPLIT = "support/support-chat/interactive/named"
CANARY, STABLE = "support-chat@v2.3-beta", "support-chat@v2.2"
GOOD = RequestEntry(0, 80.0, SPLIT, "l", CANARY, None, 200, (), "via_upstream", 1, "POST", "/v1/chat/completions", "id",
                    first_chunk_ms=30.0, output_tokens=10)  # fmt: skip
BAD = TryEntry(0, 5.0, SPLIT, CANARY, None, 503, (), 1, "id")


class Scene:
    """A loop whose time stands still until a test moves it."""

    def __init__(self, folder: Path, policy: Policy = POLICY) -> None:
        self.path = folder / "rollouts.json"
        self.now_s = 100.0
        self.changes = 0
        self.withheld: Collection[str] = ()
        self.start(policy)

    def start(self, policy: Policy = POLICY) -> None:
        self.loop = RolloutLoop(
            policy,
            RolloutStore(self.path),
            self.changed,
            withheld=lambda: self.withheld,
            clock_ns=lambda: int(self.now_s * 1e9),
        )
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """As the agent does: the shares are known before the policy is adopted, and do not change by it."""
        self.policy = policy
        before = self.shares()
        self.loop.adopt(policy, ROWS)
        assert before == self.shares()

    def shares(self) -> dict[str, int]:
        return self.loop.shares(self.policy)

    def changed(self) -> None:
        self.changes += 1

    def look_after(self, seconds: float) -> None:
        self.now_s += seconds
        self.loop.look()

    def fail(self) -> None:
        self.loop.observe([BAD] * 50 + [replace(GOOD, target=STABLE)] * 500)
        self.look_after(1)
        self.look_after(1)

    def go_on(self) -> None:
        self.loop.observe([GOOD] * 1_000 + [replace(GOOD, target=STABLE)] * 5_000)
        self.look_after(0)
        self.look_after(10)

    def rollout(self) -> dict[str, object]:
        (found,) = self.loop.view()["rollouts"]  # type: ignore[misc]
        assert isinstance(found, dict)
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def observing() -> Policy:
    return replace(POLICY, settings=Settings(mode=Modes(rollout=LoopMode.OBSERVE)))


def test_a_failing_canary_is_aborted_told_and_taken_out(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pointsman"):
        scene.fail()
    assert ({"support": 0}, "aborted", "errors") == (
        scene.shares(), scene.rollout()["phase"], scene.rollout()["reason"])  # fmt: skip
    assert ("rollout moved", logging.WARNING) == (caplog.records[-1].message, caplog.records[-1].levelno)
    assert 2 == scene.changes, "the first request, the abort"


def test_a_good_canary_goes_on(scene: Scene) -> None:
    scene.go_on()
    assert ({"support": 10_000}, "under_limit") == (scene.shares(), scene.rollout()["reason"])


def test_both_versions_stand_side_by_side(scene: Scene) -> None:
    scene.loop.observe([GOOD] * 90 + [BAD] * 10 + [replace(GOOD, target=STABLE, duration_ms=40.0)] * 50)
    canary, stable = scene.rollout()["canary"], scene.rollout()["stable"]
    assert isinstance(canary, dict)
    assert isinstance(stable, dict)
    assert (CANARY, 100, 10, 0.1) == tuple(canary[key] for key in ("target", "requests", "failures", "errorRatio"))
    assert canary["errorRatioBounds"][0] < 0.1 < canary["errorRatioBounds"][1]
    assert (STABLE, 50, 200.0) == (stable["target"], stable["requests"], canary["tokensPerSecond"])
    assert canary["durationMs"]["p50"] == pytest.approx(80, rel=0.035)
    assert stable["durationMs"]["p90"] == pytest.approx(40, rel=0.035)
    assert canary["firstTokenMs"]["p50"] == pytest.approx(30, rel=0.035)


def test_an_abort_survives_a_restart(scene: Scene) -> None:
    scene.fail()
    since = scene.rollout()["since"]
    scene.start()
    assert ({"support": 0}, "errors", since) == (
        scene.shares(), scene.rollout()["reason"], scene.rollout()["since"])  # fmt: skip


def test_a_step_survives_a_restart(scene: Scene) -> None:
    scene.go_on()
    scene.start()
    assert ({"support": 10_000}, "restarted", 2) == (
        scene.shares(), scene.rollout()["reason"], scene.rollout()["step"])  # fmt: skip


def test_a_promotion_survives_a_restart_and_names_stable(scene: Scene) -> None:
    scene.loop.command("support", Verb.PROMOTE)
    scene.start()
    assert ({"support": 10_000}, {"support": CANARY}) == (scene.shares(), scene.loop.promoted(POLICY))


def test_a_gap_in_the_log_promotes_nothing(scene: Scene) -> None:
    scene.loop.observe([GOOD] * 1_000 + [replace(GOOD, target=STABLE)] * 5_000)
    scene.look_after(0)
    scene.now_s += 9
    scene.loop.observe([LogGap("node", "stream broke")])
    scene.look_after(1)
    assert 1 == scene.rollout()["step"]
    scene.look_after(5)
    assert 2 == scene.rollout()["step"]


def test_a_target_that_a_breaker_holds_back_is_not_promoted_by_its_silence(scene: Scene) -> None:
    scene.withheld = {CANARY}
    scene.loop.observe([GOOD])
    for _ in range(6):
        scene.look_after(10)
    assert 1 == scene.rollout()["step"]


def test_observe_mode_tells_and_shares_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, observing())
    scene.fail()
    assert ({}, "aborted", "observe", 0) == (
        scene.shares(), scene.rollout()["phase"], scene.loop.view()["mode"], scene.changes)  # fmt: skip


def test_what_was_only_computed_is_not_acted_on_later(tmp_path: Path) -> None:
    scene = Scene(tmp_path, observing())
    scene.fail()
    scene.start(observing())
    scene.adopt(POLICY)
    assert ({"support": 500}, "started") == (scene.shares(), scene.rollout()["reason"])


def test_what_was_acted_on_comes_back_after_observing(scene: Scene) -> None:
    scene.fail()
    scene.adopt(observing())
    assert {} == scene.shares()
    scene.adopt(POLICY)
    assert {"support": 0} == scene.shares()


def test_commands_are_stored_and_told(scene: Scene) -> None:
    scene.loop.command("support", Verb.PAUSE)
    scene.start()
    assert ("paused", "operator") == (scene.rollout()["phase"], scene.rollout()["reason"])
    with pytest.raises(RolloutRefused):
        scene.loop.command("support", Verb.RETRY)
    with pytest.raises(KeyError):
        scene.loop.command("other", Verb.PAUSE)


def test_a_new_canary_never_has_the_share_of_the_one_before(scene: Scene) -> None:
    scene.loop.command("support", Verb.PROMOTE)
    assert POLICY.routes[0].canary is not None
    back = with_route(canary=replace(POLICY.routes[0].canary, version="v2.2"))
    assert {"support": 500} == scene.loop.shares(back)
    assert {"support": 10_000} == scene.loop.shares(POLICY)


def test_history_is_bounded(scene: Scene) -> None:
    for _ in range(HISTORY):
        scene.loop.command("support", Verb.ABORT)
        scene.loop.command("support", Verb.RETRY)
    history = scene.rollout()["history"]
    assert isinstance(history, list)
    assert HISTORY == len(history)
    assert ("waiting", "retried") == (history[-1]["after"], history[-1]["reason"])


def test_a_route_without_a_canary_any_more_is_gone(scene: Scene) -> None:
    scene.adopt(with_route(canary=None))
    assert ({}, ()) == (scene.shares(), scene.loop.routes())
