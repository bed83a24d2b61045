"""The simulated server over real sockets, with an HTTP client and the official API client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
import openai
import pytest
from pointsman.sidecar.simulator import SimulatorOptions, listening

CHAT = "/v1/chat/completions"
HELLO = {"model": "support-chat", "messages": [{"role": "user", "content": "hello to you"}]}
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Lab:
    """One server and a client for it."""

    url: str
    session: aiohttp.ClientSession

    async def control(self, **change: object) -> None:
        async with self.session.post(f"{self.url}/_control", json=change) as answer:
            assert answer.status == 200

    async def seen(self) -> list[dict[str, object]]:
        async with self.session.get(f"{self.url}/_seen") as answer:
            requests: list[dict[str, object]] = (await answer.json())["requests"]
            return requests

    async def chat(self, **extra: object) -> int:
        async with self.session.post(self.url + CHAT, json={**HELLO, **extra}) as answer:
            await answer.read()
            return answer.status

    async def metric(self, name: str) -> float:
        async with self.session.get(f"{self.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    options = SimulatorOptions("127.0.0.1", 0, "support-chat@v2.2", ("support-chat", "small-chat"))
    async with listening(options) as address:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            yield Lab(f"http://{address}", session)


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask again, over the wire, until it holds."""
    async with asyncio.timeout(10):
        while not await holds():
            pass


# The official client


async def test_official_client_chats(lab: Lab) -> None:
    async with lab.client() as client:
        answer = await client.chat.completions.create(
            model="small-chat", messages=[{"role": "user", "content": "hello to you"}], max_tokens=3, n=2
        )
    assert answer.usage is not None
    assert (answer.model, answer.usage.prompt_tokens, answer.usage.completion_tokens) == ("small-chat", 3, 6)
    assert [choice.message.content for choice in answer.choices] == ["This answer comes"] * 2
    assert {"length"} == {choice.finish_reason for choice in answer.choices}


async def test_official_client_streams(lab: Lab) -> None:
    async with lab.client() as client:
        stream = await client.chat.completions.create(
            model="support-chat",
            messages=[{"role": "user", "content": "hello to you"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert len(text.split()) == 16
    assert chunks[-1].usage is not None
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 19)
    assert chunks[-2].choices[0].finish_reason == "stop"


async def test_official_client_completes_embeds_and_lists(lab: Lab) -> None:
    async with lab.client() as client:
        completion = await client.completions.create(model="support-chat", prompt="once upon a time")
        streamed = [
            chunk async for chunk in await client.completions.create(model="support-chat", prompt="x", stream=True)
        ]
        embedding = await client.embeddings.create(model="support-chat", input=["a b", "c"], dimensions=8)
        models = await client.models.list()
        model = await client.models.retrieve("small-chat")
    assert completion.choices[0].text == "".join(chunk.choices[0].text for chunk in streamed)
    assert [len(one.embedding) for one in embedding.data] == [8, 8]
    assert [one.id for one in models.data] == ["support-chat", "small-chat"]
    assert model.id == "small-chat"


async def test_official_client_sees_an_unknown_model_as_not_found(lab: Lab) -> None:
    async with lab.client() as client:
        with pytest.raises(openai.NotFoundError) as refused:
            await client.chat.completions.create(model="other", messages=[])
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    assert refused.value.response.headers["x-served-by"] == "support-chat@v2.2"


# Everything else that is received


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/health", None, 200),
        ("HEAD", "/health", None, 200),
        ("GET", "/metrics", None, 200),
        ("GET", "/_control", None, 200),
        ("PUT", "/_control", None, 405),
        ("POST", "/_control", b"{", 400),
        ("POST", "/_control", b"[]", 400),
        ("POST", "/_seen", None, 405),
        ("GET", CHAT, None, 405),
        ("GET", "/nope", None, 404),
        ("GET", "/v1/realtime", None, 426),
        ("GET", "/v1/models/other", None, 404),
        ("POST", CHAT, b"{", 400),
        ("POST", CHAT, b"[]", 400),
        ("POST", CHAT, b'{"model": "auto"}', 200),
        ("DELETE", "/v1/files/1", None, 200),
    ],
)
async def test_every_answer_says_who_served_it(
    lab: Lab, method: str, path: str, body: bytes | None, status: int
) -> None:
    async with lab.session.request(method, lab.url + path, data=body) as answer:
        assert (status, "support-chat@v2.2") == (answer.status, answer.headers["x-served-by"])


