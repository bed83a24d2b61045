"""`pointsman run` with a stamp at the end of each stage of a reload: which stage a change's time goes to.

`python scale_stamps.py STAMPS run -c POLICY`: the product itself, unchanged but for wrappers around the functions of
each stage. Writes one line of JSON to STAMPS for each change that Envoy acknowledged; times are those of the system's
monotonic clock, which all processes share.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from pointsman.sidecar import agent, cli, live, policy_file
from pointsman.xds.ads import AdsServer
from pointsman.xds.render import Renderer
from pointsman.xds.snapshot import ResourceType, Snapshot
from pointsman.xds.status import ResourceAcked, XdsEvent

P = ParamSpec("P")
R = TypeVar("R")


class Stamps:
    """The times of the change that is under way."""

    def __init__(self, file: Path) -> None:
        """Writes to the file."""
        self._file = file
        self._times_s: dict[str, float] = {}

    def begin(self) -> None:
        """A change was noticed."""
        self._times_s = {"noticed": time.monotonic()}

    def note(self, stage: str) -> None:
        """A stage ended."""
        self._times_s[stage] = time.monotonic()

    def after(self, stage: str, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function with a stamp after it."""

        @functools.wraps(function)
        def stamped(*args: P.args, **kwargs: P.kwargs) -> R:
            result = function(*args, **kwargs)
            self.note(stage)
            return result

        return stamped

    def acknowledged(self) -> None:
        """Envoy took the routes."""
        self.note("acknowledged")
        with self._file.open("a") as file:
            file.write(json.dumps(self._times_s) + "\n")


def main(arguments: list[str]) -> int:
    """Wrap the stages and run."""
    stamps = Stamps(Path(arguments[0]))
    load, on_xds = policy_file.load, agent.Agent._on_xds

    def load_noticed(path: Path) -> object:
        stamps.begin()
        return stamps.after("decoded", load)(path)

    def on_xds_stamped(self: agent.Agent, event: XdsEvent) -> None:
        if isinstance(event, ResourceAcked) and event.type_url is ResourceType.ROUTES:
            stamps.acknowledged()
        on_xds(self, event)

    policy_file.load = load_noticed  # type: ignore[assignment]
    live.build_table = stamps.after("built", live.build_table)  # type: ignore[attr-defined]
    Renderer.render = stamps.after("rendered", Renderer.render)  # type: ignore[method-assign]
    Snapshot.build = stamps.after("checked", Snapshot.build)  # type: ignore[method-assign]
    AdsServer.publish = stamps.after("published", AdsServer.publish)  # type: ignore[method-assign]
    agent.Agent._on_xds = on_xds_stamped  # type: ignore[method-assign]
    return cli.main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
