"""The agent's part of a measured sidecar, in a process of its own: policy, xDS, log receiver, metrics, span exporter.

Composes the product's own parts as sidecar/agent.py does, without the supervision of Envoy and the admin server, so
that a measurement can choose which logs and filters are rendered. Started by measured.py:
`python agent_process.py FOLDER POLICY HAS_SCANNER LOGS_TRIES`; writes FOLDER/bootstrap.pb, prints `ready` once Envoy
has taken the table, ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pointsman.otel.exporter import SpanExporter
from pointsman.sidecar import policy_file
from pointsman.sidecar.live import Live
from pointsman.sidecar.recorder import Recorder
from pointsman.xds.ads import AdsServer
from pointsman.xds.bootstrap import BootstrapSpec, render_bootstrap
from pointsman.xds.logs import LogReceiver
from pointsman.xds.render import Renderer

TAKEN_WITHIN_S = 20.0


async def serve(folder: Path, policy_path: Path, renderer: Renderer, announce: Callable[[], None]) -> int:
    """Serve until SIGTERM; 1 where the policy is refused or Envoy refuses the table."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    decoded = policy_file.load(policy_path)
    if decoded.policy is None:
        print("\n".join(problem.render() for problem in decoded.problems), file=sys.stderr)
        return 1
    live = Live(decoded.policy, renderer)
    recorder = Recorder(live.metrics, live.in_force.attribution)
    exporting = None
    if decoded.policy.settings.tracing.otlp is not None:
        recorder.exporter = SpanExporter(decoded.policy.settings.tracing.otlp, on_drop=live.metrics.spans_dropped)
        exporting = asyncio.create_task(recorder.exporter.run())
    spec = BootstrapSpec("bench", str(folder / "admin.sock"), str(folder / "xds.sock"), str(folder / "log.sock"))
    ads, logs = AdsServer(spec.xds_socket), LogReceiver(Path(spec.log_socket), recorder.record)
    ads.publish(live.in_force.snapshot)
    await ads.start()
    await logs.start()
    partial = folder / "bootstrap.partial"
    partial.write_bytes(render_bootstrap(spec).SerializeToString())
    partial.rename(folder / "bootstrap.pb")
    answer = await ads.wait_acknowledged(live.in_force.snapshot, TAKEN_WITHIN_S)
    if answer.refused:
        print("Envoy refused:", [node.last_refusal for node in ads.status()], file=sys.stderr)
        return 1
    announce()
    await stop.wait()
    if recorder.exporter is not None:
        await recorder.exporter.close(1.0)
    await logs.stop(0.1)
    await ads.stop(0.1)
    if exporting is not None:
        await exporting
    return 0


if __name__ == "__main__":
    where, policy, has_scanner, logs_tries = sys.argv[1:]
    chosen = Renderer(has_scanner=has_scanner == "1", logs_tries=logs_tries == "1")
    sys.exit(asyncio.run(serve(Path(where), Path(policy), chosen, lambda: print("ready", flush=True))))
