"""Tables, decisions and xDS states as JSON and as lines."""

from __future__ import annotations

import json
from dataclasses import replace

from pointsman.router.build import build_table
from pointsman.router.decide import Decision, decide
from pointsman.router.policy import Canary, CannedFallback, QosClass
from pointsman.router.request import Request
from pointsman.router.table import Row
from pointsman.sidecar.views import decision_lines, decision_view, ladder_text, row_view, table_view, xds_view
from pointsman.xds.snapshot import ResourceType
from pointsman.xds.status import NodeIdentity, NodeStatus, Outcome, Refusal, TypeStatus
from sample_policies import SMALL_CHAT, SUPPORT_POLICY, version, with_route

TABLE = build_table(SUPPORT_POLICY)
RUNGS = ["support-chat@v2.2", "small-chat@v1", "canned 503, Retry-After 2"]


def row_of(name: str, **changes: object) -> Row:
    return next(row for row in build_table(with_route(**changes)).rows() if row.name == name)


def decided(*headers: tuple[str, str], model: str = "support-chat", **changes: object) -> Decision:
    body = json.dumps({"model": model}).encode()
    return decide(Request(headers=headers, body=body), build_table(with_route(**changes)))


def test_row_has_its_arms_with_shares_reasons_and_rungs() -> None:
    row = row_of("support/support-chat/interactive/unknown")
    assert {
        "name": "support/support-chat/interactive/unknown",
        "route": "support",
        "reason": "default;class=unknown",
        "qosClass": "interactive",
        "arms": [
            {
                "target": "support-chat@v2.3-beta",
                "base": 500,
                "admit": 1.0,
                "reason": "canary",
                "rungs": ["support-chat@v2.3-beta", *RUNGS],
            },
            {
                "target": "support-chat@v2.2",
                "base": 9_500,
                "admit": 1.0,
                "reason": "default;class=unknown",
                "rungs": RUNGS,
            },
        ],
        "stickBy": ["x-context-id", "x-session-id"],
        "retries": 2,
        "retryOn": ["connect-failure", "refused-stream", "reset-before-request", "503"],
    } == row_view(row)


def test_row_without_classes_canary_or_servers() -> None:
    pinned = row_view(row_of("support/support-chat/-/pin=v2.2"))
    assert (None, []) == (pinned["qosClass"], pinned["stickBy"])
    best = (QosClass("best", 100, min_quality=0.99),)
    nobody = row_of(
        "support/support-chat/best/default", qos=best, default_qos="best", fallback=(CannedFallback(429, 7),)
    )
    (arm,) = row_view(nobody)["arms"]  # type: ignore[misc]
    assert ("canned", ["canned 429, Retry-After 7"]) == (arm["target"], arm["rungs"])


def test_rung_whose_server_wants_another_name_says_so() -> None:
    renamed = replace(SMALL_CHAT, versions=(version("v1", 9003, "small-chat", quality=0.6),))
    policy = with_route(rewrite_model=True)
    policy = replace(policy, models=(policy.models[0], renamed, policy.models[2]))
    row = next(row for row in build_table(policy).rows() if row.name == "support/support-chat/batch/named")
    assert "small-chat@v1 as small-chat" in row_view(row)["arms"][1]["rungs"]  # type: ignore[index]


def test_table_has_models_rows_and_endpoints() -> None:
    view = table_view(TABLE, "v7")
    assert ("v7", ["embedder", "support-chat"]) == (view["version"], view["models"])
    assert [row_view(row) for row in TABLE.rows()] == view["rows"]
    assert {"target": "small-chat@v1", "address": "127.0.0.1:9003", "weight": 1} in view["endpoints"]  # type: ignore[operator]
    assert 4 == len(view["endpoints"])  # type: ignore[arg-type]
    assert view == json.loads(json.dumps(view))


