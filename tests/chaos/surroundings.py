"""Disturbances of what is around the processes: the policy file, hostile xDS clients, the disk, the clock."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import flood
import kills
from scene import NotRecovered, Scene, Skipped

BAD_POLICIES: dict[str, Callable[[str], bytes | None]] = {
    "share of 500 %": lambda good: good.replace("weight: ", "weight: 50").encode(),
    "unknown target": lambda good: good.replace("targets: [store]", "targets: [stor]").encode(),
    "unknown key": lambda good: good.replace("spec:", "spek:", 1).encode(),
    "broken YAML": lambda _: b"kind: [\n",
    "cut in the middle": lambda good: good[: good.index("kind: Route") + 60].encode(),
    "not UTF-8": lambda good: good.encode() + b"# \xff\xfe\n",
    "empty": lambda _: b"",
    "5 MiB": lambda good: good.encode() + b"# " + b"x" * (5 << 20) + b"\n",
    "name twice": lambda good: (good + "---\n" + good.split("---")[0]).encode(),
    "gone": lambda _: None,
}
"""What takes the place of a good policy; None: nothing."""

CLOCK_MOVES_S = (-10 * 365 * 86_400, -86_400, -3_600, -60, 60, 3_600, 86_400, 10 * 365 * 86_400)
CLOCK_TOLERANCE_S = 120


async def change_policy(scene: Scene) -> str:
    """Every change goes live, no request fails."""
    changes = scene.random.choice((1, 1, 3, 10, 30))
    for number in range(changes):
        if number:
            await scene.pause(0.0, 0.2)
        scene.write_policy()
    return f"{changes} changes, last {scene.variant}"


async def bad_policy(scene: Scene) -> str:
    """The last good one stays, /readyz says why; then another good one."""
    name = scene.random.choice(list(BAD_POLICIES))
    from_byte = scene.product.log_size()
    content = BAD_POLICIES[name](scene.policy_text)
    if content is None:
        scene.product.policy.unlink()
    else:
        scene.product.policy.write_bytes(content)
    await scene.until_status("degraded")
    await scene.pause(0.2, 2.0)
    # The version is no sign: it also changes when a breaker moves.
    if any(entry.get("message") == "policy in force" for entry in scene.product.log_entries(from_byte)):
        raise NotRecovered(f"bad policy ({name}): another policy came into force")
    scene.write_policy(scene.variant if scene.random.random() < 0.5 else None)
    scene.harm_ends()
    await scene.until_status("ready")
    return name


async def flood_xds(scene: Scene) -> str:
    """Hostile clients on the agent's sockets; a policy change in between still goes live."""
    mode = scene.random.choice(flood.MODES)
    seconds = scene.random.uniform(1.0, 4.0)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(flood.__file__)), str(scene.disk.path), mode, str(scene.seed), str(seconds),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await scene.pause(0.5, 1.0)
        scene.write_policy()
        async with asyncio.timeout(seconds + 30):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    counts = ", ".join(f"{name} {count}" for name, count in json.loads(told or b"{}").items())
    return f"{mode} for {seconds:.1f} s ({counts}), policy changed meanwhile"


async def fill_disk(scene: Scene) -> str:
    """A full disk ends nothing that serves."""
    if scene.disk.why_not:
        raise Skipped(scene.disk.why_not)
    does = scene.random.choice((_only_waits, change_policy, kills.kill_envoy, kills.start_on_full_disk))
    scene.disk.fill()
    try:
        said = await does(scene)
        if does in (change_policy, kills.kill_envoy):
            await scene.until_traffic_is_right()
            await scene.until_settled()
    finally:
        scene.disk.free()
    return f"{does.__name__.strip('_').replace('_', ' ')}: {said}"


async def move_clock(scene: Scene) -> str:
    """Loops go by monotonic time: reloads and restarts work on, whatever the wall clock says."""
    if scene.clock.why_not:
        raise Skipped(scene.clock.why_not)
    offset_s = scene.random.choice(CLOCK_MOVES_S)
    from_byte = scene.product.log_size()
    scene.clock.move(offset_s)
    try:
        does = scene.random.choice((change_policy, change_policy, kills.kill_envoy))
        said = await does(scene)
        await scene.until_traffic_is_right()
        await scene.until_settled()
        if not _has_moved(scene, from_byte, offset_s):
            raise NotRecovered("the agent's log does not show the moved clock: the shim does not reach it")
        await scene.pause(0.5, 2.0)
    finally:
        scene.clock.move(0)
    scene.write_policy()
    return f"by {offset_s} s, then {said}; and back"


async def _only_waits(scene: Scene) -> str:
    return f"for {await scene.pause(0.5, 3.0):.1f} s"


def _has_moved(scene: Scene, from_byte: int, offset_s: int) -> bool:
    """Tell whether an entry's time shows the offset."""
    now_s = datetime.now(UTC).timestamp()
    times = [str(entry["time"]) for entry in scene.product.log_entries(from_byte) if "time" in entry]
    moved = [datetime.fromisoformat(text).timestamp() - now_s for text in times]
    return any(abs(found_s - offset_s) < min(CLOCK_TOLERANCE_S, abs(offset_s) / 2) for found_s in moved)
