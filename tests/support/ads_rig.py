"""An ADS server on a real socket, its events, and clients of either variant that check the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from joined_stream import CHECKERS
from pointsman.xds.ads import AdsServer, ServerLimits
from pointsman.xds.fake_checker import Checker
from pointsman.xds.fake_client import CDS, EDS, LDS, RDS, FakeClient, FakeEnvoy
from pointsman.xds.snapshot import Resource, Snapshot
from pointsman.xds.status import EndReason, NodeDisconnected, XdsEvent


class Recorder:
    """Takes the server's events; a test waits for one of them."""

    def __init__(self) -> None:
        self.events: list[XdsEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: XdsEvent) -> None:
        self.events.append(event)
        self._changed.set()

    async def wait(self, matches: Callable[[XdsEvent], bool]) -> XdsEvent:
        """Return the first event for which it holds."""
        async with asyncio.timeout(5):
            while True:
                found = next((event for event in self.events if matches(event)), None)
                if found is not None:
                    return found
                await self.changed()

    async def changed(self) -> None:
        """Wait for the next event."""
        self._changed.clear()
        await self._changed.wait()

    async def end_of(self, node_id: str) -> EndReason:
        """Return why the node's stream ended."""
        event = await self.wait(lambda one: isinstance(one, NodeDisconnected) and one.identity.node_id == node_id)
        assert isinstance(event, NodeDisconnected)
        return event.reason


@asynccontextmanager
async def serving(
    path: Path, offered: Snapshot, events: Recorder, *, limits: ServerLimits | None = None
) -> AsyncIterator[AdsServer]:
    """Serve the snapshot on the folder's `ads.sock`."""
    server = AdsServer(path / "ads.sock", on_event=events, limits=limits)
    server.publish(offered)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


def checker_of(variant: str, node_id: str, **options: object) -> Checker:  # type: ignore[type-arg]
    """Return a client's checker of the variant."""
    return CHECKERS[variant](node_id, **options)  # type: ignore[arg-type]


def client_at(path: Path, checker: Checker) -> FakeClient:  # type: ignore[type-arg]
    """Return a client of the folder's server, not yet connected."""
    return FakeClient(path / "ads.sock", checker)


@asynccontextmanager
async def envoy_at(
    path: Path,
    node_id: str = "node",
    *,
    variant: str = "delta",
    before: FakeEnvoy | None = None,  # type: ignore[type-arg]
) -> AsyncIterator[tuple[FakeClient, FakeEnvoy]]:  # type: ignore[type-arg]
    """Connect a fake Envoy; `before` is what it was on its former stream."""
    envoy = FakeEnvoy(checker_of(variant, node_id, before=before.checker if before is not None else None))
    async with client_at(path, envoy.checker) as client:
        await client.send(*envoy.start())
        yield client, envoy


def holds(envoy: FakeEnvoy, offered: Snapshot) -> Callable[[], bool]:  # type: ignore[type-arg]
    """Return the claim that the Envoy has acknowledged just what the snapshot holds."""

    def check() -> bool:
        return all(
            {name: Resource.of(message).body for name, message in envoy.checker.held(kind).items()}
            == {name: resource.body for name, resource in offered.of(kind).items()}
            for kind in (CDS, EDS, LDS, RDS)
        )

    return check


@asynccontextmanager
async def beside_a_good_client(
    path: Path, events: Recorder, variant: str, *, limits: ServerLimits | None = None
) -> AsyncIterator[FakeClient]:  # type: ignore[type-arg]
    """Serve a good client and yield a bad one; after the test the good one must still be served."""
    from sample_resources import snapshot

    offered, changed = snapshot("a"), snapshot("a", ports={"a": 1})
    async with serving(path, offered, events, limits=limits) as server:
        async with envoy_at(path, "good", variant=variant) as (client, envoy):
            await client.follow(envoy, until=holds(envoy, offered))
            async with client_at(path, checker_of(variant, "bad")) as bad:
                yield bad
            server.publish(changed)
            await client.follow(envoy, until=holds(envoy, changed))
