"""The whole product for tests: simulators and mirrors in this process, `pointsman run` with its Envoy beside it.

Decides places (a folder, free ports) and deadlines; the policy is the test's, with `${NAME}` for the ports. Refuses to
end well when the agent did not: its exit code is asserted, and what it logged is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import string
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDictProxy
from pointsman.otel.trace_receiver import TraceReceiver
from pointsman.sidecar.process_identity import living_envoys, send_signal
from pointsman.sidecar.simulator import SimulatorOptions, listening
from wire import free_port

READY_WITHIN_S = 60.0
STOPS_WITHIN_S = 20.0
CHAT = "/v1/chat/completions"
STABLE = "support-chat@v2.2"
CANARY = "support-chat@v2.3-beta"
SMALL = "small-chat@v1"

CANARY_SERVERS = {
    "STABLE": SimulatorOptions("127.0.0.1", 0, STABLE, ("support-chat",)),
    "CANARY": SimulatorOptions("127.0.0.1", 0, CANARY, ("support-chat",)),
    "SMALL": SimulatorOptions("127.0.0.1", 0, SMALL, ("small-chat", "support-chat")),
}

CANARY_POLICY = """
apiVersion: pointsman.dev/v1alpha1
kind: Model
metadata: {name: support-chat}
spec:
  provider: vllm
  intents: [chat, summarize]
  versions:
    - {name: v2.2, quality: 0.86, endpoints: [{address: "127.0.0.1:${STABLE}"}]}
    - {name: v2.3-beta, quality: 0.90, endpoints: [{address: "127.0.0.1:${CANARY}"}]}
---
apiVersion: pointsman.dev/v1alpha1
kind: Model
metadata: {name: small-chat}
spec:
  provider: vllm
  intents: [chat, summarize]
  versions:
    - {name: v1, quality: 0.6, accepts: [small-chat, support-chat], endpoints: [{address: "127.0.0.1:${SMALL}"}]}
---
apiVersion: pointsman.dev/v1alpha1
kind: Route
metadata: {name: support}
spec:
  match: {intents: [chat, summarize]}
  targets: [support-chat]
  qos:
    - {name: interactive, latencyBudgetMs: 120, minQuality: 0.8}
    - {name: batch, latencyBudgetMs: 5000}
  defaultQos: interactive
  canary: {model: support-chat, version: v2.3-beta, weight: ${WEIGHT}, stickBy: [x-context-id, x-session-id]}
  fallback: [{model: small-chat}, {canned: {status: 503, retryAfter: 7}}]
---
apiVersion: pointsman.dev/v1alpha1
kind: Settings
metadata: {name: default}
spec:
  listen: "127.0.0.1:${LISTEN}"
  admin: "127.0.0.1:${ADMIN}"
  tracing: {otlp: "127.0.0.1:${OTLP}", sampleRatio: 1.0}
  stateDir: "${STATE}"
  answerHeaders: ${ANSWER_HEADERS}
"""
"""A canary beside a stable version, with a lighter model and a canned answer as rungs."""

CANARY_VALUES: Mapping[str, object] = {"WEIGHT": 5, "ANSWER_HEADERS": "true"}


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> None:
    """Ask again until it holds; TimeoutError when it does not come to that."""
    async with asyncio.timeout(within_s):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Answer:
    """What a client got."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def target(self) -> str | None:
        """Who says that it answered: the server's own word, not the sidecar's."""
        return self.headers.get("x-served-by")

    @property
    def reason(self) -> str | None:
        return self.headers.get("x-pointsman-reason")

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Seen:
    """One request as a mirror got it; `body` is its first MiB, `sha256` is of all of it."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    body_bytes: int
    sha256: str

    def lines(self, name: str) -> list[str]:
        """Return the header's lines in order."""
        return [value for key, value in self.headers if key.lower() == name]


