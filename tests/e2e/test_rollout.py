"""Rollouts with a real Envoy: promoted, aborted, kept so; and what an operator says."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from agent_process import AgentProcess
from load import Load
from pointsman.router.request import Request
from until import until
from wire import Answer, Backend, Client

pytestmark = pytest.mark.envoy

ANALYSIS = "analysis: {window: 5s, minRequests: 50, maxErrorRatio: 0.05}"
SHORT = "steps: [{weight: 50, hold: 1s}, {weight: 100, hold: 1s}]"
LONG = "steps: [{weight: 50, hold: 10m}, {weight: 100, hold: 10m}]"


@dataclass
class Scene:
    """An agent and its two servers."""

    agent: AgentProcess
    stable: Backend
    canary: Backend
    base: str = field(init=False)

    def __post_init__(self) -> None:
        self.base = self.agent.policy.read_text()

    def plan(self, steps: str, *, settings: str = "") -> None:
        """Write the policy with such steps."""
        text = self.base.replace("weight: 0", f"{steps}, {ANALYSIS}").replace(", stickBy: [x-context-id]", "")
        text = text.replace("  targets: [support-chat]", "  targets: [support-chat]\n  fallback: [{canned: {}}]")
        aside = self.agent.policy.with_suffix(".new")
        aside.write_text(text.replace("stateDir:", f"{settings}stateDir:"))
        aside.rename(self.agent.policy)

    async def rollout(self) -> dict[str, object]:
        _, page = await self.agent.admin_json("/rollouts")
        listed = page["rollouts"]
        assert isinstance(listed, list)
        (found,) = listed
        assert isinstance(found, dict)
        return found

    async def until_phase(self, phase: str) -> None:
        async def is_there() -> bool:
            return (await self.rollout())["phase"] == phase

        await until(is_there, 30)

    async def ask(self, *headers: tuple[str, str]) -> Answer:
        client = Client(self.agent.listen)
        sent = (("content-type", "application/json"), *headers)
        answer = await client.ask(Request(headers=sent, body=b'{"model": "support-chat"}'))
        await client.close()
        return answer

    async def served_by(self, count: int) -> set[str]:
        """Ports of the servers that answer so many requests without a pin."""
        return {(await self.ask()).headers["x-served-by"] for _ in range(count)}

    async def until_all_on(self, server: Backend) -> None:
        """Wait until the table that a transition made is Envoy's."""

        async def is_so() -> bool:
            return {str(server.port)} == await self.served_by(30)

        await until(is_so, 20)

    async def command(self, *words: str) -> tuple[int, str]:
        """Run `pointsman rollout` and return its exit code and all that it printed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pointsman.sidecar", "rollout", *words, "--admin", f"127.0.0.1:{self.agent.admin}",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        printed, _ = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode is not None
        return process.returncode, printed.decode()

    async def fail_until_aborted(self) -> None:
        async with Load(self.agent.listen, connections=4) as load:
            await load.more(100)
            self.canary.status = 500
            await self.until_phase("aborted")
        self.canary.status = 200


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with Backend() as stable, Backend() as canary:
        agent = AgentProcess(tmp_path, stable=stable.port, canary=canary.port)
        scene = Scene(agent, stable, canary)
        scene.plan(LONG)
        try:
            yield scene
        finally:
            if agent.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    assert await agent.stop() == 0


async def test_a_good_canary_is_promoted_and_no_client_notices(scene: Scene) -> None:
    scene.plan(SHORT)
    await scene.agent.start()
    async with Load(scene.agent.listen, connections=4) as load:
        await scene.until_phase("promoted")
    assert load.failed == {}
    await scene.until_all_on(scene.canary)
    reasons = [item["reason"] for item in (await scene.rollout())["history"]]  # type: ignore[attr-defined]
    assert "started" == reasons[0]
    assert "first_request" == reasons[1]
    assert reasons[-1] in ("under_limit", "without_evidence")


async def test_a_bad_canary_is_aborted_and_pins_still_reach_it(scene: Scene) -> None:
    await scene.agent.start()
    await scene.fail_until_aborted()
    rollout = await scene.rollout()
    assert ("errors", 0.0) == (rollout["reason"], rollout["sharePercent"])
    await scene.until_all_on(scene.stable)

    async def pin_arrives() -> bool:
        answer = await scene.ask(("model-version", "v2.3-beta"))
        return answer.headers.get("x-served-by") == str(scene.canary.port)

    await until(pin_arrives, 30)  # the breaker, which opened too, lets pins through once probes are answered


async def test_an_abort_survives_a_restart_and_a_policy_that_comes_back(scene: Scene) -> None:
    await scene.agent.start()
    await scene.fail_until_aborted()
    assert await scene.agent.stop() == 0
    await scene.agent.start()
    assert {str(scene.stable.port)} == await scene.served_by(30), "from the first table on"
    scene.plan(SHORT)
    await scene.until_phase("waiting")
    scene.plan(LONG)
    await scene.until_phase("aborted")
    await scene.until_all_on(scene.stable)


async def test_an_operator_pauses_promotes_aborts_and_retries(scene: Scene) -> None:
    await scene.agent.start()
    code, printed = await scene.command("pause")
    assert (0, True) == (code, "support  paused (operator)" in printed)
    assert 2 == (await scene.command("retry"))[0]
    assert 0 == (await scene.command("promote", "support"))[0]
    await scene.until_all_on(scene.canary)
    assert 0 == (await scene.command("abort"))[0]
    await scene.until_all_on(scene.stable)
    assert 0 == (await scene.command("retry"))[0]
    assert "waiting" in (await scene.command("status"))[1]


async def test_observe_mode_tells_and_changes_nothing(scene: Scene) -> None:
    scene.plan(LONG, settings="mode: {breaker: observe, rollout: observe}, ")
    await scene.agent.start()
    async with Load(scene.agent.listen, connections=4) as load:
        scene.canary.status = 500
        await scene.until_phase("aborted")
        arrived = len(scene.canary.seen)
        await load.more(200)
        assert len(scene.canary.seen) - arrived > 50, "the canary still gets its share"
    await scene.agent.until_log("rollout moved")
