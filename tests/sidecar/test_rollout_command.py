"""`pointsman rollout` against the pages that it asks: a real server, a real loop."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from pointsman.router.policy import Analysis, Canary, Step
from pointsman.router.rollout import Verb
from pointsman.sidecar import rollout_command
from pointsman.sidecar.rollout_admin import add_rollout_pages
from pointsman.sidecar.rollout_command import COMMAND_HEADER
from pointsman.sidecar.rollout_loop import RolloutLoop
from pointsman.sidecar.rollout_store import RolloutStore
from pointsman.sidecar.views import Json
from sample_policies import with_route
from wire import free_port

POLICY = with_route(
    canary=Canary("support-chat", "v2.3-beta", steps=(Step(500, 10_000), Step(10_000)), analysis=Analysis())
)


class Agent:
    """The pages' source: one loop."""

    def __init__(self, folder: Path) -> None:
        self.loop = RolloutLoop(POLICY, RolloutStore(folder / "rollouts.json"), lambda: None)

    def rollouts(self) -> Json:
        return self.loop.view()

    def rollout_command(self, route: str, verb: Verb) -> Json:
        return self.loop.command(route, verb)


@pytest_asyncio.fixture
async def admin(tmp_path: Path) -> AsyncIterator[str]:
    app = web.Application()
    add_rollout_pages(app, Agent(tmp_path))
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield f"127.0.0.1:{port}"
    await runner.cleanup()


async def call(admin: str, *words: str) -> int:
    parser = argparse.ArgumentParser()
    rollout_command.add_arguments(parser)
    arguments = parser.parse_args([*words, "--admin", admin])
    return await asyncio.to_thread(rollout_command.run, arguments)


async def post(admin: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.post(f"http://{admin}{path}", headers=headers) as answer:
        return answer.status, (await answer.json())["error"]


async def test_status_shows_step_share_and_both_versions(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == await call(admin, "status")
    printed = capsys.readouterr().out
    assert "support  waiting (started) since 20" in printed
    assert "step 1 of 2, share 5 %, at most 1 % errors" in printed
    assert "support-chat@v2.3-beta" in printed
    assert "support-chat@v2.2" in printed


async def test_commands_need_no_route_where_there_is_one(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == await call(admin, "pause")
    assert 0 == await call(admin, "resume", "support")
    assert 0 == await call(admin, "abort")
    assert "support  aborted (operator)" in capsys.readouterr().out


async def test_json_is_the_page(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == await call(admin, "promote", "support", "--json")
    (rollout,) = json.loads(capsys.readouterr().out)["rollouts"]
    assert ("promoted", 100.0) == (rollout["phase"], rollout["sharePercent"])


async def test_what_does_not_fit_is_refused_with_the_agents_words(
    admin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == await call(admin, "retry")
    assert "waiting: retry does not apply; pause, promote and abort do" in capsys.readouterr().err


async def test_an_unknown_route_is_refused_with_the_known_ones(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == await call(admin, "abort", "../x")
    assert "route ../x has no rollout; known: support" in capsys.readouterr().err


async def test_no_agent_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == await call(f"127.0.0.1:{free_port()}", "status")
    assert "is the agent running" in capsys.readouterr().err


@pytest.mark.parametrize("headers", [{}, {COMMAND_HEADER: "1", "host": "evil.example"}])
async def test_what_a_page_in_a_browser_could_send_is_refused(admin: str, headers: dict[str, str]) -> None:
    assert 403 == (await post(admin, "/rollouts/support/abort", headers))[0]


@pytest.mark.parametrize(
    ("path", "text"), [("/rollouts/support/explode", "unknown command"), ("/rollouts/gone/abort", "has no rollout")]
)
async def test_unknown_names_are_refused(admin: str, path: str, text: str) -> None:
    status, error = await post(admin, path, {COMMAND_HEADER: "1"})
    assert 404 == status
    assert text in error
