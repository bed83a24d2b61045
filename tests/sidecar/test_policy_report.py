"""`pointsman check`: every problem with its place, and the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pointsman.sidecar.cli import main
from pointsman.sidecar.policy_report import load_or_report

EXAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "examples"

TEN_MISTAKES = """apiVersion: pointsman.dev/v1alpha1
kind: Model
metadata: {name: support-chat}
spec:
  provder: vllm
  intents: [chat, sing]
  versions:
    - {name: v2.2, quality: 86, endpoints: [{address: "127.0.0.1"}]}
    - {name: v2.2, endpoints: [{address: "127.0.0.1:9002"}]}
---
apiVersion: pointsman.dev/v1alpha1
kind: Route
metadata: {name: support}
spec:
  targets: [support-chat, suport-chat]
  defaultQos: fast
  canary: {model: support-chat, version: v9, weight: 5}
  fallback: [{canned: {status: 200}}]
---
apiVersion: pointsman.dev/v1alpha1
kind: Settings
metadata: {name: default}
spec: {listen: 15001}
"""
PLACES = [
    (5, "Model support-chat", "spec.provder"),
    (6, "Model support-chat", "spec.intents[1]"),
    (8, "Model support-chat", "spec.versions[0].quality"),
    (8, "Model support-chat", "spec.versions[0].endpoints[0].address"),
    (9, "Model support-chat", "spec.versions[1].name"),
    (15, "Route support", "spec.targets[1]"),
    (16, "Route support", "spec.defaultQos"),
    (17, "Route support", "spec.canary.version"),
    (18, "Route support", "spec.fallback[0].canned.status"),
    (23, "Settings default", "spec.listen"),
]
ONE_MODEL = """apiVersion: pointsman.dev/v1alpha1
kind: Model
metadata: {name: m}
spec:
  versions:
    - {name: v1, endpoints: [{address: "127.0.0.1:9001"}]}
---
apiVersion: pointsman.dev/v1alpha1
kind: Route
metadata: {name: r}
spec: {targets: [m]}
"""


@pytest.fixture
def mistaken(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(TEN_MISTAKES)
    return file


@pytest.fixture
def warned(tmp_path: Path) -> Path:
    """A directory whose second file is empty: a warning, no error."""
    (tmp_path / "a.yaml").write_text(ONE_MODEL)
    (tmp_path / "b.yaml").write_text("")
    return tmp_path


@pytest.mark.parametrize("name", ["canary.yaml", "multi-model.yaml", "pinned-versions.yaml"])
def test_examples_are_accepted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["check", "-c", str(EXAMPLES / name)])
    assert (f"{EXAMPLES / name}: accepted, 0 errors, 0 warnings\n", "") == capsys.readouterr()


def test_ten_mistakes_are_all_told_with_their_places_in_order(
    mistaken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["check", "-c", str(mistaken)])
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert f"{mistaken}: refused, 10 errors, 0 warnings" == verdict
    expected = [f"{mistaken}:{line}: {document} {path}: " for line, document, path in PLACES]
    assert expected == [told[: len(place)] for told, place in zip(lines, expected, strict=True)]


def test_ten_mistakes_as_json(mistaken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["check", "--json", "-c", str(mistaken)])
    report = json.loads(capsys.readouterr().out)
    assert not report["accepted"]
    assert PLACES == [(problem["line"], problem["document"], problem["path"]) for problem in report["problems"]]
    assert {"error"} == {problem["severity"] for problem in report["problems"]}


def test_a_warning_is_told_and_refuses_nothing(warned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["check", "-c", str(warned)])
    told = capsys.readouterr().out.splitlines()
    assert [
        f"{warned / 'b.yaml'}: warning: the file holds no document",
        f"{warned}: accepted, 0 errors, 1 warning",
    ] == told


def test_a_warning_as_json(warned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["check", "--json", "-c", str(warned)])
    report = json.loads(capsys.readouterr().out)
    assert (True, ["warning"]) == (report["accepted"], [problem["severity"] for problem in report["problems"]])


def test_one_mistake_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["check", "-c", str(tmp_path / "none.yaml")])
    assert f"{tmp_path / 'none.yaml'}: refused, 1 error, 0 warnings" == capsys.readouterr().out.splitlines()[-1]


def test_other_commands_get_the_policy_and_say_nothing(warned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = load_or_report(warned)
    assert policy is not None
    assert ["m"] == [model.name for model in policy.models]
    assert ("", "") == capsys.readouterr()


def test_other_commands_get_no_policy_and_its_errors_are_told(
    mistaken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_or_report(mistaken) is None
    captured = capsys.readouterr()
    assert ("", 10) == (captured.out, len(captured.err.splitlines()))
    assert load_or_report(mistaken, as_json=True) is None
    captured = capsys.readouterr()
    assert ("", 10) == (captured.out, len(json.loads(captured.err)["problems"]))
