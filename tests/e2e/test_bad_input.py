"""Bad input gets a 4xx in the API's own error shape, never a 5xx, and disturbs nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio
from stack import CANARY, CHAT, STABLE, Answer, Mirror, Stack

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

PINNED = {"model-version": "v2.2"}
QUESTION = b'{"model": "support-chat", "messages": [{"role": "user", "content": "Where is my parcel?"}]}'


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def next_request_is_fine(stack: Stack) -> AsyncIterator[None]:
    """Whatever a test sent, the next client is served as ever."""
    yield
    answer = await stack.chat(PINNED)
    assert (200, STABLE) == (answer.status, answer.target)


def refused(answer: Answer, status: int) -> str:
    """Check the refusal's shape; return its message."""
    assert status == answer.status, answer.body
    return error_message(answer.body, answer.headers["content-type"])


def error_message(body: bytes, content_type: str) -> str:
    assert "application/json" == content_type
    told = json.loads(body)
    assert {"error"} == set(told)
    assert {"message", "type", "param", "code"} == set(told["error"])
    assert "invalid_request_error" == told["error"]["type"]
    assert told["error"]["code"]
    message = told["error"]["message"]
    assert isinstance(message, str)
    assert message
    return message


# ---- what the table refuses


async def test_unknown_version_is_404_and_names_the_versions(stack: Stack) -> None:
    message = refused(await stack.chat({"model-version": "v9"}), 404)
    assert "known versions: v2.2, v2.3-beta" in message


@pytest.mark.parametrize("value", ["", " ", "V2.2", "v2.2 v2.3-beta", "v2", "v2.2x", "%76%32.2", "é"])
async def test_a_pin_that_is_no_version_is_404(stack: Stack, value: str) -> None:
    refused(await stack.chat({"model-version": value}), 404)


@pytest.mark.parametrize(
    "headers",
    [
        [("model-version", "v2.2"), ("model_version", "v2.3-beta")],
        [("model-version", "v2.2"), ("model-version", "v2.3-beta")],  # known bug 19
        [("model-version", "v2.2,v2.3-beta")],
        [("model_version", "v2.3-beta"), ("model-version", "v2.2")],
    ],
)
async def test_contradictory_pins_are_400(stack: Stack, headers: list[tuple[str, str]]) -> None:
    answer = await stack.ask("POST", CHAT, data=QUESTION, headers=[*headers, ("content-type", "application/json")])
    assert "model-version" in refused(answer, 400)


async def test_the_same_pin_twice_is_that_pin(stack: Stack) -> None:
    headers = [("model-version", "v2.3-beta"), ("model_version", "v2.3-beta"), ("content-type", "application/json")]
    answer = await stack.ask("POST", CHAT, data=QUESTION, headers=headers)
    assert (200, CANARY) == (answer.status, answer.target)


@pytest.mark.parametrize("model", ["nobody", "Support-Chat", " support-chat", "", "support-chat@v2.2", "..", "模型"])
async def test_unknown_model_is_404_and_names_the_models(stack: Stack, model: str) -> None:
    message = refused(await stack.chat(model=model), 404)
    assert "known models:" in message
    assert "support-chat" in message


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5", "10 s", "", "99999999999", "1d"])
async def test_bad_session_ttl_is_400(stack: Stack, value: str) -> None:
    assert "x-session-ttl" in refused(await stack.chat({"x-session-ttl": value}), 400)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat", "/v1/chat/completions/", "//v1/chat/completions", "/metrics"])
async def test_path_without_a_route_is_404(stack: Stack, path: str) -> None:
    refused(await stack.post(QUESTION, path=path), 404)


@pytest.mark.parametrize("headers", [{"x-qos-class": "gold"}, {"x-slo-ttft-ms": "fast"}, {"x-intent": "dance"}])
async def test_unknown_demands_are_served_by_default(stack: Stack, headers: Mapping[str, str]) -> None:
    answer = await stack.chat({**headers, "x-context-id": "customer-1"})
    assert 200 == answer.status


