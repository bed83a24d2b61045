"""Synthetic probes: does a server answer while no traffic is sent to it?

One small request straight to an endpoint, past Envoy: one token where the target generates, a short text where it
embeds, else a TCP connection. Any 2xx or 4xx is an answer (a 4xx is our question's fault); a 5xx, no answer in time, or
no connection is none. Half of a target's endpoints must answer. Sends no user data and reads no more than the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import aiohttp
from pointsman.router.intent import PATH_INTENTS
from pointsman.router.policy import GENERATING_INTENTS, Intent, Model, Policy, Version

PROBE_WITHIN_S = 2.0
"""A healthy server gives one token sooner; a slower one is not fit to be ramped."""

_PATHS = {intent: path for path, intent in reversed(PATH_INTENTS.items())}


class Prober:
    """Asks endpoints; one session for all."""

    def __init__(self) -> None:
        """Opens nothing yet."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Prober:
        """Open the session."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_WITHIN_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        if self._session is not None:
            await self._session.close()

    async def probe(self, targets: Iterable[str], policy: Policy) -> dict[str, bool]:
        """Return which of the targets answer; those that the policy does not name are left out."""
        found = {target: _find(policy, target) for target in targets}
        known = {target: pair for target, pair in found.items() if pair is not None}
        answers = await asyncio.gather(*(self._answers(*pair) for pair in known.values()))
        return dict(zip(known, answers, strict=True))

    async def _answers(self, model: Model, version: Version) -> bool:
        results = await asyncio.gather(*(self._ask(model, version, point.address) for point in version.endpoints))
        return bool(results) and 2 * sum(results) >= len(results)

    async def _ask(self, model: Model, version: Version, address: str) -> bool:
        question = question_of(model, version)
        try:
            if question is None:
                host, _, port = address.rpartition(":")
                async with asyncio.timeout(PROBE_WITHIN_S):
                    _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                writer.close()
                return True
            assert self._session is not None
            path, body = question
            async with self._session.post(f"http://{address}{path}", json=body) as response:
                return response.status < 500
        except (OSError, TimeoutError, aiohttp.ClientError):
            return False


def question_of(model: Model, version: Version) -> tuple[str, Mapping[str, object]] | None:
    """Return path and body of the smallest question that the model answers, or None where only a connection tells."""
    intents = model.intents or (Intent.CHAT,)
    name = version.accepts[0]
    if Intent.EMBED in intents:
        return _PATHS[Intent.EMBED], {"model": name, "input": "ping"}
    if intents == (Intent.COMPLETE,):
        return _PATHS[Intent.COMPLETE], {"model": name, "prompt": "ping", "max_tokens": 1}
    if GENERATING_INTENTS.intersection(intents):
        return _PATHS[Intent.CHAT], {"model": name, "messages": [{"role": "user", "content": "ping"}], "max_tokens": 1}
    return None


def _find(policy: Policy, target: str) -> tuple[Model, Version] | None:
    name, _, version_name = target.partition("@")
    model = policy.model(name)
    version = model.version(version_name) if model else None
    return (model, version) if model and version else None
