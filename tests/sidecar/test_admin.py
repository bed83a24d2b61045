"""The admin pages: what each answers, and how a bad question is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from pointsman.router.breakers import Breakers
from pointsman.router.build import build_table
from pointsman.router.rollout import Verb
from pointsman.router.table import Table
from pointsman.sidecar.admin import MAX_ASK_BYTES, PAGES, make_app
from pointsman.sidecar.views import Json, breakers_view, table_view
from pointsman.xds.status import NodeIdentity, NodeStatus, Outcome
from sample_policies import SUPPORT_POLICY

NODE = NodeStatus(NodeIdentity("node-1"), "all", True, 1, "v7", "v7", Outcome.ACKNOWLEDGED, (), None, 0, 0)  # noqa: FBT003
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Source:
    """What the admin server asks of an agent; each test sets what it is about."""

    def __init__(self) -> None:
        self.status = "ready"
        self.reads_body = True
        self.accepts: list[str | None] = []

    def health(self) -> Json:
        return {"status": self.status, "version": "v7"}

    def metrics(self, accept: str | None) -> tuple[bytes, str]:
        self.accepts.append(accept)
        return b"# metrics\n", METRICS_TYPE

    def table(self) -> tuple[Table, str, bool]:
        return build_table(SUPPORT_POLICY), "v7", self.reads_body

    def breakers(self) -> Json:
        return breakers_view(Breakers(), 0, acts=True)

    def rollouts(self) -> Json:
        return {"mode": "act", "rollouts": []}

    def rollout_command(self, route: str, verb: Verb) -> Json:
        raise KeyError(route, verb)

    def nodes(self) -> tuple[NodeStatus, ...]:
        return (NODE,)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest_asyncio.fixture
async def admin(source: Source) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(make_app(source), host="127.0.0.1")) as client:
        yield client


async def explained(admin: TestClient, query: str, status: int = 200) -> dict[str, object]:
    answer = await admin.get(f"/explain?{query}")
    assert status == answer.status, await answer.text()
    return dict(await answer.json())


def kind(answer: ClientResponse) -> str:
    return answer.headers["content-type"]


async def test_index_lists_the_pages(admin: TestClient) -> None:
    assert {"pages": PAGES} == await (await admin.get("/")).json()


async def test_every_listed_page_answers(admin: TestClient) -> None:
    for path in PAGES:
        answer = await admin.get(path)
        assert 200 == answer.status, path
        assert kind(answer).startswith("text/plain" if path == "/metrics" else "application/json"), path


async def test_head_is_answered_without_a_body(admin: TestClient) -> None:
    for path in ("/", *PAGES):
        answer = await admin.head(path)
        assert (200, b"") == (answer.status, await answer.read()), path


async def test_process_is_well_whatever_envoy_says(admin: TestClient, source: Source) -> None:
    source.status = "starting"
    answer = await admin.get("/healthz")
    assert (200, {"status": "ok"}) == (answer.status, await answer.json())


@pytest.mark.parametrize(("status", "code"), [("starting", 503), ("ready", 200), ("degraded", 200)])
async def test_readiness_by_status(admin: TestClient, source: Source, status: str, code: int) -> None:
    source.status = status
    answer = await admin.get("/readyz")
    assert (code, {"status": status, "version": "v7"}) == (answer.status, await answer.json())


async def test_metrics_page_is_passed_on_with_its_type_and_what_the_scraper_accepts(
    admin: TestClient, source: Source
) -> None:
    answer = await admin.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert (b"# metrics\n", METRICS_TYPE) == (await answer.read(), kind(answer))
    assert ["application/openmetrics-text"] == source.accepts


async def test_table_page_is_the_table_in_force(admin: TestClient) -> None:
    assert table_view(build_table(SUPPORT_POLICY), "v7") == await (await admin.get("/table")).json()


async def test_xds_page_lists_the_nodes(admin: TestClient) -> None:
    (node,) = (await (await admin.get("/xds")).json())["nodes"]
    assert ("node-1", True, "acknowledged") == (node["id"], node["connected"], node["outcome"])


async def test_question_is_explained_with_headers_and_model(admin: TestClient) -> None:
    found = await explained(admin, "header=Model-Version:%20v2.3-beta&header=x-a:b&model=support-chat")
    assert ("v7", True, "support-chat@v2.3-beta", "pinned") == (
        found["version"],
        found["readsBody"],
        found["target"],
        found["reason"],
    )


async def test_header_value_may_hold_colons(admin: TestClient) -> None:
    found = await explained(admin, "model=support-chat&header=x-context-id:a:b")
    other = await explained(admin, "model=support-chat&header=x-context-id:a")
    assert found["steps"] != other["steps"], "the whole value is the key"


async def test_question_without_parameters_is_a_chat_request_without_a_model(admin: TestClient) -> None:
    found = await explained(admin, "")
    assert {"stage": "body", "finding": "model auto"} in found["steps"]  # type: ignore[operator]
    assert {"stage": "route", "finding": "support"} in found["steps"]  # type: ignore[operator]


async def test_default_method_and_path_said_aloud_change_nothing(admin: TestClient) -> None:
    for query in ("path=/v1/chat/completions", "method=POST"):
        assert await explained(admin, "") == await explained(admin, query), query


async def test_path_and_method_are_the_questions(admin: TestClient) -> None:
    listed = await explained(admin, "method=get&path=/v1/models")
    assert ["embedder", "support-chat"] == listed["models"]
    assert "embedder@v1" == (await explained(admin, "path=/v1/embeddings&model=embedder"))["target"]


async def test_refusal_is_an_answer(admin: TestClient) -> None:
    found = await explained(admin, "model=nobody")
    assert 404 == found["refusal"]["status"]  # type: ignore[index]


async def test_posted_body_is_the_questions_body(admin: TestClient) -> None:
    answer = await admin.post("/explain?header=model-version:v1", data=b'{"model": "embedder"}')
    assert "no route takes model embedder" in (await answer.json())["refusal"]["message"]
    answer = await admin.post("/explain", data=b'{"model": ')
    assert 400 == (await answer.json())["refusal"]["status"]


async def test_content_type_of_the_question_is_its_header_parameter(admin: TestClient) -> None:
    answer = await admin.post("/explain?header=content-type:text/plain", data=b"{}")
    assert 415 == (await answer.json())["refusal"]["status"]


async def test_without_the_scanner_bodies_are_not_looked_at(admin: TestClient, source: Source) -> None:
    source.reads_body = False
    found = await explained(admin, "model=nobody")
    assert (False, "default") == (found["readsBody"], found["reason"])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("modle=x", ["modle", "method, path, header (NAME:VALUE), model"]),
        ("model=support-chat&b=1&a=1", ["unknown parameter 'a'"]),
        ("header=model-version", ["header", "NAME:VALUE", "'model-version'"]),
        ("header=:v1", ["header", "NAME:VALUE"]),
        ("header=%20:v1", ["header", "NAME:VALUE"]),
        ("header=", ["header", "NAME:VALUE"]),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_bad_question_is_400_with_the_parameters_name(
    admin: TestClient, method: str, query: str, words: list[str]
) -> None:
    answer = await admin.request(method, f"/explain?{query}", data=b"{}" if method == "POST" else None)
    assert (400, "application/json") == (answer.status, answer.content_type)
    message = (await answer.json())["error"]
    assert [] == [word for word in words if word not in message], message


async def test_bad_question_is_shown_short(admin: TestClient) -> None:
    answer = await admin.get(f"/explain?header={'x' * 5_000}")
    assert 400 == answer.status
    assert len(await answer.read()) < 200


async def test_too_large_a_question_is_413(admin: TestClient) -> None:
    answer = await admin.post("/explain", data=b"x" * (MAX_ASK_BYTES + 1))
    assert 413 == answer.status


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("DELETE", "/table", 405)])
async def test_unknown_page_or_method_is_refused(admin: TestClient, method: str, path: str, status: int) -> None:
    assert status == (await admin.request(method, path)).status


@pytest.mark.parametrize(("method", "path"), [("GET", "/nothing"), ("DELETE", "/table"), ("POST", "/explain")])
async def test_every_answer_but_metrics_is_json(admin: TestClient, method: str, path: str) -> None:
    answer = await admin.request(method, path, data=b"x" * (MAX_ASK_BYTES + 1))
    assert answer.status >= 400
    assert isinstance(json.loads(await answer.read()), dict)


@pytest.mark.parametrize("path", [path for path in PAGES if path != "/explain"])
async def test_pages_cannot_be_written(admin: TestClient, path: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert 405 == (await admin.request(method, path)).status
