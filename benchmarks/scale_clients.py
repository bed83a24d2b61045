"""A part of the fleet's clients, in a process of its own: fake Envoys over Delta, each on its own connection.

`python scale_clients.py SOCKET` answers each command on its input with one line of JSON: `connect PREFIX N` (they stay
and follow what is published), `tally` (what arrived since the last tally), `churn PREFIX N NAMES` (connect, take the
whole snapshot, disconnect, N times under so many names), `leave` (all disconnect), `stop`. Every message is checked as
it arrives; a breach of the protocol ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Self

from grpc import aio
from pointsman.xds import api
from pointsman.xds.fake_client import CDS, EDS, LDS, RDS, FakeDeltaClient, FakeEnvoy, ProtocolChecker
from processor_time import processor_us

AT_A_TIME = 4
"""Clients of a churn that are connected at once, in one process."""

FOR_EVER_S = 3_600.0


class OwnConnection(FakeDeltaClient):
    """A client that shares its connection with nobody; gRPC would put all of a process on one."""

    async def __aenter__(self) -> Self:
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
        self._channel = aio.insecure_channel(self._target or "", options=options)
        self._call = self._channel.stream_stream(self.checker.METHOD)()
        return self


class Clients:
    """The clients of this process."""

    def __init__(self, socket: Path) -> None:
        """Connects nothing yet."""
        self._socket = socket
        self._followers: list[asyncio.Task[None]] = []
        self._tally: dict[str, int] = {}
        self._before_us = 0.0

    async def connect(self, prefix: str, count: int) -> dict[str, object]:
        """Connect clients that follow until `leave`."""
        self._followers = [asyncio.create_task(self._follow(f"{prefix}-{number}")) for number in range(count)]
        return {"connected": count}

    async def leave(self) -> dict[str, object]:
        """Disconnect all."""
        for follower in self._followers:
            follower.cancel()
        for ended in await asyncio.gather(*self._followers, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        self._followers = []
        return {"left": True}

    async def tally(self) -> dict[str, object]:
        """Return what arrived since the last tally, by type, and the processor time."""
        found, self._tally = self._tally, {}
        before_us, self._before_us = self._before_us, processor_us(os.getpid())
        return {"arrived": found, "processor_ms": (self._before_us - before_us) / 1e3}

    async def churn(self, prefix: str, count: int, names: int) -> dict[str, object]:
        """Connect, take the snapshot and disconnect, some at a time; a name's visits follow each other."""
        numbers = iter(range(count))

        async def one_after_another() -> None:
            for number in numbers:
                await self._visit(f"{prefix}-{number % names}")

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_A_TIME):
                group.create_task(one_after_another())
        return {"visits": count}

    async def _follow(self, node_id: str) -> None:
        envoy = FakeEnvoy(ProtocolChecker(node_id))
        async with OwnConnection(self._socket, envoy.checker) as client:
            await client.send(*envoy.start())
            while True:
                await self._take(client, envoy)

    async def _take(
        self,
        client: FakeDeltaClient,
        envoy: FakeEnvoy[api.DeltaDiscoveryRequest, api.DeltaDiscoveryResponse],
    ) -> None:
        response = await client.receive_raw(FOR_EVER_S)
        if response is None:
            raise ConnectionError("the server ended the stream")
        received, requests = envoy.take(response)
        for key, found in (
            (f"{received.type_url.label} responses", 1),
            (f"{received.type_url.label} resources", len(received.resources)),
            ("bytes", response.ByteSize()),
        ):
            self._tally[key] = self._tally.get(key, 0) + found
        await client.send(*requests)

    async def _visit(self, node_id: str) -> None:
        envoy = FakeEnvoy(ProtocolChecker(node_id))
        async with OwnConnection(self._socket, envoy.checker) as client:
            await client.send(*envoy.start())
            while not (envoy.checker.held(RDS) and envoy.checker.held(LDS)):
                await self._take(client, envoy)
            assert len(envoy.checker.held(CDS)) == len(envoy.checker.held(EDS)), "the snapshot arrived whole"


async def serve(socket: Path) -> None:
    """Answer commands until `stop`."""
    clients = Clients(socket)
    print(json.dumps({"ready": True}), flush=True)
    while True:
        words = (await asyncio.to_thread(sys.stdin.readline)).split()
        if not words or words[0] == "stop":
            break
        commands = {"connect": clients.connect, "tally": clients.tally, "churn": clients.churn, "leave": clients.leave}
        arguments = (words[1], *map(int, words[2:])) if len(words) > 1 else ()
        print(json.dumps(await commands[words[0]](*arguments)), flush=True)  # type: ignore[operator]
    with contextlib.suppress(asyncio.CancelledError):
        await clients.leave()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