# ---- what the body says


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"model": ',
        b'{"model": "support-chat"',
        b'{"model": "support-chat",}',
        b"{'model': 'support-chat'}",
        b'{"model": "support-chat"} {}',
        b'{"model": "\xff\xfe"}',
        b'{"temperature": NaN}',
        b"[" * 100_000,
        b"[]",
        b'"support-chat"',
        b"null",
        b"1",
        b'{"model": null}',
        b'{"model": 7}',
        b'{"model": ["support-chat"]}',
        b'{"model": {"name": "support-chat"}}',
        b"\x00",
        b"\x1f\x8b\x08\x00",
        b"model=support-chat",
    ],
    ids=range(20),
)
async def test_body_that_no_server_could_read_is_400(stack: Stack, body: bytes) -> None:
    assert "request body" in refused(await stack.post(body, PINNED), 400)


async def test_a_model_name_of_60_kb_is_400(stack: Stack) -> None:
    assert "model" in refused(await stack.chat(model="m" * 60_000), 400)


@pytest.mark.parametrize("model", ["support-chat\u0000", "\u0001", "support\nchat", "a\r\nx-pm-model: small-chat"])
async def test_control_characters_in_the_model_are_404(stack: Stack, model: str) -> None:
    refused(await stack.chat(model=model), 404)


async def test_of_two_model_keys_the_last_counts_as_in_servers(stack: Stack) -> None:
    last = await stack.post(b'{"model": "nobody", "model": "support-chat", "messages": []}', PINNED)
    assert (200, STABLE) == (last.status, last.target)
    refused(await stack.post(b'{"model": "support-chat", "messages": [], "model": "nobody"}'), 404)


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "application/x-www-form-urlencoded", "json", "*/*"])
async def test_another_content_type_is_415(stack: Stack, kind: str) -> None:
    answer = await stack.ask("POST", CHAT, data=QUESTION, headers={"content-type": kind})
    assert "application/json" in refused(answer, 415)


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON"])
async def test_json_content_types_are_read(stack: Stack, kind: str) -> None:
    answer = await stack.ask("POST", CHAT, data=QUESTION, headers={"content-type": kind, **PINNED})
    assert (200, STABLE) == (answer.status, answer.target)


async def test_absent_content_type_is_read_as_json(stack: Stack) -> None:
    good, bad = await exchange(stack, chat_bytes(QUESTION)), await exchange(stack, chat_bytes(b'{"model": "nobody"}'))
    assert b"HTTP/1.1 200 OK" == good.partition(b"\r\n")[0]
    assert b"HTTP/1.1 404 Not Found" == bad.partition(b"\r\n")[0]


async def test_gzip_body_is_routed_by_headers(stack: Stack) -> None:
    headers = {"content-encoding": "gzip", **PINNED}
    answer = await stack.post(gzip.compress(QUESTION), headers)
    assert (200, STABLE) == (answer.status, answer.target)


async def test_broken_gzip_body_is_the_servers_to_refuse(stack: Stack) -> None:
    answer = await stack.post(b"not gzip", {"content-encoding": "gzip", **PINNED})
    assert (400, STABLE, "pinned") == (answer.status, answer.target, answer.reason)


@pytest.mark.parametrize("body", [b"", b"  \r\n"])
async def test_empty_body_is_400(stack: Stack, body: bytes) -> None:
    refused(await stack.post(body), 400)


async def test_declared_length_over_the_limit_is_413_before_the_body_is_sent(stack: Stack) -> None:
    head = b"content-type: application/json\r\ncontent-length: 67108865\r\n"
    answer = await exchange(stack, b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: test\r\n" + head + b"\r\n")
    assert 413 == status_of(answer)


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{", 400),
        ("application/json", b"", 400),
        ("text/plain", QUESTION, 415),
        ("application/json", bytes((64 << 20) + 1), 413),
        ("application/json", b'{"model": "nobody"}', 404),
    ],
    ids=["broken", "empty", "type", "large", "model"],
)
async def test_refusals_say_that_they_are_refusals(stack: Stack, kind: str, body: bytes, status: int) -> None:
    answer = await stack.ask("POST", CHAT, data=body, headers={"content-type": kind})
    assert (status, "refused") == (answer.status, answer.reason)
    assert "x-pointsman-target" not in answer.headers


