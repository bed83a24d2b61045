"""Rendered resources as JSON that a person can read and Envoy's own tools too."""

from __future__ import annotations

import json

from golden import as_json
from pointsman.router.build import build_table
from pointsman.xds.as_json import resources_json
from pointsman.xds.render import Rendered, Renderer
from sample_policies import SUPPORT_POLICY

RENDERED = Renderer(has_scanner=True).render(build_table(SUPPORT_POLICY), SUPPORT_POLICY.settings)


def test_resources_stand_under_their_type_in_rendering_order() -> None:
    expected = {
        "clusters": RENDERED.clusters,
        "endpoints": RENDERED.assignments,
        "listeners": RENDERED.listeners,
        "routes": RENDERED.routes,
    }
    found = json.loads(resources_json(RENDERED))
    assert list(expected) == list(found)
    assert {name: [as_json(message) for message in messages] for name, messages in expected.items()} == found


def test_names_are_those_of_envoys_own_configuration() -> None:
    text = resources_json(RENDERED)
    assert '"cluster_name"' in text
    assert '"clusterName"' not in text


def test_packed_messages_are_opened_to_the_last() -> None:
    (listener, *_) = json.loads(resources_json(RENDERED))["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["@type"].endswith(".HttpConnectionManager")
    router = manager["http_filters"][-1]["typed_config"]
    assert router["@type"].endswith(".Router")
    log = manager["access_log"][0]["typed_config"]
    assert "pointsman_log" == log["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]


def test_nothing_rendered_is_four_empty_groups() -> None:
    groups = json.loads(resources_json(Rendered((), (), (), ())))
    assert {"clusters": [], "endpoints": [], "listeners": [], "routes": []} == groups
