"""A finished request and its row's facts, as the sidecar would hand them over; each test changes what it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import pytest
from pointsman.otel.genai_span import Routed
from pointsman.router.entry import RequestEntry
from pointsman.router.policy import Endpoint, Intent, Model, Policy, Route, Version

ENTRY = RequestEntry(
    started_unix_ns=1_790_000_000_000_000_000,
    duration_ms=812.5,
    row="support/interactive",
    ladder="ladder>support-chat@v2.3-beta",
    target="support-chat@v2.3-beta",
    endpoint="127.0.0.1:9002",
    status=200,
    flags=(),
    details="via_upstream",
    attempts=1,
    method="POST",
    path="/v1/chat/completions",
    request_id="3f0f8e0c-6d1b-4b0e-9c61-5f1f0f5b2c55",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
    is_sampled=True,
    params={"model": "support-chat", "temperature": 0.7, "top_k": 40.0, "top_p": 1.0, "max_tokens": 64.0},
    input_tokens=120,
    output_tokens=61,
    response_model="support-chat",
    response_id="chatcmpl-7",
    finish_reasons=("stop",),
)

ROUTED = Routed(
    route="support",
    reason="canary",
    qos_class="interactive",
    intent="chat",
    provider="vllm",
    model="support-chat",
    is_canary=True,
    is_known_model=True,
)


class MakeEntry(Protocol):
    """Return the finished request with some fields changed."""

    def __call__(self, **changes: Any) -> RequestEntry: ...


class MakeRouted(Protocol):
    """Return the row's facts with some fields changed."""

    def __call__(self, **changes: Any) -> Routed: ...


@pytest.fixture
def entry() -> MakeEntry:
    return lambda **changes: replace(ENTRY, **changes)


@pytest.fixture
def routed() -> MakeRouted:
    return lambda **changes: replace(ROUTED, **changes)


@pytest.fixture
def policy() -> Policy:
    """Two models, three targets, one route."""
    return Policy(
        models=(
            Model(
                "support-chat",
                (Version("v2.2", _at(9001), ("support-chat",)), Version("v2.3-beta", _at(9002), ("support-chat",))),
                provider="vllm",
                intents=(Intent.CHAT, Intent.SUMMARIZE),
            ),
            Model("small-chat", (Version("v1", _at(9003), ("small-chat",)),), provider="vllm", intents=(Intent.CHAT,)),
        ),
        routes=(Route("support", ("support-chat",)),),
    )


def _at(port: int) -> tuple[Endpoint, ...]:
    return (Endpoint(f"127.0.0.1:{port}"),)
