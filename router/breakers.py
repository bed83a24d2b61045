"""All breakers of one sidecar: by target for errors, by (target, class) for lateness.

Holds windows and states; `breaker.step` alone moves a state. The owner brings outcomes, probes and the time, and asks
`look` for what changed. Evidence is forgotten at each transition: what a target did before it opened says nothing about
it afterwards. Bounded by the policy: targets that it does not name are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pointsman.router.admission import Admits
from pointsman.router.breaker import BreakerChanged, BreakerState, Phase, step
from pointsman.router.policy import Breaker, Policy
from pointsman.router.window import Counts, Window

Key = tuple[str, str | None]
"""Target, and class for lateness; None for errors."""


@dataclass(slots=True)
class _Watched:
    settings: Breaker
    windows: tuple[Window, ...]
    state: BreakerState
    probe: bool | None = None


class Breakers:
    """Breakers of the policy's targets; all closed at first."""

    def __init__(self) -> None:
        """Without a policy there is nothing to watch."""
        self._watched: dict[Key, _Watched] = {}

    def adopt(self, policy: Policy) -> None:
        """Take the targets and settings of a policy; what both know keeps its state and its windows."""
        before, self._watched = self._watched, {}
        for key, settings in _keys(policy).items():
            known = before.get(key)
            if known is not None and known.settings == settings:
                self._watched[key] = known
            else:
                windows = tuple(Window(width) for width in settings.windows_ms)
                self._watched[key] = _Watched(settings, windows, known.state if known else BreakerState())

    def late_over_budget(self, target: str, qos: str | None) -> float | None:
        """Return how many budgets a try may take before it is very late; None where nobody watches."""
        watched = self._watched.get((target, qos))
        return watched.settings.late_over_budget if watched else None

    def record(self, target: str, *, failed: bool, now_ms: int, pinned: bool = False) -> None:
        """Count a try for the target's error breaker."""
        self._add((target, None), now_ms, failed=failed, late=False, pinned=pinned)

    def record_latency(self, target: str, qos: str, *, late: bool, now_ms: int, pinned: bool = False) -> None:
        """Count a try for the (target, class) breaker."""
        self._add((target, qos), now_ms, failed=False, late=late, pinned=pinned)

    def _add(self, key: Key, now_ms: int, *, failed: bool, late: bool, pinned: bool) -> None:
        watched = self._watched.get(key)
        if watched is not None:
            for window in watched.windows:
                window.add(now_ms, failed=failed, late=late, pinned=pinned)

    def probed(self, target: str, *, answered: bool) -> None:
        """Take the prober's last finding about the target."""
        watched = self._watched.get((target, None))
        if watched is not None:
            watched.probe = answered

    def wanted_probes(self) -> tuple[str, ...]:
        """Return the targets whose answer nobody knows while nothing is sent to them."""
        return tuple(target for (target, _), watched in self._watched.items() if watched.state.wants_probe)

    def look(self, now_ms: int) -> tuple[BreakerChanged, ...]:
        """Move every state that evidence or time moves, and return the transitions."""
        changes: list[BreakerChanged] = []
        for (target, qos), watched in self._watched.items():
            evidence = tuple(window.counts(now_ms) for window in watched.windows)
            after = step(watched.state, evidence, watched.probe, now_ms, watched.settings)
            if after is watched.state:
                continue
            changes.append(BreakerChanged(target, qos, watched.state, after, evidence))
            watched.state = after
            watched.probe = None
            for window in watched.windows:
                window.clear()
        return tuple(changes)

    def admits(self) -> Admits:
        """Return what is not admitted whole."""
        return {key: watched.state.admit for key, watched in self._watched.items() if watched.state.admit < 1.0}

    def states(self, now_ms: int) -> Iterable[tuple[str, str | None, BreakerState, Mapping[int, Counts]]]:
        """Yield every breaker's key, state and counts by window width, targets first."""
        for (target, qos), watched in self._watched.items():
            if (
                qos is None
                or watched.state.phase is not Phase.CLOSED
                or any(w.counts(now_ms).total for w in watched.windows)
            ):
                yield target, qos, watched.state, {w.width_ms: w.counts(now_ms) for w in watched.windows}


def _keys(policy: Policy) -> dict[Key, Breaker]:
    """Keys with their settings: those of the first route, in order of names, that may send to the target."""
    found: dict[Key, Breaker] = {}
    for route in sorted(policy.routes, key=lambda route: route.name):
        named = [*route.targets, *(getattr(rung, "model", "") for rung in route.fallback)]
        for name in named:
            model = policy.model(name)
            for version in model.versions if model else ():
                found.setdefault((f"{name}@{version.name}", None), route.breaker)
                for qos in route.qos:
                    found.setdefault((f"{name}@{version.name}", qos.name), route.breaker)
    return found
