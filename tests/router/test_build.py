"""Which targets a row's arms and rungs are, and why."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pointsman.router.build import build_table, stable_version
from pointsman.router.policy import (
    FULL_SHARE,
    Canary,
    CannedFallback,
    Intent,
    Match,
    ModelFallback,
    Policy,
    Profile,
    QosClass,
    Retries,
    Route,
    VersionFallback,
)
from pointsman.router.table import ClassChoice, Reason, Refusal, Row, Table
from sample_policies import EMBEDDER, SMALL_CHAT, SUPPORT, SUPPORT_CHAT, SUPPORT_POLICY, version, with_route


def row_of(table: Table, name: str) -> Row:
    return next(row for row in table.rows() if row.name == name)


def ladders(row: Row) -> list[str]:
    return [arm.ladder.name for arm in row.arms]


def test_the_canary_is_the_first_arm_and_falls_back_to_stable() -> None:
    row = row_of(build_table(SUPPORT_POLICY), "support/support-chat/interactive/default")
    assert ladders(row) == [
        "ladder>support-chat@v2.3-beta>support-chat@v2.2>small-chat@v1>canned:503:2",
        "ladder>support-chat@v2.2>small-chat@v1>canned:503:2",
    ]
    assert [arm.base for arm in row.arms] == [500, 9500]
    assert [row.arm_label(arm) for arm in row.arms] == ["canary", "default"]


def test_known_bug_28_the_remainder_goes_to_the_version_that_is_not_the_canary() -> None:
    reversed_versions = replace(SUPPORT_CHAT, versions=SUPPORT_CHAT.versions[::-1])
    assert stable_version(reversed_versions, SUPPORT).name == "v2.2"


def test_known_bug_29_a_weight_change_leaves_pins_alone() -> None:
    def pins(parts: int) -> list[Row]:
        canary = replace(SUPPORT.canary, weight_parts=parts)  # type: ignore[type-var]
        return [row for row in build_table(with_route(canary=canary)).rows() if row.reason is Reason.PINNED]

    assert pins(0) == pins(5000) == pins(10_000)


def test_known_bug_30_every_row_s_weights_sum_to_the_whole() -> None:
    for parts in (0, 1, 9999, 10_000):
        canary = replace(SUPPORT.canary, weight_parts=parts)  # type: ignore[type-var]
        for row in build_table(with_route(canary=canary)).rows():
            assert sum(sum(arm.weights) for arm in row.arms) == FULL_SHARE


def test_the_class_chooses_the_first_listed_target_that_meets_it() -> None:
    policy = with_route(targets=("small-chat", "support-chat"), canary=None, fallback=())
    table = build_table(policy)
    assert ladders(row_of(table, "support/auto/interactive/named")) == ["ladder>support-chat@v2.2"]
    assert ladders(row_of(table, "support/auto/batch/named")) == ["ladder>small-chat@v1>support-chat@v2.2"]


def test_a_filtered_target_is_kept_with_its_reason() -> None:
    policy = with_route(targets=("small-chat", "support-chat"), canary=None)
    row = row_of(build_table(policy), "support/auto/interactive/named")
    assert ("small-chat@v1", False, "quality 0.6 is under the class's 0.8") in [
        (str(candidate.target), candidate.is_taken, candidate.why) for candidate in row.candidates
    ]


def test_cost_filters_a_class() -> None:
    cheap = QosClass("cheap", 9000, max_cost_per_million=0.5)
    policy = with_route(targets=("support-chat", "small-chat"), qos=(cheap,), canary=None, fallback=())
    assert ladders(row_of(build_table(policy), "support/auto/cheap/named")) == ["ladder>small-chat@v1"]


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        (Profile("support-chat", precision_tolerance=0.003), "precision loss 0.01 is over the profile's 0.003"),
        (Profile("support-chat", min_throughput_qps=45), "sustainable rate 40/s is under the profile's 45/s"),
    ],
)
def test_a_profile_filters_with_its_reason(profile: Profile, why: str) -> None:
    stable = replace(SUPPORT_CHAT.versions[0], precision_loss=0.01, throughput_qps=40)
    model = replace(SUPPORT_CHAT, versions=(stable, SUPPORT_CHAT.versions[1]))
    route = replace(SUPPORT, canary=None, fallback=())
    table = build_table(Policy(models=(model,), routes=(route,), profiles=(profile,)))
    refusal = next(
        leaf
        for leaf in table.leaves()
        if isinstance(leaf, Refusal) and leaf.name.startswith("support/auto/interactive")
    )
    assert (503, 2) == (refusal.status, refusal.retry_after_s)
    assert why in refusal.message


def test_what_is_not_stated_filters_nothing() -> None:
    unknown = replace(SUPPORT_CHAT, versions=(version("v1", 9001, "support-chat"),))
    table = build_table(Policy(models=(unknown,), routes=(replace(SUPPORT, canary=None, fallback=()),)))
    assert ladders(row_of(table, "support/auto/interactive/named")) == ["ladder>support-chat@v1"]


def test_a_named_model_goes_to_its_own_targets_only() -> None:
    policy = with_route(targets=("support-chat", "small-chat"), canary=None, fallback=())
    table = build_table(policy)
    assert ladders(row_of(table, "support/small-chat/batch/named")) == ["ladder>small-chat@v1"]
    assert ladders(row_of(table, "support/support-chat/batch/named")) == ["ladder>support-chat@v2.2"]


def test_a_rung_that_does_not_accept_the_sent_name_is_left_out() -> None:
    deaf = replace(SMALL_CHAT, versions=(version("v1", 9003, "small-chat", quality=0.6),))
    table = build_table(Policy(models=(SUPPORT_CHAT, deaf, EMBEDDER), routes=(SUPPORT,)))
    assert ladders(row_of(table, "support/support-chat/batch/named"))[1] == "ladder>support-chat@v2.2>canned:503:2"
    assert (
        ladders(row_of(table, "support/auto/batch/named"))[1] == "ladder>support-chat@v2.2>small-chat@v1>canned:503:2"
    )


def test_with_rewriting_it_is_a_rung_under_its_own_name() -> None:
    deaf = replace(SMALL_CHAT, versions=(version("v1", 9003, "small-chat", quality=0.6),))
    route = replace(SUPPORT, rewrite_model=True, canary=None)
    table = build_table(Policy(models=(SUPPORT_CHAT, deaf), routes=(route,)))
    expected = "ladder>support-chat@v2.2>small-chat@v1=small-chat>canned:503:2"
    assert ladders(row_of(table, "support/support-chat/batch/named")) == [expected]


def test_an_alias_that_a_route_matches_is_a_known_name() -> None:
    stable = version("v1", 9001, "support-chat", "gpt-4o")
    route = Route(name="alias", targets=("support-chat",), match=Match(models=("gpt-4o",)))
    table = build_table(Policy(models=(replace(SUPPORT_CHAT, versions=(stable,)),), routes=(route,)))
    assert ladders(row_of(table, "alias/gpt-4o/-/default")) == ["ladder>support-chat@v1"]


def test_known_bug_18_a_model_that_answers_another_name_is_chosen_only_where_it_accepts_it() -> None:
    route = Route(name="alias", targets=("support-chat",), match=Match(models=("gpt-4o",)))
    table = build_table(Policy(models=(SUPPORT_CHAT,), routes=(route,)))
    leaf = next(leaf for leaf in table.leaves() if leaf.name == "alias/gpt-4o/-/default")
    assert isinstance(leaf, Refusal)
    assert "does not accept the name gpt-4o" in leaf.message


@pytest.mark.parametrize(
    ("fallback", "maximum", "retries", "retry_on"),
    [
        ((), 3, 1, ("connect-failure", "reset-before-request")),
        ((), 0, 0, ()),
        ((ModelFallback("small-chat"),), 3, 1, Retries().retry_on),
        ((ModelFallback("small-chat"), CannedFallback()), 3, 2, Retries().retry_on),
        ((ModelFallback("small-chat"), CannedFallback()), 1, 1, Retries().retry_on),
        ((VersionFallback("v2.3-beta"), ModelFallback("small-chat"), CannedFallback()), 2, 2, Retries().retry_on),
    ],
)
def test_never_more_tries_than_rungs(
    fallback: tuple[object, ...], maximum: int, retries: int, retry_on: tuple[str, ...]
) -> None:
    policy = with_route(fallback=fallback, canary=None, retries=Retries(max_count=maximum))
    row = row_of(build_table(policy), "support/support-chat/batch/named")
    assert (retries, retry_on) == (row.retries, row.retry_on)


def test_nothing_comes_after_a_canned_rung() -> None:
    policy = with_route(fallback=(CannedFallback(), ModelFallback("small-chat")), canary=None)
    row = row_of(build_table(policy), "support/support-chat/batch/named")
    assert ladders(row) == ["ladder>support-chat@v2.2>canned:503:2"]


def test_a_target_that_nobody_meets_leaves_the_fallback() -> None:
    demanding = QosClass("gold", 100, min_quality=0.99)
    row = row_of(build_table(with_route(qos=(demanding,), default_qos="gold")), "support/support-chat/gold/default")
    assert (Reason.FALLBACK, ["ladder>small-chat@v1>canned:503:2"]) == (row.reason, ladders(row))


def test_the_bypass_is_the_ladder_without_its_first_rung() -> None:
    arm = row_of(build_table(SUPPORT_POLICY), "support/support-chat/batch/named").arms[1]
    assert arm.ladder.bypass.name == "ladder>small-chat@v1>canned:503:2"
    assert arm.ladder.bypass.bypass.bypass.name == "ladder>canned:503:2"


def test_numeric_classes_are_tried_from_the_least_demanding() -> None:
    node = build_table(SUPPORT_POLICY).node("support-chat")
    assert node is not None
    outcome = node.unpinned.branches[0].outcome
    assert isinstance(outcome, ClassChoice)
    assert [qos.name for qos, _ in outcome.numeric] == ["batch", "interactive"]


@given(st.sets(st.sampled_from(list(Intent)), min_size=1), st.integers(0, FULL_SHARE))
def test_the_same_policy_gives_the_same_table(intents: set[Intent], parts: int) -> None:
    canary = replace(SUPPORT.canary, weight_parts=parts)  # type: ignore[type-var]
    policy = with_route(match=Match(intents=tuple(intents)), canary=canary)
    assert build_table(policy) == build_table(policy)
    names = [row.name for row in build_table(policy).rows()]
    assert len(names) == len(set(names))


def test_the_target_promoted_last_is_stable_for_the_next_canary() -> None:
    versions = (*SUPPORT_CHAT.versions, version("v2.4", 9_009, "support-chat", quality=0.9, cost=1.0))
    policy = with_route(canary=Canary("support-chat", "v2.4", weight_parts=500))
    policy = replace(policy, models=(replace(SUPPORT_CHAT, versions=versions), *policy.models[1:]))
    for promoted, stable in (({}, "v2.2"), ({"support": "support-chat@v2.3-beta"}, "v2.3-beta")):
        row = next(row for row in build_table(policy, promoted).rows() if row.reason is Reason.QOS)
        assert ["v2.4", stable] == [arm.ladder.first_target.version for arm in row.arms if arm.ladder.first_target]
