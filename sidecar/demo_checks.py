"""What the demo sends, and what it expects to see: pins, split, stickiness, classes, refusals, streaming."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

CHAT = "/v1/chat/completions"
STABLE = "support-chat@v2.2"
CANARY = "support-chat@v2.3-beta"
CONTEXTS = 600
CANARY_SHARE = 0.05
SIGMAS = 4
"""How far the split may be off, in standard deviations: one false alarm in some 15,000 runs."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the demo's table."""

    what: str
    expected: str
    seen: str
    is_ok: bool

    @property
    def cells(self) -> tuple[str, str, str]:
        """The row's texts."""
        return self.what, self.expected, self.seen


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    target: str
    reason: str
    body: bytes

    @property
    def error(self) -> str:
        """The message of an error in the API's shape, or nothing."""
        try:
            return str(json.loads(self.body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return ""


@dataclass(frozen=True, slots=True)
class Demo:
    """A client of the sidecar."""

    session: aiohttp.ClientSession

    async def ask(
        self, headers: Mapping[str, str] | None = None, body: object = None, *, raw: bytes | None = None
    ) -> Answer:
        """Send one chat request."""
        question = {"model": "support-chat", "messages": [{"role": "user", "content": "Where is my parcel?"}]}
        if isinstance(body, dict):
            question |= body
        data = raw if raw is not None else json.dumps(question).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        async with self.session.post(CHAT, data=data, headers=sent) as response:
            return Answer(
                response.status,
                response.headers.get("x-served-by", "-"),
                response.headers.get("x-pointsman-reason", "-"),
                await response.read(),
            )


async def run_checks(demo: Demo) -> tuple[list[Check], str]:
    """Return the checks, and the trace id of the last request: the one to look at."""
    checks = [
        await _served(demo, "model-version: v2.3-beta", CANARY, "pinned", {"model-version": "v2.3-beta"}),
        await _served(demo, "model-version: v2.2", STABLE, "pinned", {"model-version": "v2.2"}),
        *await _split(demo),
        await _served(
            demo, "x-qos-class: batch", STABLE, "qos", {"x-qos-class": "batch", "x-context-id": await _stable_id(demo)}
        ),
        await _refused(demo, "model-version: v9", 404, {"model-version": "v9"}),
        await _refused(demo, "two different pins", 400, {"model-version": "v2.2", "model_version": "v2.3-beta"}),
        await _refused(demo, "unknown model", 404, None, b'{"model": "nobody"}'),
        await _refused(demo, "broken JSON", 400, None, b'{"model": '),
        await _refused(demo, "text/plain", 415, {"content-type": "text/plain"}),
        await _streamed(demo),
    ]
    trace_id = secrets.token_hex(16)
    answer = await demo.ask(
        {
            "traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01",
            "model-version": "v2.3-beta",
            "x-prompt-template": "refund-answer",
            "x-prompt-template-version": "7",
            "x-context-id": "customer-17",
        },
        {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "max_tokens": 64},
    )
    checks.append(Check("traced request", CANARY, answer.target, answer.target == CANARY))
    return checks, trace_id


async def _served(demo: Demo, what: str, target: str, reason: str, headers: Mapping[str, str]) -> Check:
    answer = await demo.ask(headers)
    seen = f"{answer.target} ({answer.reason})"
    return Check(what, f"{target} ({reason})", seen, seen == f"{target} ({reason})")


async def _refused(
    demo: Demo, what: str, status: int, headers: Mapping[str, str] | None, raw: bytes | None = None
) -> Check:
    answer = await demo.ask(headers, raw=raw)
    return Check(
        what,
        f"{status} with the API's error object",
        f"{answer.status} {answer.error[:60]}",
        answer.status == status and bool(answer.error),
    )


async def _split(demo: Demo) -> list[Check]:
    sides = {key: (await demo.ask({"x-context-id": f"ctx-{key}"})).target for key in range(CONTEXTS)}
    again = {key: (await demo.ask({"x-context-id": f"ctx-{key}"})).target for key in range(0, CONTEXTS, 3)}
    on_canary = sum(target == CANARY for target in sides.values())
    wanted = CONTEXTS * CANARY_SHARE
    margin = SIGMAS * math.sqrt(wanted * (1 - CANARY_SHARE))
    moved = sum(sides[key] != target for key, target in again.items())
    return [
        Check(
            f"{CONTEXTS} contexts, weight 5",
            f"{wanted:.0f} ± {margin:.0f} on the canary",
            f"{on_canary} on the canary",
            abs(on_canary - wanted) <= margin and set(sides.values()) <= {STABLE, CANARY},
        ),
        Check(f"{len(again)} of them again", "0 changed sides", f"{moved} changed sides", moved == 0),
    ]


async def _stable_id(demo: Demo) -> str:
    """A context id that the split leaves with the stable version."""
    for number in range(CONTEXTS):
        key = f"demo-{number}"
        if (await demo.ask({"x-context-id": key})).target == STABLE:
            return key
    return "demo"


async def _streamed(demo: Demo) -> Check:
    answer = await demo.ask({"model-version": "v2.2"}, {"stream": True, "stream_options": {"include_usage": True}})
    events = answer.body.count(b"data: ")
    ended = answer.body.rstrip().endswith(b"data: [DONE]")
    seen = f"{events} events, {'ends' if ended else 'does not end'} with [DONE]"
    return Check("stream: true", "events, ends with [DONE]", seen, ended and events > 2)