def test_decision_has_target_reason_steps_row_and_candidates() -> None:
    view = decision_view(decided(("x-qos-class", "batch"), ("model-version", "v2.2")))
    assert ("support-chat@v2.2", "pinned") == (view["target"], view["reason"])
    assert {"stage": "pin", "finding": "version known"} in view["steps"]  # type: ignore[operator]
    assert row_view(row_of("support/support-chat/-/pin=v2.2")) == view["row"]
    assert [{"target": "support-chat@v2.2", "taken": True, "why": "pinned"}] == view["candidates"]
    assert not {"refusal", "models"} & set(view)


def test_candidates_that_were_left_out_say_why() -> None:
    decision = decided(targets=("small-chat", "support-chat"), model="auto")
    left_out = [row for row in decision_view(decision)["candidates"] if not row["taken"]]  # type: ignore[union-attr,index,attr-defined]
    assert [{"target": "small-chat@v1", "taken": False, "why": "quality 0.6 is under the class's 0.8"}] == left_out
    assert "         - small-chat@v1: quality 0.6 is under the class's 0.8" in decision_lines(decision)


def test_refusal_has_status_and_message() -> None:
    decision = decided(model="nobody")
    view = decision_view(decision)
    assert (None, "refused") == (view["target"], view["reason"])
    message = "the model does not exist here; known models: embedder, support-chat"
    assert {"status": 404, "message": message} == view["refusal"]
    assert ["body     model nobody", "model    not in the policy", f"answer   404 {message}"] == decision_lines(
        decision
    )


def test_list_of_models_is_an_answer() -> None:
    decision = decide(Request("GET", "/v1/models"), TABLE)
    assert ["embedder", "support-chat"] == decision_view(decision)["models"]
    assert "answer   200 embedder, support-chat" == decision_lines(decision)[-1]


def test_lines_of_a_split_have_every_arm_with_its_share_and_retries() -> None:
    lines = decision_lines(decided(canary=Canary("support-chat", "v2.3-beta", weight_parts=1)))
    arms = [line for line in lines if line.startswith("arm")]
    retries = "   (2 retries on connect-failure, refused-stream, reset-before-request, 503)"
    assert [
        f"arm      0.01 % {' > '.join(['support-chat@v2.3-beta', *RUNGS])}{retries}",
        f"arm      99.99 % {' > '.join(RUNGS)}{retries}",
    ] == arms
    assert "row      support/support-chat/interactive/default (default)" in lines
    assert "goes to  by chance, see the arms (default)" == lines[-1]


def test_arm_without_retries_has_its_rungs_only() -> None:
    row = replace(row_of("embed/embedder/-/default"), retries=0)
    assert "embedder@v1" == ladder_text(row, "embedder@v1")


def test_xds_nodes_have_what_was_sent_acknowledged_and_refused() -> None:
    refusal = Refusal(ResourceType.LISTENER, "pointsman", "l2", "port in use")
    kind = TypeStatus(
        ResourceType.LISTENER,
        is_subscribed=True,
        sent_version="l2",
        acknowledged_version="l1",
        resources_held=3,
        responses_sent=5,
        acknowledgements=4,
        nacks=1,
        refused=(refusal,),
    )
    node = NodeStatus(
        NodeIdentity("node-1"),
        group="all",
        is_connected=True,
        open_streams=1,
        snapshot_version="s2",
        acknowledged_snapshot="s1",
        outcome=Outcome.REFUSED,
        types=(kind,),
        last_refusal="port in use",
        ignored_requests=6,
        stale_requests=7,
    )
    assert {
        "nodes": [
            {
                "id": "node-1",
                "connected": True,
                "variant": None,
                "group": "all",
                "agent": "",
                "outcome": "refused",
                "snapshot": "s2",
                "acknowledgedSnapshot": "s1",
                "lastRefusal": "port in use",
                "ignoredRequests": 6,
                "staleRequests": 7,
                "types": [
                    {
                        "type": "LDS",
                        "subscribed": True,
                        "sent": "l2",
                        "acknowledged": "l1",
                        "resources": 3,
                        "responses": 5,
                        "acks": 4,
                        "nacks": 1,
                        "refused": [{"name": "pointsman", "version": "l2", "text": "port in use"}],
                    }
                ],
            }
        ]
    } == xds_view([node])
    assert {"nodes": []} == xds_view([])
