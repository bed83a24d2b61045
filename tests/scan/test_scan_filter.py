"""scan.c in a real Envoy, filter `scan`: what clients, servers, routes and the access log see."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scan_lab
from scan_lab import JSON_PATH, Envoy, Script, Server

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_is_there")]

CONFIG = f"inspect_body_bytes=4194304\nbody_bytes=67108864\njson_path={JSON_PATH}\njson_path=/v1/embeddings\n"
SMALL = f"inspect_body_bytes=100000\nbody_bytes=200000\njson_path={JSON_PATH}\n"
JSON = {"content-type": "application/json"}
TOLD = [
    {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    for key, value in (
        ("x-pointsman-target", "%UPSTREAM_METADATA(pointsman:target)%"),
        ("x-pointsman-reason", "canary;arm=chat@v2;attempt=%UPSTREAM_REQUEST_ATTEMPT_COUNT%"),
    )
]


def routes() -> list[dict[str, Any]]:
    """Return rows by model; rows by path for the answers; the rest is an unknown model."""
    by_model = [
        {
            "name": model,
            "match": {"prefix": "/", "headers": [{"name": "x-pm-model", "string_match": {"exact": model}}]},
            "route": {"cluster": "server", "timeout": "0s"},
        }
        for model in ("m1", "m2", "auto")
    ]
    told = [
        {"name": path, "match": {"path": path}, "route": action, "response_headers_to_add": TOLD}
        for path, action in (
            ("/arm", {"cluster": "chat@v2"}),
            ("/other", {"cluster": "chat@v1"}),
            ("/second", scan_lab.climbing("ladder", 2)),
            ("/nameless", {"cluster": "server"}),
            ("/dead", {"cluster": "dead"}),
        )
    ]
    unknown = {"match": {"prefix": "/"}, "direct_response": {"status": 404, "body": {"inline_string": "unknown model"}}}
    return [*told, *by_model, unknown]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The server behind Envoy."""
    with Server() as running:
        yield running


def start(config: str, server: Server, folder: Path) -> Any:
    """Run Envoy with this configuration of the module."""
    clusters = [
        scan_lab.cluster("server", server.port),
        scan_lab.cluster("chat@v2", server.port, target="chat@v2"),
        scan_lab.cluster("chat@v1", server.port, target="chat@v1"),
        scan_lab.cluster("dead", 9, target="chat@v2"),
        scan_lab.ladder("ladder", ["chat@v1", "chat@v2"], []),
    ]
    static = scan_lab.bootstrap(routes(), clusters, scan_lab.module("scan", config), folder)
    return scan_lab.running(static, folder)


@pytest.fixture(scope="module")
def envoy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    """Envoy with the module as it ships."""
    with start(CONFIG, server, tmp_path_factory.mktemp("envoy")) as running:
        yield running