async def test_uploads_are_counted_whatever_their_size(lab: Lab) -> None:
    size_bytes = 64 * 1024 * 1024 + 3
    async with lab.session.put(f"{lab.url}/v1/files", data=b"\xff" * size_bytes) as answer:
        assert {"bytesReceived": size_bytes} == await answer.json()
    form = aiohttp.FormData()
    form.add_field("file", b"RIFF", filename="a.wav")
    async with lab.session.post(f"{lab.url}/v1/audio/transcriptions", data=form) as answer:
        assert answer.status == 200
    upload, multipart = await lab.seen()
    assert (size_bytes, 87_384) == (upload["bodyBytes"], len(str(upload["bodyBase64"])))
    assert "RIFF" in str(multipart["body"])


async def test_big_prompt_is_read_whole(lab: Lab) -> None:
    assert await lab.chat(messages=[{"role": "user", "content": "word " * 500_000}]) == 200
    assert await lab.metric("vllm:prompt_tokens_total") == 500_000


async def test_client_that_expects_100_continue_gets_it(lab: Lab) -> None:
    async with lab.session.post(f"{lab.url}/v1/files", data=b"abc", expect100=True) as answer:
        assert await answer.json() == {"bytesReceived": 3}


async def test_web_socket_echoes(lab: Lab) -> None:
    async with lab.session.ws_connect(f"{lab.url}/v1/realtime?model=support-chat") as ws:
        await ws.send_str("hello")
        await ws.send_bytes(b"\x00\xff")
        assert (await ws.receive_str(), await ws.receive_bytes()) == ("hello", b"\x00\xff")
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await lab.session.ws_connect(f"{lab.url}/v1/realtime?model=other")
    assert refused.value.status == 404


async def test_seen_shows_requests_as_received_and_forgets_on_delete(lab: Lab) -> None:
    body = b'{ "model":"auto", "x": 1e400 }'
    headers = [("X-Twice", "a"), ("X-Twice", "b")]
    async with lab.session.post(f"{lab.url}{CHAT}?v=1", data=body, headers=headers):
        pass
    (seen,) = await lab.seen()
    shown = seen["headers"]
    assert isinstance(shown, dict)
    assert (f"{CHAT}?v=1", body.decode(), "a, b") == (seen["path"], seen["body"], shown["x-twice"])
    async with lab.session.delete(f"{lab.url}/_seen"):
        assert await lab.seen() == []


# Behaviour


async def test_refused_control_changes_nothing(lab: Lab) -> None:
    async with lab.session.post(f"{lab.url}/_control", json={"hang": True, "latncyMs": 3}) as answer:
        error = (await answer.json())["error"]
    assert (error["param"], "latencyMs" in error["message"]) == ("latncyMs", True)
    assert await lab.chat() == 200


async def test_error_ratio_is_exact_and_restarts_with_each_change(lab: Lab) -> None:
    await lab.control(errorRatio=0.25, errorStatus=429)
    assert [await lab.chat() for _ in range(5)] == [200, 200, 200, 429, 200]
    await lab.control(errorRatio=0.5)
    assert [await lab.chat() for _ in range(2)] == [200, 429]
    assert await lab.metric('vllm:request_success_total{engine="0",finished_reason="error"') == 2


async def test_confidence_and_load_headers_come_when_set_and_asked_for(lab: Lab) -> None:
    names = ("x-model-confidence", "x-model-logit-entropy", "endpoint-load-metrics")
    async with lab.session.post(lab.url + CHAT, json=HELLO) as answer:
        assert not any(name in answer.headers for name in names)
    await lab.control(confidence=0.3, entropy=2.5)
    wanted = {"endpoint-load-metrics-format": "TEXT"}
    for is_streaming in (False, True):
        async with lab.session.post(lab.url + CHAT, json={**HELLO, "stream": is_streaming}, headers=wanted) as answer:
            confidence, entropy, load = (answer.headers[name] for name in names)
            assert (confidence, entropy) == ("0.3", "2.5")
            assert load.startswith("TEXT application_utilization=0.0156, rps_fractional=")