# ---- what HTTP says


def chat_bytes(body: bytes, *lines: bytes) -> bytes:
    head = [b"POST %s HTTP/1.1" % CHAT.encode(), b"host: test", b"content-length: %d" % len(body), *lines]
    return b"\r\n".join([*head, b"connection: close", b"", body])


async def exchange(stack: Stack, request: bytes) -> bytes:
    """Send bytes; return all that comes until the other side closes, or for a refusal until its body is there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    try:
        writer.write(request)
        async with asyncio.timeout(15):
            got = b""
            while piece := await reader.read(65_536):
                got += piece
                head, end, body = got.partition(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if end and length and len(body) >= int(length[0].partition(b":")[2]):
                    break
            return got
    finally:
        writer.close()


def status_of(answer: bytes) -> int:
    """Check a raw refusal's shape; return its status."""
    head, _, body = answer.partition(b"\r\n\r\n")
    start, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    error_message(body, headers["content-type"])
    return int(start.split()[1])


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((b"x-intent: ch\x01at",), 400),
        ((b"x-intent: ch\x00at",), 400),
        ((b"bad name: x",), 400),
        ((b"no colon",), 400),
        ((b": empty",), 400),
        ((b"content-length: 7",), 400),
        ((b"content-length: -1",), 400),
        ((b"content-length: two",), 400),
        ((b"transfer-encoding: chunked", b"content-length: 0"), 400),
        ((b"transfer-encoding: gzip",), 400),
        ((b"x-large: " + b"a" * 70_000,), 431),
        (tuple(b"x-%d: a" % number for number in range(300)), 431),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_http_that_cannot_be_trusted_is_refused(stack: Stack, lines: tuple[bytes, ...], status: int) -> None:
    answer = await exchange(stack, chat_bytes(QUESTION, b"content-type: application/json", *lines))
    assert status == status_of(answer)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nhost: test\r\n\r\n", 426),
        (b"GET / HTTP/1.0\r\n\r\n", 426),
        (b"BREW /v1/models HTTP/1.1\r\nhost: test\r\n\r\n", 400),
        (b"GET /v1/mo\x00dels HTTP/1.1\r\nhost: test\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400),
    ],
    ids=["no request", "no host", "HTTP/9.9", "HTTP/1.0", "method", "path", "TLS"],
)
async def test_what_is_no_http_is_refused(stack: Stack, request_bytes: bytes, status: int) -> None:
    assert status == status_of(await exchange(stack, request_bytes))


async def test_no_second_request_hides_behind_two_lengths(stack: Stack, mirror: Mirror) -> None:
    hidden = b"GET /mirror/hidden HTTP/1.1\r\nhost: test\r\n\r\n"
    chunked = b"0\r\n\r\n" + hidden
    smuggled = b"POST /mirror/open HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\ntransfer-encoding: chunked\r\n\r\n%s"
    assert 400 == status_of(await exchange(stack, smuggled % (len(chunked), chunked)))
    assert [] == [seen.path for seen in mirror.seen if seen.path == "/mirror/hidden"]


async def test_client_that_dribbles_its_headers_is_cut_and_others_are_served(stack: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    got: list[bytes] = []

    async def read_all() -> None:
        with contextlib.suppress(ConnectionResetError):  # what is written after the answer is answered so
            while piece := await reader.read(65_536):
                got.append(piece)

    cut = asyncio.ensure_future(read_all())
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\n")
    served = 0
    async with asyncio.timeout(30):
        while not cut.done():
            writer.write(b"x-%d: a\r\n" % served)
            answer = await stack.chat(PINNED)
            assert (200, STABLE) == (answer.status, answer.target)
            served += 1
            await asyncio.wait((cut,), timeout=0.2)
    writer.close()
    assert served > 10
    assert 408 == status_of(b"".join(got))
    assert b"method_not_allowed" not in b"".join(got)
