"""The demo's checks against a sidecar that is none: the table's own walk answers, right or with one fault."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pointsman.router.build import build_table
from pointsman.router.decide import decide, split
from pointsman.router.request import Request
from pointsman.router.table import Table
from pointsman.router.xxhash64 import xxh64
from pointsman.sidecar.demo_checks import CANARY, STABLE, Answer, Check, Demo, run_checks
from pointsman.sidecar.policy_file import load

EVENTS = b'data: {"choices": []}\n\n' * 3 + b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The table of the demo's policy."""
    text = resources.files("pointsman.sidecar").joinpath("demo_policy.yaml").read_text()
    ports = {"STABLE": 9001, "CANARY": 9002, "SMALL": 9003, "LISTEN": 9004, "ADMIN": 9005, "OTLP": 9006}
    folder: Path = tmp_path_factory.mktemp("demo")
    for name, value in {**ports, "STATE": folder / "state"}.items():
        text = text.replace(f"@{name}@", str(value))
    (folder / "policy.yaml").write_text(text)
    policy = load(folder / "policy.yaml").policy
    assert policy is not None
    return build_table(policy)


class Sidecar:
    """Answers as the table decides; a fault changes the request before, or the answer after."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.asked: list[Request] = []
        self.before: Callable[[Request], Request] = lambda request: request
        self.after: Callable[[Answer], Answer] = lambda answer: answer

    async def answer(self, request: web.Request) -> web.Response:
        headers = tuple((name.lower(), value) for name, value in request.headers.items())
        asked = Request(request.method, request.path_qs, headers, await request.read())
        self.asked.append(asked)
        answer = self.after(self._decided(self.before(asked)))
        return web.Response(
            status=answer.status,
            body=answer.body,
            headers={"x-served-by": answer.target, "x-pointsman-reason": answer.reason},
        )

    def _decided(self, asked: Request) -> Answer:
        decision = decide(asked, self.table)
        if decision.refusal is not None:
            body = json.dumps({"error": {"message": decision.refusal.message}}).encode()
            return Answer(decision.refusal.status, "-", "refused", body)
        arm = decision.arm
        assert decision.row is not None
        if arm is None:  # by chance: any key does
            arm, _, _ = split(decision.row, xxh64(str(len(self.asked)).encode()))
        streams = asked.body is not None and json.loads(asked.body).get("stream")
        body = EVENTS if streams else b"{}"
        return Answer(200, str(arm.ladder.first_target), decision.row.arm_label(arm), body)


@pytest.fixture
def sidecar(table: Table) -> Sidecar:
    return Sidecar(table)


@asynccontextmanager
async def asking(sidecar: Sidecar) -> AsyncIterator[Demo]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", sidecar.answer)
    async with TestServer(app, host="127.0.0.1") as server:
        async with aiohttp.ClientSession(base_url=server.make_url("/")) as session:
            yield Demo(session)


async def failed(sidecar: Sidecar) -> list[str]:
    """What the checks say about the sidecar."""
    async with asking(sidecar) as demo:
        checks, _ = await run_checks(demo)
    return [check.what for check in checks if not check.is_ok]


async def test_all_is_well_when_the_table_is_followed(sidecar: Sidecar) -> None:
    async with asking(sidecar) as demo:
        checks, trace_id = await run_checks(demo)
    assert [] == [check for check in checks if not check.is_ok]
    assert 12 == len(checks)
    traced = dict(sidecar.asked[-1].headers)
    assert traced["traceparent"].startswith(f"00-{trace_id}-")
    assert traced["traceparent"].endswith("-01"), "the trace to look at is sampled"


def without(*names: str) -> Callable[[Request], Request]:
    """A fault: these headers are not seen."""

    def change(request: Request) -> Request:
        headers = tuple((name, value) for name, value in request.headers if name not in names)
        return Request(request.method, request.path, headers, request.body)

    return change


async def test_pins_that_are_not_followed_are_seen(sidecar: Sidecar) -> None:
    sidecar.before = without("model-version", "model_version")
    found = await failed(sidecar)
    assert {"model-version: v9", "two different pins"} <= set(found)
    assert {"model-version: v2.3-beta", "model-version: v2.2"} & set(found)


async def test_keys_that_do_not_stick_are_seen(sidecar: Sidecar) -> None:
    sidecar.before = without("x-context-id")
    assert "200 of them again" in await failed(sidecar)


async def test_a_canary_that_gets_nothing_is_seen(sidecar: Sidecar) -> None:
    sidecar.after = lambda answer: Answer(answer.status, STABLE, answer.reason, answer.body)
    assert "600 contexts, weight 5" in await failed(sidecar)


async def test_a_canary_that_gets_all_is_seen(sidecar: Sidecar) -> None:
    sidecar.after = lambda answer: Answer(answer.status, CANARY, answer.reason, answer.body)
    assert {"600 contexts, weight 5", "model-version: v2.2", "x-qos-class: batch"} <= set(await failed(sidecar))


async def test_an_answer_from_elsewhere_is_no_split(sidecar: Sidecar) -> None:
    def change(answer: Answer) -> Answer:
        lost = answer.reason == "default" and len(sidecar.asked) % 100 == 0
        return Answer(answer.status, "small-chat@v1", "fallback", answer.body) if lost else answer

    sidecar.after = change
    assert "600 contexts, weight 5" in await failed(sidecar)


async def test_a_wrong_reason_is_seen(sidecar: Sidecar) -> None:
    sidecar.after = lambda answer: Answer(answer.status, answer.target, "default", answer.body)
    assert ["model-version: v2.3-beta", "model-version: v2.2", "x-qos-class: batch"] == await failed(sidecar)


REFUSALS = ["model-version: v9", "two different pins", "unknown model", "broken JSON", "text/plain"]


async def test_a_refusal_without_the_apis_error_object_is_seen(sidecar: Sidecar) -> None:
    def change(answer: Answer) -> Answer:
        return answer if answer.status == 200 else Answer(answer.status, "-", "refused", b"no such model")

    sidecar.after = change
    assert REFUSALS == await failed(sidecar)


async def test_a_refusal_with_another_status_is_seen(sidecar: Sidecar) -> None:
    sidecar.after = lambda answer: Answer(max(answer.status, 200) + 1, answer.target, answer.reason, answer.body)
    assert set(REFUSALS) <= set(await failed(sidecar))


@pytest.mark.parametrize(
    "body", [b"{}", EVENTS.replace(b"data: [DONE]\n\n", b""), b"data: [DONE]\n\n"], ids=["no stream", "cut", "empty"]
)
async def test_a_stream_that_is_none_or_is_cut_is_seen(sidecar: Sidecar, body: bytes) -> None:
    def change(answer: Answer) -> Answer:
        return Answer(answer.status, answer.target, answer.reason, body) if answer.body == EVENTS else answer

    sidecar.after = change
    assert ["stream: true"] == await failed(sidecar)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"error": {"message": "m"}}', "m"),
        (b'{"error": "m"}', ""),
        (b"[]", ""),
        (b"{}", ""),
        (b"\xff", ""),
        (b"", ""),
    ],
)
def test_error_is_the_message_in_the_apis_shape_or_nothing(body: bytes, error: str) -> None:
    assert error == Answer(400, "-", "-", body).error


def test_cells_are_the_three_texts() -> None:
    assert ("what", "expected", "seen") == Check("what", "expected", "seen", is_ok=True).cells