@pytest.fixture(scope="module")
def small(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    """Envoy with the module set to small bodies."""
    with start(SMALL, server, tmp_path_factory.mktemp("small")) as running:
        yield running


def pieces(body: bytes, size: int) -> Iterator[bytes]:
    """Cut a body; sent chunked."""
    return iter([body[i : i + size] for i in range(0, len(body), size)])


def test_module_loads_without_a_warning(envoy: Envoy) -> None:
    assert "module" not in envoy.log.read_text().lower()


# ---- requests ----


@pytest.mark.parametrize(
    ("body", "route"),
    [
        (b'{"model":"m1"}', "m1"),
        (b'{"mo\\u0064el":"m\\u0032"}', "m2"),
        (b'{"model":"m1","model":"m2"}', "m2"),
        (b'{"model":"auto"}', "auto"),
        (b'{"messages":[]}', "auto"),
        (b'{"model":"nobody"}', None),
        (b'{"model":"m1 "}', None),
        (b'{"model":""}', None),
        (b'{"model":"m1\\u0000"}', None),
        ('{"model":"m\U0001f600"}'.encode(), None),
        (b'{"temperature":1e400,"x":"\\ud800","model":"m1"}', "m1"),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_the_model_chooses_the_route(envoy: Envoy, body: bytes, route: str | None, *, chunked: bool) -> None:
    status, _, _ = envoy.request("POST", JSON_PATH, pieces(body, 5) if chunked else body, JSON)
    assert ((200 if route else 404), route) == (status, envoy.entry()["route"])


def test_body_reaches_the_server_byte_for_byte(envoy: Envoy, server: Server) -> None:
    body = b'\xef\xbb\xbf { "model" : "m1",\r\n "n":12345678901234567890, "f":1.0, "x":"\\u00e9\xc3\xa9" } \n'
    envoy.request("POST", JSON_PATH, body, JSON)
    assert (body, "m1") == (server.seen[-1].body, envoy.entry()["route"])


@pytest.mark.parametrize(
    "spoofed", [{"x-pm-model": "m2"}, {"x-pm-model": "?"}, {"x-pm-rewrite": "m2"}, {"x-pointsman-reason": "pinned"}]
)
def test_known_bug_23_body_wins_over_a_spoofed_header(envoy: Envoy, server: Server, spoofed: dict[str, str]) -> None:
    status, answer, _ = envoy.request("POST", JSON_PATH, b'{"model":"m1"}', JSON | spoofed)
    assert (200, "m1") == (status, envoy.entry()["route"])
    assert not any(name.startswith(("x-pm-", "x-pointsman-")) for name in (*server.seen[-1].headers, *answer))
    envoy.request("GET", JSON_PATH, None, spoofed)
    assert envoy.entry()["route"] == "auto"


def test_parameters_are_in_the_metadata_and_nothing_else_of_the_body(envoy: Envoy) -> None:
    body = {
        "model": "m1",
        "messages": [{"role": "user", "content": "secret"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "max_tokens": 1,
        "max_completion_tokens": 2,
        "frequency_penalty": -1,
        "presence_penalty": 0,
        "seed": 9007199254740993,
        "n": 1,
        "stream": False,
        "stop": ["a", "b"],
        "reasoning_effort": "low",
        "user": "secret",
    }
    envoy.request("POST", JSON_PATH, json.dumps(body).encode(), JSON)
    expected = {key: str(value) for key, value in body.items() if key not in ("messages", "user", "stop")}
    del expected["max_completion_tokens"]
    assert expected | {"max_tokens": "2", "stop_count": "2", "stream": "0"} == envoy.said()


@pytest.mark.parametrize(
    ("body", "message", "details"),
    [
        (b"", "request body: expected a JSON object, found nothing", "pointsman_body_empty"),
        (b" \n", "request body: expected a JSON object, found nothing", "pointsman_body_empty"),
        (b"[1]", "request body: expected a JSON object, found an array", "pointsman_body_not_object"),
        (b'"secret"', "request body: expected a JSON object, found a string", "pointsman_body_not_object"),
        (b"null", "request body: expected a JSON object, found null", "pointsman_body_not_object"),
        (b"secret", "request body: expected JSON, found an error at byte 0", "pointsman_body_malformed"),
        (b'{"a":secret}', "request body: expected JSON, found an error at byte 5", "pointsman_body_malformed"),
        (b'{"a":"secret', "request body: expected JSON, found its end after 12 bytes", "pointsman_body_malformed"),
        (b'{"a":"\xff"}', "request body: expected UTF-8", "pointsman_body_malformed"),
        (b'{"a":' + b"[" * 600, "request body: expected at most 512 levels of nesting", "pointsman_body_too_deep"),
        (b'{"model":null}', "request body: model: expected a string", "pointsman_body_model"),
        (
            b'{"model":"' + b"s" * 1025 + b'"}',
            "request body: model: expected at most 1024 bytes",
            "pointsman_body_model",
        ),
    ],
    ids=lambda value: repr(value)[:30],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_refusals(envoy: Envoy, body: bytes, message: str, details: str, *, chunked: bool) -> None:
    status, headers, answer = envoy.request("POST", JSON_PATH, pieces(body, 7) if chunked else body, JSON)
    entry = envoy.entry()
    assert (400, details) == (status, entry["details"])
    assert {"error": {"message": message}} == json.loads(answer)
    assert headers["content-type"] == "application/json"
    assert not entry["metadata"]


def test_a_broken_body_is_refused_at_its_end(envoy: Envoy) -> None:
    body = b'{"a":x' + b"y" * 3_000_000
    status, _, _ = envoy.request("POST", JSON_PATH, pieces(body, 50_000), JSON)
    assert (400, "pointsman_body_malformed") == (status, envoy.entry()["details"])


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", JSON_PATH, {}, 400),
        ("PUT", JSON_PATH, {}, 400),
        ("POST", f"{JSON_PATH}?a=b", {}, 400),
        ("GET", JSON_PATH, {}, 200),
        ("DELETE", JSON_PATH, {}, 200),
        ("POST", "/elsewhere", JSON, 200),
    ],
)
def test_requests_without_a_body(envoy: Envoy, method: str, path: str, headers: dict[str, str], status: int) -> None:
    assert status == envoy.request(method, path, None, headers)[0]
    assert (status == 400) == (envoy.entry()["details"] == "pointsman_body_empty")


@pytest.mark.parametrize(
    ("path", "content_type", "outcome"),
    [
        (JSON_PATH, None, "m1"),
        (f"{JSON_PATH}?api-version=1", None, "m1"),
        (JSON_PATH, "Application/JSON; charset=utf-8", "m1"),
        (JSON_PATH, "application/vnd.api+json", "m1"),
        (JSON_PATH, "text/plain", 415),
        (JSON_PATH, "multipart/form-data; boundary=x", 415),
        ("/elsewhere", "application/json", "m1"),
        ("/elsewhere", "text/plain", "auto"),
        ("/elsewhere", None, "auto"),
        (f"{JSON_PATH}/", "text/plain", "auto"),
        (JSON_PATH, "application/grpc", "auto"),
    ],
)
def test_what_is_read_as_json(envoy: Envoy, path: str, content_type: str | None, outcome: str | int) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    status, _, answer = envoy.request("POST", path, b'{"model":"m1"}', headers)
    entry = envoy.entry()
    if outcome == 415:
        assert (415, "pointsman_body_media_type") == (status, entry["details"])
        assert {"error": {"message": "request content-type: expected application/json"}} == json.loads(answer)
    else:
        assert (200, outcome) == (status, entry["route"])


@pytest.mark.parametrize("path", [JSON_PATH, "/elsewhere"])
def test_encoded_bodies_are_routed_by_headers(envoy: Envoy, server: Server, path: str) -> None:
    body = gzip.compress(b'{"model":"m1"}')
    status, _, _ = envoy.request("POST", path, body, JSON | {"content-encoding": "gzip"})
    assert (200, "auto", body) == (status, envoy.entry()["route"], server.seen[-1].body)


def test_identity_is_no_encoding(envoy: Envoy) -> None:
    envoy.request("POST", JSON_PATH, b'{"model":"m1"}', JSON | {"content-encoding": "identity"})
    assert envoy.entry()["route"] == "m1"


@pytest.mark.parametrize(("size", "route"), [(4_000_000, "m1"), (5_000_000, "auto"), (20_000_000, "auto")])
@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_pass_whole(envoy: Envoy, server: Server, size: int, route: str, *, chunked: bool) -> None:
    head = b'{"model":"m1","x":"'
    body = head + b"a" * (size - len(head) - 2) + b'"}'
    status, _, _ = envoy.request("POST", JSON_PATH, pieces(body, 65_536) if chunked else body, JSON)
    assert (200, route) == (status, envoy.entry()["route"])
    assert body == server.seen[-1].body


@pytest.mark.parametrize(("path", "headers"), [(JSON_PATH, JSON), ("/elsewhere", {"content-type": "text/plain"})])
@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_over_the_limit_are_refused(small: Envoy, path: str, headers: dict[str, str], *, chunked: bool) -> None:
    body = b'{"model":"m1","x":"' + b"a" * 199_979 + b'"}'
    assert len(body) == 200_000
    assert small.request("POST", path, pieces(body, 9_000) if chunked else body, headers)[0] == 200
    assert small.entry()["route"] == "auto"
    body += b" "
    status, _, _ = small.request("POST", path, pieces(body, 9_000) if chunked else body, headers)
    assert (413, "pointsman_body_too_large") == (status, small.entry()["details"])


@pytest.mark.parametrize("size", [100_000, 100_001])
@pytest.mark.parametrize("piece", [1_000, 100_001])
def test_bodies_over_the_inspection_limit_are_routed_by_headers(small: Envoy, size: int, piece: int) -> None:
    body = b'{"model":"m1"}'.ljust(size)
    for sent in (body, pieces(body, piece)):
        assert small.request("POST", JSON_PATH, sent, JSON)[0] == 200
        assert ("m1" if size == 100_000 else "auto") == small.entry()["route"]


def raw(envoy: Envoy, request: bytes, enough: bytes) -> bytes:
    """Send bytes as they are and read until the answer holds `enough`."""
    with socket.create_connection(("127.0.0.1", envoy.port), timeout=scan_lab.WAIT_S) as connection:
        connection.sendall(request)
        answer = b""
        while enough not in answer:
            received = connection.recv(65536)
            if not received:
                break
            answer += received
        return answer


def head_of(method: str, *headers: str) -> bytes:
    """Return a request's head, of JSON content."""
    lines = [f"{method} {JSON_PATH} HTTP/1.1", "host: x", "content-type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize(("body", "status"), [(b'{"model":"m1"}', b"200"), (b"[]", b"400"), (b"", b"400")])
def test_trailers_end_a_body(envoy: Envoy, body: bytes, status: bytes) -> None:
    head = head_of("POST", "transfer-encoding: chunked")
    chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    answer = raw(envoy, head + chunk + b"0\r\nx-trailer: 1\r\n\r\n", b"}")
    assert b"HTTP/1.1 " + status in answer
    assert ("m1" if status == b"200" else "auto") == envoy.entry()["route"]


@pytest.mark.parametrize("size", [1, 7, 20, 100_000])
def test_the_last_bytes_of_a_body_may_come_with_its_end(envoy: Envoy, server: Server, size: int) -> None:
    body = b'{"model":"m1","x":"' + b"a" * 20 + b'","y":"z"}'
    scan_lab.http2_post(envoy.port, JSON_PATH, list(pieces(body, size)), JSON)
    entry = envoy.entry()
    assert (200, "m1", body) == (entry["code"], entry["route"], server.seen[-1].body)


@pytest.mark.parametrize("body", [b"", b'{"model":1}', b'{"model":"m1"'])
def test_refusals_over_http2(envoy: Envoy, body: bytes) -> None:
    scan_lab.http2_post(envoy.port, JSON_PATH, [body[:5], body[5:]], JSON)
    assert envoy.entry()["code"] == 400


def test_websocket_upgrade_with_a_json_content_type_passes(envoy: Envoy) -> None:
    answer = raw(envoy, head_of("GET", "connection: upgrade", "upgrade: websocket") + b"hello", b"echo:hello")
    assert answer.startswith(b"HTTP/1.1 101")
    assert answer.endswith(b"echo:hello")
    entry = envoy.entry()
    assert ("auto", {}) == (entry["route"], scan_lab.columns(entry))


# ---- answers ----


def answer(envoy: Envoy, server: Server, script: Script) -> tuple[bytes, dict[str, str]]:
    """Let the server give this answer; return what the client got and what the module said."""
    server.answers["/answer"] = script
    _, _, body = envoy.request("GET", "/answer")
    return body, envoy.said()


SSE = (("content-type", "text/event-stream"),)
STREAM = (
    b'data: {"id":"c-1","model":"m-1","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":26,"completion_tokens":8,"total_tokens":34}}\n\n'
    b"data: [DONE]\n\n"
)
FOUND = {
    "response_id": "c-1",
    "response_model": "m-1",
    "finish_reasons": "stop",
    "input_tokens": "26",
    "output_tokens": "8",
    "stream_done": "1",
}


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_sse_answer_in_pieces(envoy: Envoy, server: Server, size: int) -> None:
    body, said = answer(envoy, server, Script(headers=SSE, pieces=tuple(pieces(STREAM, size))))
    first_chunk_ns = int(said.pop("first_chunk_ns"))
    assert (STREAM, FOUND) == (body, said)
    assert 0 < first_chunk_ns < 5_000_000_000


def test_first_chunk_is_the_first_of_the_body_not_the_head(envoy: Envoy, server: Server) -> None:
    _, said = answer(envoy, server, Script(headers=SSE, pieces=(STREAM,), delay_s=0.2))
    assert int(said["first_chunk_ns"]) >= 200_000_000


def test_sse_answer_that_ends_without_done(envoy: Envoy, server: Server) -> None:
    _, said = answer(envoy, server, Script(headers=SSE, pieces=(STREAM.replace(b"data: [DONE]", b""),)))
    assert "stream_done" not in said
    assert said["output_tokens"] == "8"


def test_json_answer(envoy: Envoy, server: Server) -> None:
    text = json.dumps(
        {
            "id": "c-1",
            "model": "m-1",
            "choices": [{"finish_reason": "stop"}, {"finish_reason": "length"}],
            "usage": {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
        }
    ).encode()
    body, said = answer(envoy, server, Script(headers=tuple(JSON.items()), pieces=tuple(pieces(text, 10))))
    expected = {
        "response_id": "c-1",
        "response_model": "m-1",
        "finish_reasons": "stop,length",
        "input_tokens": "1",
        "output_tokens": "2",
        "cached_tokens": "3",
        "reasoning_tokens": "4",
    }
    assert (text, expected) == (body, said)


def test_large_json_answer_passes_whole(envoy: Envoy, server: Server) -> None:
    vectors = [{"embedding": [0.015625] * 100_000}, {"embedding": [-0.5] * 100_000}]
    text = json.dumps({"data": vectors, "usage": {"prompt_tokens": 9}}).encode()
    body, said = answer(envoy, server, Script(headers=tuple(JSON.items()), pieces=tuple(pieces(text, 60_000))))
    assert (text, {"input_tokens": "9"}) == (body, said)


@pytest.mark.parametrize(
    "headers",
    [
        (("content-type", "text/plain"),),
        (),
        (("content-type", "text/event-stream"), ("content-encoding", "gzip")),
        (("content-type", "application/json"), ("content-encoding", "br")),
    ],
)
def test_other_answers_are_left_alone(envoy: Envoy, server: Server, headers: tuple[tuple[str, str], ...]) -> None:
    body, said = answer(envoy, server, Script(headers=headers, pieces=(STREAM,)))
    assert (STREAM, {}) == (body, said)


def test_known_bug_4_encoded_error_passes_unchanged(envoy: Envoy, server: Server) -> None:
    body = gzip.compress(b'{"error":{"code":429,"message":"quota"}}')
    headers = (("content-type", "application/json"), ("content-encoding", "gzip"))
    server.answers["/answer"] = Script(status="429 Too Many Requests", headers=headers, pieces=(body,))
    status, got, received = envoy.request("GET", "/answer")
    envoy.entry()
    assert (429, "gzip", body) == (status, got["content-encoding"], received)


def test_tokens_of_a_client_that_left_early_are_kept(envoy: Envoy, server: Server) -> None:
    event = b'data: {"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
    endless = (event, *[b"data: " + b"x" * 60_000 + b"\n\n"] * 500)
    server.answers["/answer"] = Script(headers=SSE, pieces=endless)
    body = b'{"model":"m1","n":1}'
    head = f"POST /answer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    raw(envoy, head.encode() + body, b"xxxx")
    said = envoy.said()
    assert int(said.pop("first_chunk_ns")) > 0
    assert {"model": "m1", "n": "1", "input_tokens": "3", "output_tokens": "1"} == said


# ---- however a request ends, what it asked for is in the log ----

ASKED = b'{"model":"m1","temperature":0.50,"stream":true}'
ASKED_SAYS = {"model": "m1", "temperature": "0.50", "stream": "1"}


def test_request_and_answer_are_told_together(envoy: Envoy, server: Server) -> None:
    server.answers["/told"] = Script(headers=SSE, pieces=(STREAM,))
    scan_lab.http2_post(envoy.port, "/told", [ASKED], JSON)
    said = envoy.said()
    assert int(said.pop("first_chunk_ns")) > 0
    assert ASKED_SAYS | FOUND == said


@pytest.mark.parametrize(
    ("status", "headers"), [("503 Service Unavailable", ()), ("200 OK", (("content-type", "text/plain"),))]
)
def test_request_whose_answer_says_nothing(
    envoy: Envoy, server: Server, status: str, headers: tuple[tuple[str, str], ...]
) -> None:
    server.answers["/says-nothing"] = Script(status=status, headers=headers, pieces=(b"hello",))
    envoy.request("POST", "/says-nothing", ASKED, JSON)
    assert ASKED_SAYS == envoy.said()


def test_request_whose_server_cannot_be_reached(envoy: Envoy) -> None:
    assert envoy.request("POST", "/dead", ASKED, JSON)[0] == 503
    assert ASKED_SAYS == envoy.said()


def test_request_that_envoy_answers_itself(envoy: Envoy) -> None:
    assert envoy.request("POST", JSON_PATH, b'{"model":"nobody"}', JSON)[0] == 404
    assert {"model": "nobody"} == envoy.said()


def test_request_whose_client_left_before_the_first_chunk(envoy: Envoy, server: Server) -> None:
    server.answers["/slow"] = Script(headers=SSE, pieces=(b"data: x\n\n",), delay_s=60)
    head = f"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(ASKED)}\r\n\r\n"
    raw(envoy, head.encode() + ASKED, b"HTTP/1.1 200")
    assert ASKED_SAYS == envoy.said()


def test_name_that_no_policy_can_have_is_not_told(envoy: Envoy) -> None:
    envoy.request("POST", JSON_PATH, b'{"model":"m1\\nm2","n":1,"reasoning_effort":"a\\nb"}', JSON)
    assert {"n": "1"} == envoy.said()


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_request_without_a_body_says_nothing(envoy: Envoy, method: str) -> None:
    envoy.request(method, "/elsewhere")
    assert {} == envoy.said()


# ---- the reason ----


@pytest.mark.parametrize(
    ("path", "target", "reason"),
    [
        ("/arm", "chat@v2", "canary"),
        ("/other", "chat@v1", "fallback;attempt=1"),
        ("/second", "chat@v2", "canary;attempt=2"),
        ("/nameless", None, "fallback;attempt=1"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_reason_says_who_answered(
    envoy: Envoy, server: Server, path: str, target: str | None, reason: str, method: str
) -> None:
    if path == "/second":
        server.fail_next("/second")
    _, headers, _ = envoy.request(method, path, b'{"model":"m1"}' if method == "POST" else None, JSON)
    envoy.entry()
    assert reason == headers["x-pointsman-reason"]
    assert headers.get("x-pointsman-target", "-") in (target or "-", target or "")


def test_reason_of_a_server_that_cannot_be_reached(envoy: Envoy) -> None:
    status, headers, _ = envoy.request("GET", "/dead")
    envoy.entry()
    assert status == 503
    assert ";arm=" not in headers.get("x-pointsman-reason", "")
