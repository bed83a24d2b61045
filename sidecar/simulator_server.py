"""The simulated model server's requests: receive, ask the pure parts, answer.

Faults (hang, reset, error) strike calls to the model and uploads, in this order, before the body is judged; /health,
/metrics, /v1/models, /_control and /_seen always work. A client that goes away gives its slot back. Called by
sidecar/simulator.py, which listens.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from typing import NoReturn

from aiohttp import WSMsgType, web
from pointsman.sidecar import simulator_answers as answers
from pointsman.sidecar.simulator_asks import MAX_BODY_BYTES as MAX_JSON_BYTES
from pointsman.sidecar.simulator_asks import Ask, AskRefused, Kind, read_ask, read_model, unpacked
from pointsman.sidecar.simulator_behaviour import Behaviour, ChangeRefused, Pace, changed, is_error_due, pace, rendered
from pointsman.sidecar.simulator_metrics import CONTENT_TYPE, Counters, Load, RequestRate, exposition, load_report
from pointsman.sidecar.simulator_prefixes import PrefixCache
from pointsman.sidecar.simulator_record import MAX_BODY_BYTES as MAX_SEEN_BYTES
from pointsman.sidecar.simulator_record import Record, SeenRequest
from pointsman.sidecar.simulator_slots import Slots

_KINDS = {kind.value: kind for kind in Kind}
_REALTIME_PATH = "/v1/realtime"
_MODELS_PATH = "/v1/models"
_BURST_BYTES = 65_536
"""An unpaced stream goes out in pieces of about this size: few writes, and a slow reader still holds it back."""

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The longest WebSocket message that is echoed."""


@dataclass(frozen=True, slots=True)
class _Body:
    """A request's body: the first bytes, up to what its reader needs, and how many there were."""

    kept: bytes
    total_bytes: int


