"""Every protocol and body that clients of model servers use passes, whole and unchanged."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio
from grpc import aio
from stack import CHAT, STABLE, Mirror, Stack

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
BODY_LIMIT = 64 * MIB
LANE = {"x-lane": "mirror"}
"""Sends a request of any size and kind to the mirror: large bodies are routed by headers."""

ODD_JSON = [
    b'{"model":"mirror",   "messages" :\t[ ] ,\r\n "temperature": 1e400}',
    b'{"model":"mirror","seed":123456789012345678901234567890,"top_p":0.10000000000000000000000001}',
    b'{"model":"nobody","n":1,"n":2,"model":"mirror"}',
    b'{"mo\\u0064el":"mirror","text":"\\ud83d\\ude00 \\u0000 \\ud800"}',
    '{"model":"mirror","text":"阴气渐重，露凝 😀"}'.encode(),
    b'\xef\xbb\xbf{"model":"mirror"}\n',
    b'{"model":"mirror","priority":0,"not-a-field":{"deep":[[[[{}]]]]},"-0":-0.0}',
]


def large_json(size_bytes: int) -> bytes:
    """A chat request of exactly that size, its prompt hard to compress and full of escapes."""
    opening, ending = b'{"model":"mirror","messages":[{"role":"user","content":"', b'"}]}'
    text = random.Random(1).randbytes(3 * 1024).hex().encode() + b"\\u00e9\\n \\\\\xe2\x82\xac"
    room = size_bytes - len(opening) - len(ending)
    filled = text * (room // len(text))
    return opening + filled + b"x" * (room - len(filled)) + ending


async def pieces(body: bytes, size_bytes: int = 100_000) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size_bytes):
        yield body[at : at + size_bytes]


def assert_arrived(mirror: Mirror, body: bytes) -> None:
    assert [(len(body), hashlib.sha256(body).hexdigest())] == [(one.body_bytes, one.sha256) for one in mirror.seen]


# ---- HTTP/1.1


@pytest.mark.parametrize("body", ODD_JSON, ids=range(len(ODD_JSON)))
async def test_odd_json_passes_byte_for_byte(stack: Stack, mirror: Mirror, body: bytes) -> None:
    answer = await stack.post(body)
    assert (200, "mirror@v1") == (answer.status, answer.target)
    assert body == mirror.seen[0].body
    assert [str(len(body))] == mirror.seen[0].lines("content-length")  # known bug 7


@pytest.mark.parametrize("size_mib", [1, 5, 20, 64])
async def test_large_json_body_arrives_whole(stack: Stack, mirror: Mirror, size_mib: int) -> None:
    body = large_json(size_mib * MIB)
    answer = await stack.post(body, LANE)
    assert (200, {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}) == (answer.status, answer.json())
    assert_arrived(mirror, body)


@pytest.mark.parametrize("size_mib", [5, 64])
async def test_large_binary_body_arrives_whole(stack: Stack, mirror: Mirror, size_mib: int) -> None:
    body = random.Random(size_mib).randbytes(MIB) * size_mib
    answer = await stack.ask("POST", "/mirror/upload", data=body)
    assert 200 == answer.status
    assert_arrived(mirror, body)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["content-length", "chunked"])
@pytest.mark.parametrize("path", [CHAT, "/mirror/upload"])
async def test_one_byte_over_the_limit_is_413(stack: Stack, mirror: Mirror, path: str, *, is_chunked: bool) -> None:
    body = bytes(BODY_LIMIT + 1)
    kind = "application/json" if path == CHAT else "application/octet-stream"
    headers = {"content-type": kind, **LANE}
    answer = await stack.ask("POST", path, data=pieces(body, MIB) if is_chunked else body, headers=headers)
    assert 413 == answer.status
    assert "application/json" == answer.headers["content-type"]
    assert {"message", "type", "param", "code"} == set(answer.json()["error"])
    assert [] == [one for one in mirror.seen if one.body_bytes > BODY_LIMIT]


@pytest.mark.parametrize("piece_bytes", [3_000, 1 * MIB])
@pytest.mark.parametrize("size_bytes", [500, 200_000, 4 * MIB, 4 * MIB + 70_000, 20 * MIB])
async def test_chunked_upload_arrives_whole(stack: Stack, mirror: Mirror, size_bytes: int, piece_bytes: int) -> None:
    body = large_json(size_bytes)
    headers = {"content-type": "application/json", **LANE}
    answer = await stack.ask("POST", CHAT, data=pieces(body, piece_bytes), headers=headers)
    assert 200 == answer.status
    assert_arrived(mirror, body)


async def test_multipart_upload_of_five_mib_arrives_whole(stack: Stack, mirror: Mirror) -> None:
    sound = random.Random(2).randbytes(5 * MIB)
    form = aiohttp.FormData()
    form.add_field("model", "mirror")
    form.add_field("file", sound, filename="sound.wav", content_type="audio/wav")
    answer = await stack.ask("POST", "/v1/audio/transcriptions", data=form)
    assert (200, "mirror@v1") == (answer.status, answer.target)
    assert mirror.seen[0].body_bytes > len(sound)
    boundary = mirror.seen[0].lines("content-type")[0].partition("boundary=")[2].encode()
    assert mirror.seen[0].body.startswith(b"--" + boundary)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "GET", "DELETE", "PUT", "PATCH"])
async def test_other_methods_pass(stack: Stack, mirror: Mirror, method: str) -> None:
    answer = await stack.ask(method, "/mirror/things?x=1&y=%20", data=b"{}" if method in ("PUT", "PATCH") else None)
    assert (200, "mirror/1") == (answer.status, answer.headers["server"])
    assert (method, "/mirror/things?x=1&y=%20") == (mirror.seen[0].method, mirror.seen[0].path)
    assert (b"" == answer.body) is (method == "HEAD")


async def test_expect_100_continue_is_answered_before_the_body_is_sent(stack: Stack, mirror: Mirror) -> None:
    body = large_json(10_000)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\nx-lane: mirror\r\n"
        f"content-length: {len(body)}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    async with asyncio.timeout(10):
        writer.write(head.encode())
        assert b"HTTP/1.1 100 Continue\r\n" == await reader.readline()
        assert b"\r\n" == await reader.readline()
        writer.write(body)
        assert b"HTTP/1.1 200 OK\r\n" == await reader.readline()
        await reader.read()
    writer.close()
    assert_arrived(mirror, body)


async def test_pipelined_requests_are_answered_in_order(stack: Stack, mirror: Mirror) -> None:
    one = "GET /mirror/{} HTTP/1.1\r\nhost: test\r\n{}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write((one.format(1, "") + one.format(2, "") + one.format(3, "connection: close\r\n")).encode())
    async with asyncio.timeout(10):
        answers = await reader.read()
    writer.close()
    assert 3 == answers.count(b"HTTP/1.1 200 OK")
    assert ["/mirror/1", "/mirror/2", "/mirror/3"] == [seen.path for seen in mirror.seen]


async def test_encoded_answers_pass_unchanged(stack: Stack, mirror: Mirror) -> None:
    # known bug 4: an error body in gzip keeps its bytes and its header
    mirror.status, mirror.answer_headers = 429, {"content-encoding": "gzip", "retry-after": "3"}
    packed = b"\x1f\x8b\x08\x00 not really gzip, and nobody's business"
    answer = await stack.ask("POST", "/mirror/packed", data=packed)
    assert (429, packed, "gzip", "3") == (
        answer.status,
        answer.body,
        answer.headers["content-encoding"],
        answer.headers["retry-after"],
    )


# ---- event streams


async def test_first_event_arrives_while_the_stream_is_still_open(stack: Stack, mirror: Mirror) -> None:
    mirror.pieces = (b"data: one\n\n", b"data: two\n\n", b"data: [DONE]\n\n")
    question = {"model": "mirror", "stream": True, "messages": []}
    async with stack.session.post(stack.url + CHAT, json=question, headers=LANE) as response:
        async with asyncio.timeout(10):
            first = await response.content.readany()
            assert b"data: one\n\n" == first  # the server waits: it goes on only now
            mirror.go_on.set()
            assert b"data: two\n\ndata: [DONE]\n\n" == await response.read()


async def test_known_bug_3_characters_cut_anywhere_arrive_whole(stack: Stack, mirror: Mirror) -> None:
    event = 'data: {"choices":[{"index":0,"delta":{"content":"阴气渐重，露凝 😀"}}]}\n\n'.encode()
    events = event * 3 + b"data: [DONE]\n\n"
    mirror.pieces = [events[at : at + 1] for at in range(len(events))]
    mirror.go_on.set()
    answer = await stack.chat(LANE, model="mirror", stream=True)
    assert events == answer.body


async def test_known_bug_13_stream_that_breaks_off_has_no_end_mark(stack: Stack) -> None:
    body = b""
    with pytest.raises(aiohttp.ClientPayloadError):
        async with stack.session.post(
            stack.url + CHAT, json={"model": "cut-chat", "messages": [], "stream": True}
        ) as response:
            assert 200 == response.status
            async for piece in response.content.iter_any():
                body += piece
    assert b"data: " in body
    assert b"[DONE]" not in body


async def test_known_bug_39_no_row_cuts_a_long_stream(rendered: dict[str, object]) -> None:
    actions = [found["route"] for found in having(rendered["routes"], "route") if "weighted_clusters" in found["route"]]
    assert len(actions) > 10
    assert {"0s"} == {action["timeout"] for action in actions}
    assert {"60s", "5s"} == {action["idle_timeout"] for action in actions}  # each route's own, never Envoy's 15 s
    limits = {action["retry_policy"]["per_try_timeout"] for action in actions if "retry_policy" in action}
    assert {"30s", "0.600s"} == limits  # until the headers: it does not cut a stream


async def test_envoy_closes_idle_connections_before_servers_do(rendered: dict[str, object]) -> None:
    key = "common_http_protocol_options"
    options = [found[key] for found in having(rendered["clusters"], key)]
    assert {"4s"} == {option["idle_timeout"] for option in options}  # uvicorn's keep-alive is 5 s
    assert len(options) > 5


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rendered(stack: Stack) -> object:
    """What `pointsman render` prints for the stack's policy."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pointsman.sidecar", "render", "-c", str(stack.policy)), stdout=asyncio.subprocess.PIPE
    )
    return json.loads((await process.communicate())[0])


