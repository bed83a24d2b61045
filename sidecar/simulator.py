"""`pointsman simulate`: a model server that behaves like a real one, without a model.

Decides how the server listens and ends; what it answers is decided in simulator_server.py. Refuses a target without a
version and start values that /_control would refuse. Mounted by the command line; `demo` and tests use `listening`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web
from pointsman.sidecar.simulator_behaviour import BOUNDS, Behaviour, ChangeRefused, changed
from pointsman.sidecar.simulator_server import SimulatedServer

DEFAULT_KEEPALIVE_S = 5.0
"""uvicorn's, and so that of most Python model servers."""

_SHUTDOWN_S = 0.6
"""What a request in flight gets at the end, twice: once to finish, once to be cancelled. Keeps the end under 2 s."""

_BACKLOG = 1_024
"""Connections waiting to be accepted: a load generator opens hundreds at once."""

_FLAGS = {
    "latencyMs": "milliseconds before an answer's headers",
    "ttftMs": "milliseconds from there to the first token",
    "tokensPerSecond": "pace of the other tokens; 0: no pacing",
    "errorRatio": "part of the requests that fail, 0..1",
    "errorStatus": "status of those that fail",
    "confidence": "x-model-confidence of the answers, 0..1",
    "entropy": "x-model-logit-entropy of the answers",
    "resetAfterChunks": "reset streams after so many events; 0: every connection before the headers",
    "slots": "requests that run at a time; the rest wait in order",
}
"""Start values of what POST /_control changes; `hang` is a switch of its own."""


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """One simulated server. Port 0 takes a free one; `keepalive_s` is how long an idle connection stays open."""

    host: str
    port: int
    target: str
    accepts: tuple[str, ...]
    keepalive_s: float = DEFAULT_KEEPALIVE_S
    behaviour: Behaviour = field(default_factory=Behaviour)


class ListenFailed(RuntimeError):
    """The address could not be had; the text says which and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `simulate`'s arguments to `parser`."""
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where to listen; port 0: any free one")
    parser.add_argument("--target", required=True, metavar="MODEL@VERSION", help="who this server says it is")
    parser.add_argument("--accepts", nargs="+", metavar="NAME", help="model names served (default: the target's model)")
    parser.add_argument(
        "--keepalive-s", type=float, default=DEFAULT_KEEPALIVE_S, help="idle seconds before a connection is closed"
    )
    for key, text in _FLAGS.items():
        bounds = BOUNDS[key]
        kind = int if bounds is not None and bounds.is_whole else float
        parser.add_argument(_flag(key), dest=key, type=kind, metavar="N", help=text)
    parser.add_argument("--hang", action="store_true", help="accept requests and never answer")


def read_options(arguments: argparse.Namespace) -> SimulatorOptions:
    """The options that `arguments` name; raises ValueError with every problem in one line."""
    problems: list[str] = []
    host, port = _read_listen(arguments.listen, problems)
    model, separator, version = str(arguments.target).partition("@")
    if not (model and separator and version) or not arguments.target.isprintable() or not arguments.target.isascii():
        problems.append(f"--target: found {arguments.target!r}, expected MODEL@VERSION, such as support-chat@v2.2")
    if not 0 < arguments.keepalive_s <= 86_400:
        problems.append(f"--keepalive-s: found {arguments.keepalive_s:g}, expected seconds up to 86400")
    values: dict[str, object] = {key: getattr(arguments, key) for key in _FLAGS if getattr(arguments, key) is not None}
    behaviour = Behaviour()
    try:
        behaviour = changed(behaviour, {**values, "hang": arguments.hang})
    except ChangeRefused as refused:
        problems += [f"--{problem}" for problem in refused.problems]
    if problems:
        raise ValueError("; ".join(problems))
    accepts = tuple(dict.fromkeys(arguments.accepts or [model]))
    return SimulatorOptions(host, port, arguments.target, accepts, arguments.keepalive_s, behaviour)


@contextlib.asynccontextmanager
async def listening(options: SimulatorOptions) -> AsyncIterator[str]:
    """The server for the time of the block; yields its HOST:PORT. Raises ListenFailed."""
    simulated = SimulatedServer(target=options.target, accepts=options.accepts, behaviour=options.behaviour)
    server = web.Server(
        simulated.handle,
        handler_cancellation=True,  # a client that goes away must give its slot back
        keepalive_timeout=options.keepalive_s,
        auto_decompress=False,  # /_seen shows bodies as they came
        access_log=None,
    )
    runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.port, backlog=_BACKLOG).start()
        except OSError as error:
            where = _address(options.host, options.port)
            raise ListenFailed(f"listen {where}: {error.strerror or error}; choose another --listen") from error
        yield _address(options.host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def serve(options: SimulatorOptions) -> None:
    """Serve until cancelled; says on standard output where. Raises ListenFailed."""
    async with listening(options) as address:
        print(f"simulating {options.target} listen={address}", flush=True)
        await asyncio.Event().wait()


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. 0 after a clean end, 1 where the address cannot be had, 2 for wrong arguments."""
    try:
        options = read_options(arguments)
    except ValueError as error:
        print(f"pointsman simulate: {error}", file=sys.stderr)
        return 2
    return asyncio.run(_serve_until_signal(options))


async def _serve_until_signal(options: SimulatorOptions) -> int:
    loop = asyncio.get_running_loop()
    serving = loop.create_task(serve(options))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        return 0
    except ListenFailed as error:
        print(f"pointsman simulate: {error}", file=sys.stderr)
        return 1
    return 0


def _flag(key: str) -> str:
    return "--" + "".join(f"-{char.lower()}" if char.isupper() else char for char in key)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _read_listen(listen: str, problems: list[str]) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        problems.append(f"--listen: found {listen!r}, expected HOST:PORT, such as 127.0.0.1:9001")
        return "", 0
    return host, int(port)
