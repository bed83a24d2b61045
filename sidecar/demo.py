"""`pointsman demo`: a real Envoy, three simulated model servers and a trace receiver on this machine.

Sends requests, prints what was expected beside what was seen, then one trace as a tree. Exit 0 when all of it came as
expected. Everything runs on loopback, in a temporary folder, and ends with the command.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

import aiohttp
from pointsman.otel.trace_receiver import ReceivedSpan, TraceReceiver
from pointsman.sidecar.demo_checks import Check, Demo, run_checks
from pointsman.sidecar.simulator import SimulatorOptions, listening

READY_WITHIN_S = 60
STOP_WITHIN_S = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print the checks and the trace as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 0 when everything came as expected."""
    return asyncio.run(_demo(as_json=arguments.json))


async def _demo(*, as_json: bool) -> int:
    say = _quiet if as_json else _say
    with tempfile.TemporaryDirectory(prefix="pointsman-demo-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            say("starting three simulated model servers and a trace receiver")
            receiver = await stack.enter_async_context(TraceReceiver())
            servers = {
                "STABLE": await _simulate(stack, "support-chat", "v2.2"),
                "CANARY": await _simulate(stack, "support-chat", "v2.3-beta"),
                "SMALL": await _simulate(stack, "small-chat", "v1", "small-chat", "support-chat"),
            }
            ports = {"LISTEN": _free_port(), "ADMIN": _free_port(), "OTLP": receiver.port, **servers}
            policy = _write_policy(Path(folder), ports)
            say("starting pointsman: the agent, and Envoy as its child")
            try:
                await stack.enter_async_context(_agent(policy, Path(folder) / "agent.log", say))
            except DemoFailed as error:
                print(f"pointsman demo: {error}", file=sys.stderr)
                return 1
            session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=30), base_url=f"http://127.0.0.1:{ports['LISTEN']}"
                )
            )
            checks, trace_id = await run_checks(Demo(session))
            spans = await _trace(receiver, trace_id)
    return _report(checks, spans, as_json=as_json)


class DemoFailed(Exception):
    """The agent did not start; the text says what its log says last."""


def _say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def _quiet(_text: str) -> None:
    """Say nothing: the output is one JSON object."""


async def _simulate(stack: contextlib.AsyncExitStack, model: str, version: str, *accepts: str) -> int:
    options = SimulatorOptions("127.0.0.1", 0, f"{model}@{version}", accepts or (model,))
    address = await stack.enter_async_context(listening(options))
    return int(address.rpartition(":")[2])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_policy(folder: Path, ports: dict[str, int]) -> Path:
    text = resources.files("pointsman.sidecar").joinpath("demo_policy.yaml").read_text()
    for name, value in {**{name: str(port) for name, port in ports.items()}, "STATE": str(folder / "state")}.items():
        text = text.replace(f"@{name}@", value)
    policy = folder / "policy.yaml"
    policy.write_text(text)
    return policy


@contextlib.asynccontextmanager
async def _agent(policy: Path, log: Path, say: object) -> AsyncIterator[None]:
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pointsman.sidecar", "run", "-c", str(policy),
            stdout=asyncio.subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        try:
            line = await asyncio.wait_for(process.stdout.readline(), READY_WITHIN_S)
        except TimeoutError:
            line = b""
        if not line.startswith(b"ready "):
            raise DemoFailed(f"pointsman run did not become ready: {log.read_text()[-600:].strip() or 'no output'}")
        if callable(say):
            say(line.decode().strip())
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _trace(receiver: TraceReceiver, trace_id: str) -> tuple[ReceivedSpan, ...]:
    try:
        return await receiver.wait_for(3, trace_id=trace_id, timeout_s=15)
    except TimeoutError:
        return tuple(span for span in receiver.spans if span.trace_id == trace_id)


def _report(checks: list[Check], spans: tuple[ReceivedSpan, ...], *, as_json: bool) -> int:
    is_traced = {span.service for span in spans} >= {"pointsman-envoy", "pointsman-agent"}
    passed = is_traced and all(check.is_ok for check in checks)
    if as_json:
        listed = [{"what": c.what, "expected": c.expected, "seen": c.seen, "ok": c.is_ok} for c in checks]
        tree = [{"service": s.service, "name": s.name, "attributes": s.attributes} for s in spans]
        print(json.dumps({"passed": passed, "checks": listed, "trace": tree}, indent=2))
        return 0 if passed else 1
    print(_table(checks))
    print("\none request's trace (attributes as a trace backend shows them):\n" + "\n".join(_tree(spans, "", 0)))
    if not is_traced:
        print("demo: the trace is incomplete: expected spans of pointsman-envoy and pointsman-agent", file=sys.stderr)
    print(f"\ndemo: {sum(c.is_ok for c in checks)} of {len(checks)} came as expected")
    return 0 if passed else 1


def _table(checks: list[Check]) -> str:
    widths = [max(len(row[n]) for row in [c.cells for c in checks]) for n in range(3)]
    widths = [max(width, len(title)) for width, title in zip(widths, ("request", "expected", "seen"), strict=True)]
    lines = [f"\n    {'request':<{widths[0]}}  {'expected':<{widths[1]}}  seen"]
    for check in checks:
        what, expected, seen = check.cells
        lines.append(f"{'ok ' if check.is_ok else 'BAD'} {what:<{widths[0]}}  {expected:<{widths[1]}}  {seen}")
    return "\n".join(lines)


def _tree(spans: tuple[ReceivedSpan, ...], parent: str, depth: int) -> list[str]:
    known = {span.span_id for span in spans}
    kinds = {2: "SERVER", 3: "CLIENT"}
    lines: list[str] = []
    for span in sorted(spans, key=lambda item: item.start_unix_ns):
        if span.parent_id == parent or (depth == 0 and span.parent_id not in known):
            milliseconds = (span.end_unix_ns - span.start_unix_ns) / 1e6
            indent = "   " * depth
            lines.append(f"{indent}{span.name}  [{span.service}, {kinds.get(span.kind, '?')}, {milliseconds:.1f} ms]")
            shown = sorted((k, v) for k, v in span.attributes.items() if k.startswith(("gen_ai.", "pointsman.")))
            lines += [f"{indent}     {key} = {json.dumps(value)}" for key, value in shown]
            lines += _tree(spans, span.span_id, depth + 1)
    return lines