class SimulatedServer:
    """One model server's state and its answer to every request. One event loop only."""

    def __init__(self, *, target: str, accepts: tuple[str, ...], behaviour: Behaviour) -> None:
        self._target = target
        self._own_model = target.partition("@")[0]
        self._accepts = accepts
        self._behaviour = behaviour
        self._started_unix_s = int(time.time())
        self._slots = Slots(behaviour.slots)
        self._counters = Counters()
        self._rate = RequestRate()
        self._record = Record()
        self._prefixes = PrefixCache()
        self._judged = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        path = request.path
        if path == "/_control":
            return await self._control(request)
        if path == "/_seen":
            return self._seen(request)
        arrived_s = time.perf_counter()
        is_read = request.method in ("GET", "HEAD")
        body = await _read_body(request, MAX_JSON_BYTES if path in _KINDS else MAX_SEEN_BYTES)
        seen_body = body.kept if len(body.kept) <= MAX_SEEN_BYTES else body.kept[:MAX_SEEN_BYTES]
        raw_path = request.raw_path
        self._record.add(SeenRequest(request.method, raw_path, request.raw_headers, seen_body, body.total_bytes))
        if not is_read:
            return await self._work(request, body, arrived_s)
        if path == _REALTIME_PATH:
            return await self._realtime(request)
        return self._read(request, path)

    # Control and reading

    async def _control(self, request: web.BaseRequest) -> web.Response:
        if request.method == "POST":
            body = await _read_body(request, MAX_SEEN_BYTES)
            try:
                change: object = json.loads(body.kept)
            except (ValueError, RecursionError):
                return self._error(400, "body: expected JSON, found something that does not parse")
            if not isinstance(change, dict):
                return self._error(400, "body: expected a JSON object at the top level")
            try:
                self._behaviour = changed(self._behaviour, change)
            except ChangeRefused as refused:
                return self._error(400, str(refused), param=refused.keys[0])
            self._slots.resize(self._behaviour.slots)
            if "errorRatio" in change:
                self._judged = 0
        elif request.method != "GET":
            return self._error(405, "/_control takes GET and POST")
        return self._json(json.dumps(rendered(self._behaviour)).encode())

    def _seen(self, request: web.BaseRequest) -> web.Response:
        if request.method == "DELETE":
            self._record.clear()
        elif request.method != "GET":
            return self._error(405, "/_seen takes GET and DELETE")
        return self._json(json.dumps(self._record.rendered()).encode())

    def _read(self, request: web.BaseRequest, path: str) -> web.Response:
        if path == "/health":
            return self._json(b'{"status":"ok"}')
        if path == "/metrics":
            text = exposition(self._counters, self._load(), self._own_model)
            return web.Response(body=text.encode(), headers={**self._headers(request), "content-type": CONTENT_TYPE})
        if path == _MODELS_PATH:
            return self._json(answers.models_body(self._accepts, created_unix_s=self._started_unix_s))
        name = path.removeprefix(_MODELS_PATH + "/")
        if name != path:
            if name in self._accepts:
                return self._json(answers.model_body(name, created_unix_s=self._started_unix_s))
            return self._error(404, f"The model `{name[:256]}` does not exist", code="model_not_found", param="model")
        if path in _KINDS:
            return self._error(405, f"{path} takes POST")
        return self._error(404, f"Not found: {request.method} {path[:256]}")

    # Work

    async def _work(self, request: web.BaseRequest, body: _Body, arrived_s: float) -> web.StreamResponse:
        self._rate.count(arrived_s)
        kind = _KINDS.get(request.path)
        reason = "abort"
        queued_s = time.perf_counter()
        try:
            async with self._slots.place():
                self._counters.queue.observe(time.perf_counter() - queued_s)
                response, reason = await self._answer(request, kind, body, arrived_s)
                return response
        finally:
            if kind is not None and reason in self._counters.finished:
                self._counters.finished[reason] += 1
                self._counters.latency.observe(time.perf_counter() - arrived_s)

    async def _answer(
        self, request: web.BaseRequest, kind: Kind | None, body: _Body, arrived_s: float
    ) -> tuple[web.StreamResponse, str]:
        """The answer and why it ended: a finish reason of the metrics, or "refused"."""
        behaviour = self._behaviour
        timing = pace(behaviour, self._slots.running)
        if await self._is_failing(request, behaviour):
            await _sleep(timing.headers_after_s)
            return self._error(behaviour.error_status, "simulated error", code="simulated"), "error"
        headers = self._headers(request, behaviour)
        if kind is None:
            await _sleep(timing.headers_after_s)
            return self._json(json.dumps({"bytesReceived": body.total_bytes}).encode(), headers), "stop"
        try:
            ask = self._read_ask(request, kind, body)
        except AskRefused as refused:
            return self._error(refused.status, refused.message, code=refused.code, param=refused.param), "refused"
        stamp = self._admit(ask)
        first_s = time.perf_counter() - arrived_s + timing.headers_after_s + timing.first_token_after_s
        if ask.is_streaming:
            response = await self._stream(request, ask, stamp, timing, headers)
        else:
            await _sleep(timing.whole_s(ask.output_tokens))
            response = self._json(answers.answer_body(ask, stamp), headers)
        self._counters.ttft.observe(first_s)
        self._counters.generation_tokens += answers.generated_tokens(ask)
        return response, ask.finish_reason

    async def _is_failing(self, request: web.BaseRequest, behaviour: Behaviour) -> bool:
        """Whether this request gets an error; does not return where it gets no answer at all."""
        if behaviour.hang:
            await _until_gone()
        if behaviour.reset_after_chunks == 0:
            await _reset(request)
        self._judged += 1
        return is_error_due(self._judged, behaviour.error_ratio)

    def _read_ask(self, request: web.BaseRequest, kind: Kind, body: _Body) -> Ask:
        if body.total_bytes > len(body.kept):
            raise AskRefused(413, f"body: over {MAX_JSON_BYTES} bytes")
        plain = unpacked(body.kept, request.headers.get("content-encoding"))
        return read_ask(kind, plain, own_model=self._own_model, accepts=self._accepts)

    def _admit(self, ask: Ask) -> answers.Stamp:
        """Count the prompt, cached or not, and stamp the answer."""
        is_hit = self._prefixes.visit(ask.prefix)
        cached_tokens = min(ask.prompt_tokens, len(ask.prefix.split())) if is_hit else 0
        self._counters.prompt_tokens += ask.prompt_tokens
        self._counters.prefix_queries += ask.prompt_tokens
        self._counters.prefix_hits += cached_tokens
        return answers.Stamp(secrets.token_hex(12), int(time.time()), cached_tokens)

    async def _stream(
        self, request: web.BaseRequest, ask: Ask, stamp: answers.Stamp, timing: Pace, headers: dict[str, str]
    ) -> web.StreamResponse:
        reset_after = self._behaviour.reset_after_chunks
        await _sleep(timing.headers_after_s)
        head = {**headers, "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        response = web.StreamResponse(headers=head)
        await response.prepare(request)
        if timing.is_immediate and reset_after is None:
            await _burst(response, ask, stamp)
        else:
            await _paced(request, response, ask, stamp, timing=timing, reset_after=reset_after)
        await response.write_eof()
        return response

    async def _realtime(self, request: web.BaseRequest) -> web.StreamResponse:
        socket_response = web.WebSocketResponse(max_msg_size=_MAX_MESSAGE_BYTES)
        socket_response.headers.update(self._headers(request, self._behaviour))
        if not socket_response.can_prepare(request).ok:
            return self._error(426, f"{_REALTIME_PATH} is a WebSocket: send its upgrade headers")
        if await self._is_failing(request, self._behaviour):
            return self._error(self._behaviour.error_status, "simulated error", code="simulated")
        try:
            read_model(request.query.get("model"), own_model=self._own_model, accepts=self._accepts)
        except AskRefused as refused:
            return self._error(refused.status, refused.message, code=refused.code, param=refused.param)
        await socket_response.prepare(request)
        async for message in socket_response:
            if message.type is WSMsgType.TEXT:
                await socket_response.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await socket_response.send_bytes(message.data)
        return socket_response

    # Answers

    def _load(self) -> Load:
        rate = self._rate.at(time.perf_counter())
        return Load(self._slots.running, self._slots.waiting, self._behaviour.slots, rate)

    def _headers(self, request: web.BaseRequest, behaviour: Behaviour | None = None) -> dict[str, str]:
        """The answer's own headers; `behaviour` is given where the model itself speaks."""
        headers = {"x-served-by": self._target}
        if behaviour is not None and behaviour.confidence is not None:
            headers["x-model-confidence"] = f"{behaviour.confidence:g}"
        if behaviour is not None and behaviour.entropy is not None:
            headers["x-model-logit-entropy"] = f"{behaviour.entropy:g}"
        wanted = request.headers.get("endpoint-load-metrics-format")
        report = load_report(self._load(), wanted) if wanted else None
        if report is not None:
            headers["endpoint-load-metrics"] = report
        return headers

    def _json(self, body: bytes, headers: dict[str, str] | None = None, *, status: int = 200) -> web.Response:
        whole = {**(headers or {"x-served-by": self._target}), "content-type": "application/json"}
        return web.Response(body=body, status=status, headers=whole)

    def _error(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> web.Response:
        return self._json(answers.error_body(message, status=status, code=code, param=param), status=status)


async def _read_body(request: web.BaseRequest, keep_bytes: int) -> _Body:
    """The whole body is read, as far as `keep_bytes` it is kept."""
    if not request.can_read_body:
        return _Body(b"", 0)
    if request.headers.get("expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = request.content
    kept: list[bytes] = []
    total_bytes = kept_bytes = 0
    while chunk := await content.readany():
        total_bytes += len(chunk)
        if kept_bytes < keep_bytes:
            kept.append(chunk[: keep_bytes - kept_bytes])
            kept_bytes += len(kept[-1])
    return _Body(kept[0] if len(kept) == 1 else b"".join(kept), total_bytes)


async def _burst(response: web.StreamResponse, ask: Ask, stamp: answers.Stamp) -> None:
    """Send a stream as fast as the reader takes it."""
    pieces: list[bytes] = []
    size_bytes = 0
    for event in answers.answer_events(ask, stamp):
        pieces.append(event.data)
        size_bytes += len(event.data)
        if size_bytes >= _BURST_BYTES:
            await response.write(b"".join(pieces))
            pieces.clear()
            size_bytes = 0
    if pieces:
        await response.write(b"".join(pieces))


async def _paced(
    request: web.BaseRequest,
    response: web.StreamResponse,
    ask: Ask,
    stamp: answers.Stamp,
    *,
    timing: Pace,
    reset_after: int | None,
) -> None:
    """Send a stream event by event, each token when it is due; choices speak at the same time."""
    loop = asyncio.get_running_loop()
    first_due_s = loop.time() + timing.first_token_after_s
    tokens = 0
    for number, event in enumerate(answers.answer_events(ask, stamp), start=1):
        if event.carries_token or not tokens:
            await _sleep(first_due_s + timing.token_every_s * (tokens // ask.choices) - loop.time())
        tokens += event.carries_token
        await response.write(event.data)
        if number == reset_after:
            await _reset(request)


async def _sleep(delay_s: float) -> None:
    if delay_s > 0:
        await asyncio.sleep(delay_s)


async def _reset(request: web.BaseRequest) -> NoReturn:
    """Reset the connection: what was written before still arrives, nothing after."""
    transport = request.transport
    if transport is not None:
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    await _until_gone()


async def _until_gone() -> NoReturn:
    """Wait until the client goes away or the server stops: both cancel the request's task."""
    while True:
        await asyncio.get_running_loop().create_future()
