"""Where traces go in a measurement: the product's own receiver, in a process whose time is not counted.

`python trace_sink.py PORT`; prints `ready`, ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from pointsman.otel.trace_receiver import TraceReceiver


async def _serve(port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with TraceReceiver(f"127.0.0.1:{port}"):
        print("ready", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
