"""`pointsman explain`: where a request would go, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pointsman.sidecar.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "examples"
POLICY = str(EXAMPLES / "canary.yaml")


class Explain:
    """Asks, and returns what was printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def lines(self, *words: str, policy: str = POLICY) -> list[str]:
        assert 0 == main(["explain", "-c", policy, *words])
        captured = self._capsys.readouterr()
        assert "" == captured.err
        return captured.out.splitlines()

    def json(self, *words: str, policy: str = POLICY) -> dict[str, object]:
        return dict(json.loads("\n".join(self.lines(*words, "--json", policy=policy))))

    def refused(self, *words: str, policy: str = POLICY) -> str:
        assert 2 == main(["explain", "-c", policy, *words])
        captured = self._capsys.readouterr()
        assert "" == captured.out
        return captured.err


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Explain:
    return Explain(capsys)


def test_pinned_request_goes_to_its_version(explain: Explain) -> None:
    lines = explain.lines("--model", "support-chat", "-H", "Model-Version: v2.3-beta")
    assert "pin      version known" in lines
    assert "goes to  support-chat@v2.3-beta (pinned)" == lines[-1]


def test_request_without_a_key_has_the_shares_of_the_split(explain: Explain) -> None:
    lines = explain.lines("--model", "support-chat")
    assert "split    random: support-chat@v2.3-beta 5 %, support-chat@v2.2 95 %" in lines
    assert "         + support-chat@v2.3-beta: canary: 5 % of keys" in lines
    assert "goes to  by chance, see the arms (default)" == lines[-1]


def test_request_with_a_key_has_one_target(explain: Explain) -> None:
    sides = {explain.lines("--model", "support-chat", "-H", f"x-context-id: {key}")[-1] for key in range(200)}
    assert {
        "goes to  support-chat@v2.2 (default)",
        "goes to  support-chat@v2.3-beta (canary)",
    } == sides


def test_refused_request_has_its_answer(explain: Explain) -> None:
    lines = explain.lines("--model", "support-chat", "-H", "model-version: v9")
    assert lines[-1].startswith("answer   404 model-version names a version that does not exist here; known versions:")


def test_json_has_the_whole_decision(explain: Explain) -> None:
    found = explain.json("--model", "support-chat", "-H", "model-version:v2.2", "-H", "x-qos-class:batch")
    assert ("support-chat@v2.2", "pinned") == (found["target"], found["reason"])
    assert "support/support-chat/-/pin=v2.2" == found["row"]["name"]  # type: ignore[index]
    assert 404 == explain.json("--model", "nobody")["refusal"]["status"]  # type: ignore[index]


def test_header_mode_does_not_look_at_the_body(explain: Explain) -> None:
    assert "answer   400" == explain.lines("-d", '{"model": ')[-1][:12]
    lines = explain.lines("-d", '{"model": ', "--header-mode")
    assert not any(line.startswith("body") for line in lines)
    assert "goes to  by chance, see the arms (default)" == lines[-1]


def test_method_and_path_are_the_requests(explain: Explain) -> None:
    assert "answer   200 support-chat" == explain.lines("-X", "get", "--path", "/v1/models")[-1]
    embedding = explain.lines(
        "--path", "/v1/embeddings", "--model", "embedder", policy=str(EXAMPLES / "multi-model.yaml")
    )
    assert "goes to  embedder@v1 (default)" == embedding[-1]


def test_body_is_an_argument_or_a_file(explain: Explain, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b'{"model": "nobody"}')
    answers = [explain.lines("-d", body)[-1] for body in ('{"model": "nobody"}', f"@{tmp_path / 'body'}")]
    assert answers[0].startswith("answer   404 the model does not exist here")
    assert answers[0] == answers[1]


def test_content_type_of_a_header_is_kept(explain: Explain) -> None:
    assert explain.lines("-d", "{}", "-H", "Content-Type: text/plain")[-1].startswith("answer   415")


def test_request_without_a_body_is_none_and_not_a_broken_one(explain: Explain) -> None:
    assert explain.lines("-X", "GET")[0].startswith("body     not read")


@pytest.mark.parametrize("header", ["model-version", ":v1", " :v1", ""])
def test_header_without_a_name_or_colon_is_refused(explain: Explain, header: str) -> None:
    assert f"pointsman explain: header: found {header!r}, expected NAME:VALUE\n" == explain.refused("-H", header)


def test_body_file_that_cannot_be_read_is_refused(explain: Explain, tmp_path: Path) -> None:
    told = explain.refused("-d", f"@{tmp_path / 'none'}")
    assert told.startswith("pointsman explain: ")
    assert str(tmp_path / "none") in told


def test_bad_policy_is_refused_with_its_problems(explain: Explain, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("a: b: c\n")
    bad = str(tmp_path / "policy.yaml")
    assert explain.refused(policy=bad).startswith(f"{bad}:1: this is not YAML")
    assert not json.loads(explain.refused("--json", policy=bad))["accepted"]
