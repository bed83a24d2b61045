"""`pointsman render`: the resources of a policy as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pointsman.sidecar.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "examples"


@pytest.mark.parametrize("name", ["canary.yaml", "multi-model.yaml", "pinned-versions.yaml"])
def test_all_four_groups_are_rendered(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["render", "-c", str(EXAMPLES / name)])
    groups = json.loads(capsys.readouterr().out)
    assert ["clusters", "endpoints", "listeners", "routes"] == list(groups)
    assert [] == [group for group, resources in groups.items() if not resources]


def test_resources_are_those_of_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    main(["render", "--json", "-c", str(EXAMPLES / "canary.yaml")])
    groups = json.loads(capsys.readouterr().out)
    targets = {"support-chat@v2.2", "support-chat@v2.3-beta", "small-chat@v1"}
    assert targets <= {cluster["name"] for cluster in groups["clusters"]}
    assert targets == {assignment["cluster_name"] for assignment in groups["endpoints"]}
    address = next(item for item in groups["listeners"] if item["name"] == "pointsman")["address"]["socket_address"]
    assert ("127.0.0.1", 15001) == (address["address"], address["port_value"])
    assert ["pointsman"] == [routes["name"] for routes in groups["routes"]]


def test_the_same_policy_renders_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["render", "-c", str(EXAMPLES / "multi-model.yaml")])
    first = capsys.readouterr().out
    main(["render", "-c", str(EXAMPLES / "multi-model.yaml")])
    assert first == capsys.readouterr().out


def test_header_mode_has_no_scanner(capsys: pytest.CaptureFixture[str]) -> None:
    main(["render", "-c", str(EXAMPLES / "canary.yaml")])
    assert "pmscan" in capsys.readouterr().out
    main(["render", "--header-mode", "-c", str(EXAMPLES / "canary.yaml")])
    assert "pmscan" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_bad_policy_is_refused_and_nothing_is_rendered(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.yaml").write_text("kind: [")
    assert 2 == main(["render", "-c", str(tmp_path / "policy.yaml"), *words])
    captured = capsys.readouterr()
    assert "" == captured.out
    assert "this is not YAML" in captured.err
