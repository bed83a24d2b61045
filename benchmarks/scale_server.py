"""The measured ADS server, in a process of its own so that its memory and processor time are its own.

`python scale_server.py SOCKET` serves the fleet's snapshot and answers each command on its input with one line of
JSON: `change` (one endpoint's weight; answers when every connected client has acknowledged), `settle N` (answers when
N clients hold the snapshot), `memory`, `stop`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path

from pointsman.xds.ads import AdsServer
from pointsman.xds.status import Outcome
from processor_time import processor_us
from scale_fleet import Fleet

ACKNOWLEDGED_WITHIN_S = 30.0


async def serve(socket: Path) -> None:
    """Serve until `stop`."""
    fleet = Fleet()
    server = AdsServer(socket)
    server.publish(fleet.snapshot)
    await server.start()
    print(json.dumps({"ready": True}), flush=True)
    rounds = 0
    while True:
        words = (await asyncio.to_thread(sys.stdin.readline)).split()
        if not words or words[0] == "stop":
            break
        if words[0] == "change":
            rounds += 1
            answer: dict[str, object] = await change(server, fleet, rounds)
        elif words[0] == "settle":
            await settled(server, int(words[1]))
            answer = {"settled": int(words[1])}
        else:
            gc.collect()
            answer = {"resident_kib": resident_kib(os.getpid()), "objects": len(gc.get_objects())}
        print(json.dumps(answer), flush=True)
    await server.stop(0)


async def change(server: AdsServer, fleet: Fleet, rounds: int) -> dict[str, object]:
    """Change one weight, and tell the times from the change to the last acknowledgement."""
    before_us, started_s = processor_us(os.getpid()), time.perf_counter()
    snapshot = fleet.change_weight(rounds)
    built_s = time.perf_counter()
    server.publish(snapshot)
    await server.wait_acknowledged(snapshot, ACKNOWLEDGED_WITHIN_S)
    ended_s = time.perf_counter()
    return {
        "build_ms": (built_s - started_s) * 1e3,
        "acknowledged_ms": (ended_s - built_s) * 1e3,
        "processor_ms": (processor_us(os.getpid()) - before_us) / 1e3,
    }


async def settled(server: AdsServer, count: int) -> None:
    """Return once exactly so many clients are connected and each has answered the snapshot."""
    async with asyncio.timeout(60):
        while True:
            connected = [node for node in server.status() if node.is_connected]
            if len(connected) == count and all(node.outcome is Outcome.ACKNOWLEDGED for node in connected):
                return
            await asyncio.sleep(0.02)


def resident_kib(pid: int) -> int:
    """Return the process's resident memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
