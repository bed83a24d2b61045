"""Disturbances of processes: agent and Envoy killed, frozen, stopped, started again.

Each says in the timeline what the documents allow for before it does harm, and returns what it drew in words.
"""

from __future__ import annotations

import signal

from product import StartFailed
from scene import NotRecovered, Scene
from timeline import Rule

REFUSED_POLICY = 2
"""`pointsman run`'s exit code for a policy that it does not take."""


async def kill_agent(scene: Scene) -> str:
    """Traffic goes on with the last table; the next agent takes over without a failed request."""
    await scene.product.kill_agent()
    away_s = await scene.pause(0.0, 3.0)
    changes = scene.random.random() < 0.5
    if changes:
        scene.write_policy()
    scene.harm_ends()
    ready_s = await scene.product.start()
    changed = ", policy changed meanwhile" if changes else ""
    return f"away for {away_s:.1f} s{changed}; ready after {ready_s:.1f} s"


async def kill_agent_again(scene: Scene) -> str:
    """The agent dies again while it takes over."""
    rounds = scene.random.randint(2, 4)
    for _ in range(rounds):
        await scene.product.kill_agent()
        await scene.product.spawn()
        await scene.pause(0.1, 2.5)
    await scene.product.kill_agent()
    scene.harm_ends()
    return f"killed {rounds} times in its start; ready after {await scene.product.start():.1f} s"


async def start_with_bad_policy(scene: Scene) -> str:
    """An Envoy left by a killed agent goes on; the new agent exits with 2."""
    await scene.product.kill_agent()
    scene.product.policy.write_text("kind: [\n")
    code = await scene.product.start_refused()
    if code != REFUSED_POLICY:
        raise NotRecovered(f"a start with a broken policy ended with {code}, expected {REFUSED_POLICY}")
    await scene.pause(0.2, 1.5)
    scene.write_policy()
    scene.harm_ends()
    return f"exit {code}, then a good policy; ready after {await scene.product.start():.1f} s"


async def kill_envoy(scene: Scene) -> str:
    """Connections break and are refused until it is back."""
    times = scene.random.choice((1, 1, 2, 3))
    scene.fault_begins(Rule.ENVOY_DIED)
    pids: list[int] = []
    for _ in range(times):
        pids += scene.product.kill_envoys()
        scene.harm_ends()
        if times > 1:
            await scene.pause(0.05, 1.5)
    return f"{len(pids)} killed"


async def kill_both(scene: Scene) -> str:
    """Nothing is left; the next agent starts from the policy."""
    scene.fault_begins(Rule.ENVOY_DIED)
    await scene.product.kill_agent()
    scene.product.kill_envoys()
    away_s = await scene.pause(0.0, 1.0)
    scene.harm_ends()
    return f"away for {away_s:.1f} s; ready after {await scene.product.start():.1f} s"


async def stop_and_start(scene: Scene) -> str:
    """What is in flight finishes, then exit 0; nobody listens until the next start."""
    scene.fault_begins(Rule.STOPPED)
    code = await scene.product.stop()
    if code != 0:
        raise NotRecovered(f"a stop ended with {code}: {scene.product.log_tail()}")
    scene.harm_ends()
    return f"exit {code}; ready after {await scene.product.start():.1f} s"


async def freeze_agent(scene: Scene) -> str:
    """An agent that does not run takes no traffic with it."""
    scene.product.signal_agent(signal.SIGSTOP)
    try:
        frozen_s = await scene.pause(0.5, 4.0)
    finally:
        scene.product.signal_agent(signal.SIGCONT)
    return f"for {frozen_s:.1f} s"


async def start_on_full_disk(scene: Scene) -> str:
    """The new agent starts, or exits and says why; an Envoy left by a killed one goes on."""
    await scene.product.kill_agent()
    try:
        ready_s = await scene.product.start()
    except StartFailed as failed:
        text = str(failed)
        if "space" not in text and "room" not in text:
            raise NotRecovered(f"a start on a full disk does not say so: {text[-300:]}") from failed
        await scene.pause(0.2, 1.0)
        scene.disk.free()
        scene.harm_ends()
        return f"agent: exit told; with room ready after {await scene.product.start():.1f} s"
    scene.disk.free()
    return f"agent: ready after {ready_s:.1f} s"
