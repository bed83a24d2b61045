"""A real Envoy that needs no agent: a state directory, a backend, a whole bootstrap; and one left by a killed agent."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from pointsman.sidecar.envoy_binary import find_envoy
from pointsman.sidecar.envoy_process import AgentEvent, EnvoyOptions
from pointsman.sidecar.state_dir import StateDir
from pointsman.sidecar.supervision import Timing
from pointsman.xds.api import Bootstrap, HttpConnectionManager, Router, pack
from pointsman.xds.clusters import split_address
from pointsman.xds.listeners import HCM


@dataclass(slots=True)
class Events:
    """What the agent was told, and a way to wait for it."""

    seen: list[AgentEvent] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, event: AgentEvent) -> None:
        self.seen.append(event)
        self.changed.set()

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.seen]

    async def until(self, holds: Callable[[Events], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds(self):
                self.changed.clear()
                await self.changed.wait()


@dataclass(frozen=True, slots=True)
class Backend:
    """A server whose answer to /stream begins, and ends when `finish` is set."""

    address: str
    finish: asyncio.Event


@dataclass(frozen=True, slots=True)
class Lab:
    """A state directory, a backend, and the address on which Envoy serves."""

    state: StateDir
    backend: Backend
    listen: str

    @property
    def url(self) -> str:
        return f"http://{self.listen}"

    def options(self, *, binary: Path | None = None, timing: Timing | None = None) -> EnvoyOptions:
        bootstrap = bootstrap_of(self.state.admin_socket, self.listen, self.backend.address).SerializeToString()
        timing = timing or Timing(drain_ms=10_000)
        return EnvoyOptions(binary or find_envoy({}), self.state, lambda _: bootstrap, concurrency=1, timing=timing)


def bootstrap_of(admin: Path, listen: str, backend: str) -> Bootstrap:
    """Return a whole configuration without an agent: the machinery here does not depend on xDS."""
    bootstrap = Bootstrap()
    bootstrap.admin.address.pipe.path = str(admin)
    bootstrap.admin.address.pipe.mode = 0o600
    manager = HttpConnectionManager(stat_prefix="pointsman")
    route = manager.route_config.virtual_hosts.add(name="all", domains=["*"]).routes.add()
    route.match.prefix = "/"
    route.route.cluster = "backend"
    route.route.timeout.FromSeconds(0)
    manager.http_filters.add(name="envoy.filters.http.router").typed_config.CopyFrom(pack(Router()))
    listener = bootstrap.static_resources.listeners.add(name="pointsman")
    host, port = split_address(listen)
    listener.address.socket_address.address = host
    listener.address.socket_address.port_value = port
    listener.filter_chains.add().filters.add(name=HCM).typed_config.CopyFrom(pack(manager))
    cluster = bootstrap.static_resources.clusters.add(name="backend")
    cluster.load_assignment.cluster_name = "backend"
    address = cluster.load_assignment.endpoints.add().lb_endpoints.add().endpoint.address.socket_address
    address.address, address.port_value = split_address(backend)
    return bootstrap


async def get(url: str) -> str:
    """Return the answer's body."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        async with session.get(url) as answer:
            return await answer.text()


def program(folder: Path, text: str) -> Path:
    """Write a Python program to be started in place of Envoy."""
    path = folder / "envoy"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    path.chmod(0o755)
    return path


async def left_by_a_killed_agent(lab: Lab, folder: Path, *, concurrency: int = 1) -> int:
    """Run an agent in a process of its own on the same directory, kill it once Envoy serves, return Envoy's pid."""
    bootstrap = folder / "given.pb"
    bootstrap.write_bytes(lab.options().bootstrap("any"))
    program = """
        import asyncio, os, sys
        from pathlib import Path
        from pointsman.sidecar.envoy_binary import find_envoy
        from pointsman.sidecar.envoy_process import EnvoyOptions, EnvoyProcess
        from pointsman.sidecar.state_dir import StateDir

        async def main():
            state = StateDir(Path(sys.argv[1]), runtime=Path(sys.argv[1]))
            bootstrap = Path(sys.argv[2]).read_bytes()
            options = EnvoyOptions(find_envoy({}), state, lambda _: bootstrap, concurrency=int(sys.argv[3]))
            async with EnvoyProcess(options, lambda event: None) as envoy:
                print(envoy.pid, flush=True)
                os.kill(os.getpid(), 9)

        asyncio.run(main())
    """
    lab.state.close()
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(program), str(lab.state.path), str(bootstrap), str(concurrency)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert agent.stdout is not None
    async with asyncio.timeout(20):
        pid = int(await agent.stdout.readline())
        assert await agent.wait() == -signal.SIGKILL
    return pid
