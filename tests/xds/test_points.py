"""The 44 points of docs/xds.md against the tests: each has tests that exist, or stands in the page with its reason."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "xds.md"

POINTS: dict[int, tuple[str, ...]] = {
    1: (
        "test_ads_bad_input.py::test_point_1_first_request_without_a_node_is_refused",
        "test_ads_bad_input.py::test_point_1_later_requests_need_no_node",
    ),
    2: (
        "test_subscription.py::test_point_2_request_without_a_type_is_refused_and_of_an_unknown_type_is_none",
        "test_ads_bad_input.py::test_point_2_missing_type_is_refused",
        "test_ads_bad_input.py::test_point_2_unknown_type_is_ignored_and_counted",
        "test_sotw.py::test_point_2_unknown_type_is_no_request",
    ),
    3: (
        "test_ads_status.py::test_point_3_late_end_of_an_old_stream_takes_nothing_away",
        "test_ads_bad_input.py::test_two_streams_of_one_node_in_different_variants_are_both_served",
    ),
    4: (
        "test_subscription.py::test_point_4_nonces_are_never_used_twice_in_a_stream",
        "test_subscription.py::test_point_4_nonce_of_an_earlier_stream_is_an_ordinary_first_request",
        "test_subscription.py::test_point_4_nack_of_an_earlier_stream_refuses_nothing",
        "test_sotw.py::test_point_4_nonce_of_an_earlier_stream_is_an_ordinary_first_request",
    ),
    5: (
        "test_snapshot.py::test_point_5_versions_depend_on_content_alone",
        "test_snapshot.py::test_point_5_order_of_arrival_is_no_content",
        "test_snapshot.py::test_point_5_version_is_the_known_hash_of_the_bytes",
        "test_sotw.py::test_point_5_version_is_that_of_the_whole_that_is_stated",
    ),
    6: (
        "test_sotw.py::test_point_6_first_request_is_answered_though_it_states_the_version",
        "test_ads.py::test_point_6_state_of_the_world_client_is_sent_all_again_after_a_restart",
    ),
    7: (
        "test_subscription.py::test_point_7_acknowledgement_gets_no_response",
        "test_sotw.py::test_point_7_acknowledgement_gets_no_response",
    ),
    8: (
        "test_stream_refusals.py::test_point_8_refusal_is_told_by_error_detail_alone",
        "test_stream_refusals.py::test_point_8_refused_content_is_not_sent_again_to_the_node_after_a_reconnect",
        "test_sotw.py::test_point_8_refusal_is_told_by_error_detail_and_not_by_the_version",
        "test_sotw.py::test_point_8_refused_content_is_told_once_more_to_a_reconnected_client_so_that_it_keeps_the_older_one",
    ),
    9: ("test_subscription.py::test_point_9_newer_content_after_a_refusal_is_sent_and_accepted",),
    10: (
        "test_sotw.py::test_point_10_answer_with_an_old_nonce_gets_no_response_and_is_counted",
        "test_sotw.py::test_trap_20_repeated_request_never_makes_a_response",
        "test_ads_bad_input.py::test_point_10_foreign_nonces_are_counted_and_change_nothing",
    ),
    11: (
        "test_sotw.py::test_point_11_names_in_a_request_with_an_old_nonce_are_served_after_the_newer_response_is_acknowledged",
    ),
    12: (
        "test_sotw.py::test_point_12_same_nonce_with_a_new_name_is_answered_with_the_new_name",
        "test_sotw.py::test_point_12_new_listener_name_is_answered_with_the_whole",
    ),
    13: ("test_sotw.py::test_point_13_fewer_names_need_no_response",),
    14: (
        "test_subscription.py::test_point_14_unsubscribed_and_subscribed_again_is_sent_again",
        "test_sotw.py::test_point_14_given_up_and_asked_for_again_is_sent_again",
    ),
    15: (
        "test_sotw.py::test_point_15_clusters_and_listeners_are_stated_whole",
        "test_sotw.py::test_point_15_empty_response_removes_all_clusters",
        "test_sotw.py::test_point_15_nothing_to_say_about_endpoints_or_routes_is_not_said",
        "test_sotw.py::test_point_15_changed_endpoints_go_without_the_others",
    ),
    16: (
        "test_subscription.py::test_point_16_first_request_without_names_means_all_for_cds_and_lds_only",
        "test_sotw.py::test_point_16_no_names_mean_all_while_none_was_ever_stated",
        "test_sotw.py::test_point_16_no_names_after_a_name_mean_none",
        "test_sotw.py::test_point_16_no_names_on_a_first_request_for_endpoints_mean_none",
        "test_sotw.py::test_point_16_name_after_no_names_is_that_name_alone",
    ),
    17: (
        "test_subscription.py::test_point_17_wildcard_given_up_keeps_the_explicit_name",
        "test_sotw.py::test_point_17_wildcard_beside_a_name_and_then_the_name_alone",
    ),
    18: ("test_sotw.py::test_point_18_no_name_is_twice_in_a_response",),
    19: (
        "test_subscription.py::test_point_19_name_that_appears_later_is_sent_then",
        "test_sotw.py::test_point_19_name_that_appears_later_is_sent_then",
        "test_sotw.py::test_point_19_missing_cluster_is_told_by_leaving_it_out_and_sent_when_it_appears",
    ),
    20: ("test_sotw.py::test_point_20_one_response_of_a_type_is_outstanding_and_the_next_has_the_newest",),
    21: (
        "test_stream_order.py::test_point_21_endpoints_follow_a_changed_cluster_though_unchanged",
        "test_stream_order.py::test_point_21_routes_follow_a_changed_listener_though_unchanged",
        "test_ads_envoy.py::test_changed_cluster_is_warmed_again_with_its_endpoints",
    ),
    22: (
        "test_snapshot.py::test_point_22_cluster_without_assignment_is_refused",
        "test_snapshot.py::test_point_22_empty_assignment_is_enough",
    ),
    23: (
        "test_stream_order.py::test_point_23_renamed_routes_go_after_the_listener_left_them",
        "test_stream_order.py::test_point_23_removed_listener_leaves_with_the_changes",
        "test_stream_order.py::test_point_23_cluster_goes_after_the_routes_that_left_it_were_acknowledged",
        "test_stream_order.py::test_point_23_replaced_cluster_is_made_before_the_old_one_breaks",
        "test_stream_order.py::test_point_23_cluster_of_refused_routes_stays",
        "test_sotw.py::test_point_23_whole_response_keeps_the_old_cluster_until_the_routes_have_left_it",
        "test_ads_envoy.py::test_point_23_dropped_cluster_leaves_after_the_routes",
        "test_ads_envoy.py::test_known_bug_44_tables_change_under_load_and_no_request_fails",
    ),
    24: (
        "test_stream_order.py::test_point_24_listener_with_inline_routes_waits_for_its_cluster",
        "test_stream_order.py::test_point_24_client_that_asks_for_clusters_after_routes_is_not_held",
        "test_stream_order.py::test_known_bug_44_route_waits_for_its_new_cluster_and_its_endpoints",
        "test_stream_order.py::test_point_24_route_to_a_new_ladder_waits_for_its_rungs",
        "test_stream_order.py::test_point_24_hold_ends_after_its_limit",
        "test_sotw.py::test_point_24_listener_that_waits_is_repeated_in_its_older_content",
        "test_sotw.py::test_point_24_reconnected_client_is_told_no_listeners_while_one_of_them_waits",
    ),
    25: ("test_stream_order.py::test_point_25_superseded_content_is_never_sent",),
    26: (
        "test_snapshot.py::test_all_problems_are_reported_at_once",
        "test_snapshot.py::test_point_26_assignment_without_cluster_is_refused",
        "test_snapshot.py::test_point_26_route_to_unknown_cluster_is_refused",
        "test_snapshot.py::test_point_26_leaf_to_unknown_cluster_is_refused",
        "test_snapshot.py::test_point_26_ladder_with_unknown_child_is_refused",
        "test_snapshot.py::test_point_26_listener_with_unknown_routes_is_refused",
    ),
    27: (
        "test_subscription.py::test_nothing_is_sent_before_a_snapshot_is_offered",
        "test_sotw.py::test_point_27_request_that_cannot_be_answered_yet_is_kept",
    ),
    28: (
        "test_subscription.py::test_point_28_names_count_though_the_nonce_is_stale",
        "test_subscription.py::test_point_28_names_count_on_an_acknowledgement",
    ),
    29: (
        "test_sotw_ttl.py::test_point_29_lifetime_of_what_a_reconnecting_client_holds_begins_anew_at_once",
        "test_subscription.py::test_point_29_unchanged_content_is_not_sent_after_a_reconnect",
        "test_subscription.py::test_point_29_only_what_changed_while_away_is_sent",
        "test_subscription.py::test_point_29_what_is_gone_is_removed_after_the_routes_were_replaced",
        "test_subscription.py::test_point_29_names_that_are_not_subscribed_are_removed",
        "test_ads.py::test_point_29_restart_with_the_same_content_sends_nothing_again",
    ),
    30: (
        "test_subscription.py::test_point_30_subscribed_again_is_sent_again",
        "test_subscription.py::test_point_30_wildcard_again_sends_all_again",
    ),
    31: (
        "test_subscription.py::test_point_31_superfluous_unsubscribe_is_ignored",
        "test_subscription.py::test_point_31_unsubscribe_gets_no_response_and_no_further_content",
        "test_subscription.py::test_point_31_name_given_up_under_a_wildcard_is_answered",
    ),
    32: ("test_subscription.py::test_point_32_missing_name_is_answered_at_once_and_once",),
    33: (
        "test_subscription.py::test_point_17_wildcard_given_up_keeps_the_explicit_name",
        "test_subscription.py::test_point_33_later_request_without_names_changes_nothing",
    ),
    34: ("test_subscription.py::test_point_34_only_what_changed_is_sent",),
    35: (
        "test_stream_refusals.py::test_point_35_one_bad_resource_of_many_is_found_and_the_others_are_taken",
        "test_stream_refusals.py::test_point_35_refused_response_counts_as_not_applied",
        "test_sotw.py::test_point_35_good_older_content_is_repeated_in_place_of_what_was_refused",
        "test_ads_envoy.py::test_one_bad_cluster_of_many_is_found_and_the_others_are_taken",
    ),
    36: (
        "test_snapshot.py::test_point_36_lifetime_is_content_and_is_kept_when_resources_are_reused",
        "test_sotw_ttl.py::test_point_36_lifetime_is_stated_and_confirmed_without_content",
        "test_sotw_ttl.py::test_point_36_client_that_announces_too_little_gets_no_lifetime",
        "test_ads_envoy.py::test_point_36_listener_with_a_lifetime_stays_while_it_is_confirmed_and_ends_with_its_server",
    ),
    37: ("test_subscription.py::test_point_37_name_asked_for_is_answered_alone_though_others_are_unanswered",),
    38: (
        "test_stream_order.py::test_point_38_client_that_does_not_answer_has_one_response_a_name",
        "test_ads_bad_input.py::test_point_38_client_that_does_not_read_is_cut_off",
        "test_ads_bad_input.py::test_client_that_never_acknowledges_is_cut_off",
    ),
    39: ("test_ads_bad_input.py::test_flood_ends_the_stream_with_resource_exhausted",),
    40: (
        "test_ads_status.py::test_point_40_nothing_stays_of_streams_that_ended",
        "test_ads_status.py::test_point_40_nodes_that_left_are_remembered_up_to_a_bound",
        "test_refusals.py::test_point_40_memory_is_bounded_and_the_oldest_gives_way",
    ),
    41: (
        "test_ads_status.py::test_point_41_push_over_the_limit_comes_in_parts",
        "test_stream_refusals.py::test_point_41_big_push_is_split_and_one_bigger_resource_goes_alone",
        "test_sotw.py::test_point_41_endpoints_over_the_limit_come_in_parts_and_clusters_whole",
        "test_ads_bad_input.py::test_request_of_ten_megabytes_is_taken_and_one_over_the_bound_ends_its_stream",
    ),
    42: ("test_ads_bad_input.py::test_point_42_other_methods_are_unimplemented",),
    43: (
        "test_stream_refusals.py::test_acknowledgement_is_an_event_with_its_round_trip",
        "test_ads.py::test_envoy_is_served_and_its_events_are_told",
    ),
    44: (
        "test_ads_status.py::test_status_tells_versions_and_counts",
        "test_ads_status.py::test_refusal_is_shown_counted_and_not_repeated_after_a_reconnect",
        "../sidecar/test_xds_command.py::test_status_tells_versions_counts_refusals_and_the_last_error",
    ),
}
"""The tests of each point; what of a point does not apply is said in the page."""


@lru_cache
def names_in(name: str) -> frozenset[str]:
    tree = ast.parse((HERE / name).read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions)


@pytest.mark.parametrize("point", POINTS)
def test_tests_of_the_point_exist(point: int) -> None:
    found = [name.partition("::") for name in POINTS[point]]
    assert [] == [test for path, _, test in found if test not in names_in(path)]


def test_page_has_every_point_once_and_in_order() -> None:
    rows = re.findall(r"^\| (\d+) \| ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [str(number) for number in range(1, 45)] == rows
    assert list(range(1, 45)) == list(POINTS)


def test_every_test_named_after_a_point_is_among_its_tests() -> None:
    named = {
        (int(number), f"{path.name}::{test}")
        for path in HERE.glob("test_*.py")
        for test in names_in(path.name)
        for number in re.findall(r"^test_point_(\d+)_", test)
    }
    listed = {(point, test) for point, tests in POINTS.items() for test in tests}
    assert [] == sorted(f"{number}: {test}" for number, test in named - listed)


def test_point_that_is_not_fully_met_says_so() -> None:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert 44 == len(rows)
    assert [] == [number for number, state in rows if not state.startswith(("tested", "does not apply: ", "in part: "))]
