"""A hostile client of the agent's sockets, as a process of its own: `flood.py FOLDER MODE SEED SECONDS`.

Modes: garbage (bytes that are no HTTP/2), frames (an HTTP/2 opening and then garbage), unreadable (gRPC with bytes that
are no message), nodes (streams of many nodes that never acknowledge), requests (as many as one stream takes), names
(subscriptions to many names), refusals (every response is refused). Prints what it did as one JSON object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import grpc
from grpc import aio
from pointsman.xds.api import DeltaDiscoveryRequest, DeltaDiscoveryResponse

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
CLUSTERS = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
MODES = ("garbage", "frames", "unreadable", "nodes", "requests", "names", "refusals")
STREAMS = {"nodes": 400, "refusals": 20}
"""Streams at a time; the other modes use four."""


class Flood:
    """One mode for a time."""

    def __init__(self, folder: Path, mode: str, seed: int, seconds: float) -> None:
        self._folder = folder
        self._mode = mode
        self._random = Random(seed)
        self._until_s = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        """Flood until the time is over."""
        if self._mode in ("garbage", "frames"):
            work = [self._bytes(name) for name in ("xds.sock", "log.sock") for _ in range(4)]
        else:
            work = [self._streams(number) for number in range(STREAMS.get(self._mode, 4))]
        async with asyncio.timeout(max(0.0, self._until_s - time.monotonic()) + 5):
            await asyncio.gather(*work)

    @property
    def _goes_on(self) -> bool:
        return time.monotonic() < self._until_s

    async def _bytes(self, name: str) -> None:
        while self._goes_on:
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(0)
                loop = asyncio.get_running_loop()
                try:
                    await loop.sock_connect(raw, str(self._folder / name))
                    opening = PREFACE if self._mode == "frames" else b""
                    await loop.sock_sendall(raw, opening + self._random.randbytes(self._random.randint(1, 60_000)))
                    self.counts["connections"] += 1
                except OSError as error:
                    self.counts[type(error).__name__] += 1
            await asyncio.sleep(0.001)

    async def _streams(self, number: int) -> None:
        while self._goes_on:
            target = f"unix:{self._folder / 'xds.sock'}"
            async with aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.05, self._until_s - time.monotonic())):
                        await self._stream(channel, number)
            await asyncio.sleep(0.02)

    async def _stream(self, channel: aio.Channel, number: int) -> None:
        responses: asyncio.Queue[bytes] = asyncio.Queue(maxsize=100)
        method: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
        call = method(self._requests(number, responses))
        self.counts["streams"] += 1
        try:
            async for response in call:
                self.counts["responses"] += 1
                if self._mode == "refusals":
                    await responses.put(response)
        except aio.AioRpcError as error:
            self.counts[error.code().name] += 1

    async def _requests(self, number: int, responses: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
        first = DeltaDiscoveryRequest(type_url=CLUSTERS)
        first.node.id = f"hostile-{number}-{self._random.randrange(1_000_000)}"
        self.counts["requests"] += 1
        yield b"\xff" * 1_000 if self._mode == "unreadable" else first.SerializeToString()
        while self._goes_on:
            request = await self._next(number, responses)
            self.counts["requests"] += 1
            yield request.SerializeToString()

    async def _next(self, number: int, responses: asyncio.Queue[bytes]) -> DeltaDiscoveryRequest:
        request = DeltaDiscoveryRequest(type_url=CLUSTERS)
        if self._mode == "requests":
            request.response_nonce = "never given"
        elif self._mode == "names":
            request.resource_names_subscribe.extend(f"{number}-{self._random.random()}" for _ in range(500))
        elif self._mode == "refusals":
            response = DeltaDiscoveryResponse.FromString(await responses.get())
            request.response_nonce = response.nonce
            request.error_detail.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
            request.error_detail.message = "the hostile client refuses"
        else:
            await asyncio.sleep(0.5)
        return request


def main() -> None:
    folder, mode, seed, seconds = sys.argv[1:]
    flood = Flood(Path(folder), mode, int(seed), float(seconds))
    with contextlib.suppress(TimeoutError):
        asyncio.run(flood.run())
    print(json.dumps(flood.counts))


if __name__ == "__main__":
    main()
