"""What hostile clients and accidents on the machine must not do: blind others, leak headers, end the traffic."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from agent_process import AgentProcess
from pointsman.otel.trace_receiver import TraceReceiver
from pointsman.router.request import Request
from until import until
from wire import Backend, Client

pytestmark = pytest.mark.envoy


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[AgentProcess]:
    async with Backend() as stable, Backend() as canary:
        agent = AgentProcess(tmp_path, stable=stable.port, canary=canary.port)
        yield agent
        if agent.process is not None and agent.process.returncode is None:
            await agent.stop()
        agent.end_envoys()


async def send(agent: AgentProcess, *headers: tuple[str, str], path: str = "/v1/chat/completions") -> int:
    client = Client(agent.listen)
    sent = (("content-type", "application/json"), *headers)
    answer = await client.ask(Request("POST", path, sent, b'{"model": "support-chat"}'))
    await client.close()
    return answer.status


@pytest.mark.parametrize("header", ["x-request-id", "user-agent", "x-client-trace-id", "x-prompt-template"])
async def test_bytes_that_are_no_text_lose_nobody_s_entry_or_span(agent: AgentProcess, header: str) -> None:
    async with TraceReceiver() as receiver:
        policy = agent.policy.read_text()
        tracing = f'tracing: {{otlp: "127.0.0.1:{receiver.port}", sampleRatio: 1.0}}, stateDir:'
        agent.policy.write_text(policy.replace("stateDir:", tracing))
        await agent.start()
        for _ in range(10):
            assert await send(agent) == 200
        assert await send(agent, (header, "\xff\xfe"), (header, "\xfd")) == 200
        for _ in range(10):
            assert await send(agent) == 200

        async def all_spans() -> bool:
            kinds = [span.kind for span in receiver.spans if span.service == "pointsman-envoy"]
            typed = [span for span in receiver.spans if span.service == "pointsman-agent"]
            return (kinds.count(2), len(typed)) == (21, 21)

        await until(all_spans)
        assert receiver.unreadable == 0


async def test_a_crash_dump_with_headers_is_kept_nowhere(agent: AgentProcess) -> None:
    await agent.start()
    pid = agent.envoy_pid()
    _, writer = await asyncio.open_connection("127.0.0.1", agent.listen)
    writer.write(
        b"POST /v1/chat/completions?key=QRYSECRET HTTP/1.1\r\nhost: x\r\nauthorization: Bearer AUTSECRET\r\n"
        b"content-type: application/json\r\ncontent-length: 100000\r\n\r\n" + b" " * 1000
    )
    await writer.drain()
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith("wrk"):
            ctypes.CDLL(None).syscall(234, pid, int(task.name), signal.SIGABRT)  # tgkill on x86-64
            break
    await agent.until_log("Envoy died")
    writer.close()
    kept = agent.log + (agent.folder / "state" / "envoy.log").read_text(errors="replace")
    assert "AUTSECRET" not in kept
    assert "QRYSECRET" not in kept


async def test_an_envoy_ended_by_a_real_time_signal_is_started_again(agent: AgentProcess) -> None:
    await agent.start()
    os.kill(agent.envoy_pid(), 40)
    await agent.until_log("Envoy is started again")

    async def serves() -> bool:
        try:
            return await send(agent) == 200
        except OSError:
            return False

    await until(serves)


async def test_the_state_directory_may_vanish_under_a_running_envoy(agent: AgentProcess) -> None:
    await agent.start()
    pid = agent.envoy_pid()
    (agent.folder / "state" / "bootstrap.pb").unlink()
    os.kill(pid, signal.SIGKILL)

    async def serves() -> bool:
        try:
            return await send(agent) == 200
        except OSError:
            return False

    await until(serves)