def having(node: object, key: str) -> Iterator[dict[str, Any]]:
    """Every mapping in the tree that has a mapping under that key."""
    if isinstance(node, dict):
        if isinstance(node.get(key), dict):
            yield node
        for child in node.values():
            yield from having(child, key)
    elif isinstance(node, list):
        for child in node:
            yield from having(child, key)


# ---- HTTP/2, gRPC, WebSocket


async def test_h2c_requests_share_a_connection(stack: Stack, mirror: Mirror) -> None:
    pytest.importorskip("h2", reason="HTTP/2 without TLS needs the package h2")
    httpx2 = pytest.importorskip("httpx2", reason="HTTP/2 without TLS needs the package httpx2")
    body = large_json(2 * MIB)
    async with httpx2.AsyncClient(base_url=stack.url, http1=False, http2=True, timeout=30) as client:
        headers = {"content-type": "application/json"}
        answers = await asyncio.gather(
            client.post(CHAT, content=body, headers=headers | LANE),
            client.post(CHAT, json={"model": "support-chat", "messages": []}, headers={"model-version": "v2.2"}),
            client.post(CHAT, json={"model": "nobody"}),
            client.get("/v1/models"),
            *(client.get(f"/mirror/{number}") for number in range(50)),
        )
    assert {"HTTP/2"} == {answer.http_version for answer in answers}
    assert [200, 200, 404, 200] == [answer.status_code for answer in answers[:4]]
    assert {200} == {answer.status_code for answer in answers[4:]}
    assert STABLE == answers[1].headers["x-pointsman-target"]
    assert hashlib.sha256(body).hexdigest() in {seen.sha256 for seen in mirror.seen}