@dataclass
class Mirror:
    """A backend that tells what it got. Chat and /mirror answer with the body's hash, or with `status` and the body.

    `pieces` set: the answer is an event stream of these pieces, each written alone; from the second one on `go_on` is
    waited for.
    """

    name: str = "mirror"
    status: int = 200
    pieces: Sequence[bytes] = ()
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    def reset(self) -> None:
        """Answer 200 again, and forget what was seen."""
        self.status, self.pieces, self.answer_headers = 200, (), {}
        self.seen.clear()
        self.go_on.clear()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        digest, kept, size_bytes = hashlib.sha256(), bytearray(), 0
        async for piece in request.content.iter_any():
            digest.update(piece)
            size_bytes += len(piece)
            kept += piece[: (1 << 20) - len(kept)]
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.raw_headers)
        body = bytes(kept)
        self.seen.append(Seen(request.method, request.raw_path, headers, body, size_bytes, digest.hexdigest()))
        own = {"x-served-by": self.name, "server": "mirror/1", **self.answer_headers}
        if self.pieces:
            return await self._stream(request, own)
        if self.status >= 400:  # servers quote the prompt in their error texts
            return web.Response(status=self.status, body=body, headers={"content-type": "application/json", **own})
        told = {"bytes": size_bytes, "sha256": digest.hexdigest()}
        return web.json_response(told, status=self.status, headers=own)

    async def _stream(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **headers})
        await response.prepare(request)
        for number, piece in enumerate(self.pieces):
            if number == 1:
                await self.go_on.wait()
            await response.write(piece)
            await asyncio.sleep(0)  # each piece is a write of its own
        await response.write_eof()
        return response

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Mirror]:
        """Listen for the time of the block."""
        server = web.Server(self.handle, auto_decompress=False, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.5)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.port = int(runner.addresses[0][1])
            yield self
        finally:
            await runner.cleanup()


