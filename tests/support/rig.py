"""A real Envoy that our own control plane programs, with one small backend a target."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest_asyncio
from pointsman.router.build import build_table
from pointsman.router.policy import Policy, Settings
from pointsman.router.table import Table
from pointsman.sidecar.agent import MODULE
from pointsman.sidecar.envoy_binary import find_envoy
from pointsman.sidecar.envoy_process import EnvoyOptions, EnvoyProcess
from pointsman.sidecar.state_dir import StateDir
from pointsman.xds.ads import AdsServer
from pointsman.xds.bootstrap import BootstrapSpec, render_bootstrap
from pointsman.xds.render import Renderer
from pointsman.xds.snapshot import Snapshot
from wire import Backend, free_port

BACKENDS = 14
"""Targets that a generated policy may have."""


@dataclass
class Rig:
    """What a test drives: publish a policy, ask the listener."""

    ads: AdsServer
    ports: tuple[int, ...]
    settings: Settings
    renderer: Renderer = field(default_factory=lambda: Renderer(has_scanner=True))
    snapshot: Snapshot | None = None

    @property
    def port(self) -> int:
        return int(self.settings.listen.rpartition(":")[2])

    def prepare(self, policy: Policy) -> tuple[Table, Snapshot]:
        """Render a policy."""
        table = build_table(policy)
        rendered = self.renderer.render(table, policy.settings)
        snapshot = Snapshot.build(
            rendered.clusters,
            rendered.assignments,
            rendered.listeners,
            rendered.routes,
            static_clusters=("pointsman_xds", "pointsman_log"),
            previous=self.snapshot,
        )
        return table, snapshot

    async def publish(self, policy: Policy) -> Table:
        """Put the policy in force and wait until Envoy took it."""
        table, self.snapshot = self.prepare(policy)
        self.ads.publish(self.snapshot)
        answer = await self.ads.wait_acknowledged(self.snapshot, 20)
        assert not answer.refused, [node.last_refusal for node in self.ads.status()]
        return table


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with contextlib.AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(Backend()) for _ in range(BACKENDS)]
        settings = Settings(listen=f"127.0.0.1:{free_port()}")
        state = stack.enter_context(StateDir(tmp_path / "state", runtime=tmp_path / "run"))
        ads = AdsServer(state.xds_socket)
        rig = Rig(ads, tuple(backend.port for backend in backends), settings)
        _, rig.snapshot = rig.prepare(Policy(settings=settings))
        ads.publish(rig.snapshot)
        await ads.start()
        stack.push_async_callback(ads.stop, 0.1)

        def bootstrap(node_id: str) -> bytes:
            spec = BootstrapSpec(node_id, str(state.admin_socket), str(state.xds_socket), str(state.log_socket))
            return render_bootstrap(spec).SerializeToString(deterministic=True)

        options = EnvoyOptions(
            binary=find_envoy(os.environ),
            state=state,
            bootstrap=bootstrap,
            module=MODULE,
            concurrency=1,
        )
        await stack.enter_async_context(EnvoyProcess(options, lambda _: None))
        async with asyncio.timeout(100):
            yield rig