async def test_h2c_stream_flows_event_by_event(stack: Stack, mirror: Mirror) -> None:
    pytest.importorskip("h2", reason="HTTP/2 without TLS needs the package h2")
    httpx2 = pytest.importorskip("httpx2", reason="HTTP/2 without TLS needs the package httpx2")
    mirror.pieces = (b"data: one\n\n", b"data: [DONE]\n\n")
    async with httpx2.AsyncClient(base_url=stack.url, http1=False, http2=True, timeout=10) as client:
        async with client.stream("POST", CHAT, json={"model": "mirror", "stream": True}) as response:
            chunks = response.aiter_bytes()
            assert b"data: one\n\n" == await anext(chunks)
            mirror.go_on.set()
            assert b"data: [DONE]\n\n" == b"".join([chunk async for chunk in chunks])


async def test_grpc_unary_streams_trailers_and_errors_pass(stack: Stack) -> None:
    async with aio.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
        call = channel.unary_unary("/pmtest.Echo/Unary")(b"\x00\xffhello", timeout=10)
        assert b"\x00\xffhello" == await call
        assert ("x-echo-trailer", "kept") in list(await call.trailing_metadata())
        assert ("x-pointsman-target", "grpc-echo@v1") in list(await call.initial_metadata())

        counted = channel.unary_stream("/pmtest.Echo/Count")(b"n", timeout=10)
        assert [b"n0", b"n1", b"n2"] == [message async for message in counted]

        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary("/pmtest.Echo/Fail")(b"x", timeout=10)
    assert (grpc.StatusCode.FAILED_PRECONDITION, "the model is not loaded") == (
        caught.value.code(),
        caught.value.details(),
    )