@dataclass
class Stack:
    """The product under a policy, its servers and a client; `values` is what `${NAME}` in the policy stands for."""

    folder: Path
    policy_text: str
    values: dict[str, object]
    session: aiohttp.ClientSession
    receiver: TraceReceiver
    process: asyncio.subprocess.Process | None = None

    @property
    def policy(self) -> Path:
        return self.folder / "policy.yaml"

    @property
    def log(self) -> Path:
        """What the agent says."""
        return self.folder / "agent.log"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(str(self.values["LISTEN"]))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.values['ADMIN']}"

    def write_policy(self, text: str | None = None, **values: object) -> None:
        """Put a policy into the file, in one step: another text, or the last one with other values."""
        self.policy_text = text or self.policy_text
        self.values.update(values)
        fresh = self.folder / "policy.new"
        fresh.write_text(string.Template(self.policy_text).substitute(self.values))
        fresh.replace(self.policy)

    async def apply_policy(self, text: str | None = None, **values: object) -> None:
        """Write a policy that differs from the one in force, and wait until Envoy has it."""
        before = await self.version()
        self.write_policy(text, **values)

        async def is_in_force() -> bool:
            version = await self.version()
            nodes = (await self.admin("/xds")).json()["nodes"]
            return version != before and all(node["acknowledgedSnapshot"] == version for node in nodes)

        try:
            await until(is_in_force)
        except TimeoutError:
            raise AssertionError(f"the policy did not come into force: {self.log_tail()}") from None

    async def version(self) -> str:
        """Return the version of the table in force."""
        return str((await self.admin("/readyz")).json()["version"])

    async def admin(self, path: str, **options: Any) -> Answer:
        """GET a page of the admin server."""
        return await self._ask("GET", self.admin_url + path, options)

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        """Send any request through the sidecar; `options` are aiohttp's."""
        return await self._ask(method, self.url + path, options)

    async def chat(self, headers: Mapping[str, str] | None = None, **body: object) -> Answer:
        """Send a chat request, about `support-chat` unless `body` says otherwise."""
        question = {"model": "support-chat", "messages": [{"role": "user", "content": "Where is my parcel?"}], **body}
        return await self.ask("POST", CHAT, json=question, headers=headers)

    async def post(self, raw: bytes, headers: Mapping[str, str] | None = None, path: str = CHAT) -> Answer:
        """Send bytes as a JSON body."""
        return await self.ask("POST", path, data=raw, headers={"content-type": "application/json", **(headers or {})})

    async def control(self, server: str, **change: object) -> None:
        """Change how a simulated server behaves."""
        answer = await self._ask("POST", f"http://127.0.0.1:{self.values[server]}/_control", {"json": change})
        assert answer.status == 200, answer.body

    async def seen(self, server: str) -> list[dict[str, Any]]:
        """Return the requests that a simulated server got since `forget`."""
        requests: list[dict[str, Any]] = (await self._server(server, "GET")).json()["requests"]
        return requests

    async def forget(self, *servers: str) -> None:
        """Empty the records of simulated servers."""
        for server in servers:
            await self._server(server, "DELETE")

    def log_tail(self) -> str:
        """Return what the agent said last."""
        return self.log.read_text()[-2_000:].strip() or "no output"

    async def _server(self, server: str, method: str) -> Answer:
        return await self._ask(method, f"http://127.0.0.1:{self.values[server]}/_seen", {})

    async def _ask(self, method: str, url: str, options: dict[str, Any]) -> Answer:
        async with self.session.request(method, url, **options) as response:
            return Answer(response.status, response.headers, await response.read())


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    policy: str = CANARY_POLICY,
    *,
    servers: Mapping[str, SimulatorOptions] = CANARY_SERVERS,
    values: Mapping[str, object] = CANARY_VALUES,
    arguments: Sequence[str] = (),
    exit_code: int | None = 0,
) -> AsyncIterator[Stack]:
    """The product for the time of the block; afterwards SIGTERM, and its `exit_code` is asserted (None: any).

    The policy may name `${LISTEN}`, `${ADMIN}`, `${OTLP}`, `${STATE}`, a port by each server's name, and `values`.
    """
    async with contextlib.AsyncExitStack() as held:
        receiver = await held.enter_async_context(TraceReceiver())
        places: dict[str, object] = {
            "LISTEN": free_port(),
            "ADMIN": free_port(),
            "OTLP": receiver.port,
            "STATE": folder / "state",
        }
        for name, options in servers.items():
            address = await held.enter_async_context(listening(options))
            places[name] = int(address.rpartition(":")[2])
        session = await held.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=60),
                connector=aiohttp.TCPConnector(limit=0),
                auto_decompress=False,
            )
        )
        stack = Stack(folder, policy, places | dict(values), session, receiver)
        stack.write_policy()
        await start(stack, *arguments)
        is_well = False
        try:
            yield stack
            is_well = True
        finally:
            code = await stop(stack)
            if is_well and exit_code is not None:
                assert exit_code == code, f"pointsman run ended with {code}: {stack.log_tail()}"


async def start(stack: Stack, *arguments: str) -> None:
    """Start `pointsman run` and wait until it says that it is ready."""
    with stack.log.open("ab") as log:
        stack.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pointsman.sidecar", "run", "-c", str(stack.policy), *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    assert stack.process.stdout is not None
    try:
        line = await asyncio.wait_for(stack.process.stdout.readline(), READY_WITHIN_S)
    except TimeoutError:
        line = b""
    if not line.startswith(b"ready "):
        await stop(stack)
        raise AssertionError(f"pointsman run did not become ready: {stack.log_tail()}")


async def stop(stack: Stack) -> int:
    """End `pointsman run` by SIGTERM, and whatever it left behind by SIGKILL; return its exit code."""
    assert stack.process is not None
    with contextlib.suppress(ProcessLookupError):
        stack.process.send_signal(signal.SIGTERM)
    try:
        code = await asyncio.wait_for(stack.process.wait(), STOPS_WITHIN_S)
    except TimeoutError:
        stack.process.kill()
        code = await stack.process.wait()
    for record in living_envoys(stack.state / "envoy.pid"):
        send_signal(record.process, signal.SIGKILL)
    return code