async def test_stream_headers_go_out_before_the_first_token(lab: Lab) -> None:
    await lab.control(ttftMs=HOUR_MS)
    async with lab.session.post(lab.url + CHAT, json={**HELLO, "stream": True}) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")


async def test_client_that_goes_away_gives_its_slot_back(lab: Lab) -> None:
    await lab.control(ttftMs=HOUR_MS, slots=1)
    answer = await lab.session.post(lab.url + CHAT, json={**HELLO, "stream": True})
    waiting = asyncio.create_task(lab.chat())
    await _until(lambda: _equals(lab, "vllm:num_requests_waiting", 1))
    await lab.control(ttftMs=0)
    answer.close()
    assert await waiting == 200
    assert await lab.metric('vllm:request_success_total{engine="0",finished_reason="abort"') == 1


async def test_more_slots_let_waiting_requests_run(lab: Lab) -> None:
    await lab.control(ttftMs=HOUR_MS, slots=1)
    async with lab.session.post(lab.url + CHAT, json={**HELLO, "stream": True}):
        waiting = [asyncio.create_task(lab.chat()) for _ in range(3)]
        await _until(lambda: _equals(lab, "vllm:num_requests_waiting", 3))
        await lab.control(ttftMs=0, slots=2)
        assert await asyncio.gather(*waiting) == [200] * 3


async def test_tokens_come_at_the_set_pace(lab: Lab) -> None:
    await lab.control(tokensPerSecond=100)
    started_s = time.monotonic()
    async with lab.session.post(lab.url + CHAT, json={**HELLO, "stream": True, "max_tokens": 11}) as answer:
        await answer.read()
    assert time.monotonic() - started_s >= 0.1
    assert await lab.chat(max_tokens=6) == 200
    assert time.monotonic() - started_s >= 0.15


async def test_hanging_server_accepts_and_never_answers(lab: Lab) -> None:
    await lab.control(hang=True)
    hung = asyncio.create_task(lab.chat())
    await _until(lambda: _equals(lab, "vllm:num_requests_running", 1))
    await lab.control(hang=False)
    assert await lab.chat() == 200
    assert not hung.done()
    hung.cancel()
    await _until(lambda: _equals(lab, "vllm:num_requests_running", 0))


async def test_reset_comes_after_exactly_so_many_events(lab: Lab) -> None:
    await lab.control(resetAfterChunks=3)
    received = bytearray()
    with pytest.raises(aiohttp.ClientError):
        await _receive_stream(lab, received)
    assert received.count(b"data: ") == 3
    assert await lab.chat() == 200


async def test_reset_after_no_event_comes_before_the_headers(lab: Lab) -> None:
    await lab.control(resetAfterChunks=0)
    for is_streaming in (False, True):
        with pytest.raises(aiohttp.ClientConnectionError):
            await lab.chat(stream=is_streaming)
    await lab.control(resetAfterChunks=None)
    assert await lab.chat() == 200


async def test_prompt_with_a_known_beginning_is_a_cache_hit(lab: Lab) -> None:
    system = {"role": "system", "content": "be kind " * 40}
    for last in ("first question", "another one here"):
        await lab.chat(messages=[system, {"role": "user", "content": last}])
    assert await lab.metric("vllm:prefix_cache_queries_total") == 165
    assert await lab.metric("vllm:prefix_cache_hits_total") == 64


async def _receive_stream(lab: Lab, received: bytearray) -> None:
    async with lab.session.post(lab.url + CHAT, json={**HELLO, "stream": True}) as answer:
        async for chunk in answer.content.iter_any():
            received += chunk


async def _equals(lab: Lab, name: str, value: float) -> bool:
    return await lab.metric(name) == value