async def test_grpc_talks_in_both_directions_at_once(stack: Stack) -> None:
    async with aio.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
        call = channel.stream_stream("/pmtest.Echo/Talk")(timeout=10)
        for number in range(5):
            await call.write(b"%d" % number)
            assert b"%d" % number == await call.read()  # answered while the client still writes
        await call.done_writing()
        assert aio.EOF is await call.read()


async def test_large_grpc_message_passes(stack: Stack) -> None:
    message = random.Random(3).randbytes(3 * MIB)
    async with aio.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
        assert message == await channel.unary_unary("/pmtest.Echo/Unary")(message, timeout=20)


@pytest.mark.parametrize(
    ("method", "code"),
    [("/pmtest.Echo/Nothing", grpc.StatusCode.UNIMPLEMENTED), ("/other.Service/Call", grpc.StatusCode.UNIMPLEMENTED)],
)
async def test_grpc_caller_of_an_unknown_method_gets_a_grpc_status(
    stack: Stack, method: str, code: grpc.StatusCode
) -> None:
    async with aio.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary(method)(b"x", timeout=10)
    assert code == caught.value.code()


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/json"}], ids=["plain", "json type"])
async def test_websocket_echoes(stack: Stack, headers: dict[str, str]) -> None:
    url = f"{stack.url}/v1/realtime?model=support-chat"
    async with asyncio.timeout(10):
        async with stack.session.ws_connect(url, headers=headers) as socket:
            await socket.send_str("hello")
            assert "hello" == await socket.receive_str()
            await socket.send_bytes(bytes(200_000))
            assert bytes(200_000) == await socket.receive_bytes()


async def test_websocket_to_a_path_without_a_route_is_refused(stack: Stack) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await stack.session.ws_connect(f"{stack.url}/v1/nothing")
    assert 404 == caught.value.status
