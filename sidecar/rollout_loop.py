"""The rollout's loop: first tries from the log, operators' commands, time; and a new table when a share moved.

Looks once a second: steps are held for longer. Decides nothing: router/rollouts.py does. Every transition is stored,
kept in the history and told. In observe mode it computes and tells, shares stay as the policy states them, and what it
finds is forgotten when it may act again: nobody's traffic jumps to what was only computed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pointsman.router.entry import LogGap, RequestEntry, TryEntry
from pointsman.router.policy import LoopMode, Policy
from pointsman.router.rollout import Phase, Verb
from pointsman.router.rollout_evidence import first_try_of
from pointsman.router.rollouts import Memory, RolloutMoved, Rollouts
from pointsman.router.table import Row
from pointsman.sidecar.json_log import event
from pointsman.sidecar.rollout_store import HISTORY, Happened, RolloutStore, Stored
from pointsman.sidecar.rollout_view import rollouts_view
from pointsman.sidecar.views import Json

LOOK_S = 1.0

Entry = RequestEntry | TryEntry | LogGap


class RolloutLoop:
    """Feeds `Rollouts` and tells the owner when shares changed."""

    def __init__(
        self,
        policy: Policy,
        store: RolloutStore,
        on_change: Callable[[], None],
        *,
        withheld: Callable[[], Collection[str]] = tuple,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Take up what the store holds. `on_change` is called when the table must be made again.

        `withheld` tells which targets a breaker holds back: their silence is no evidence.
        """
        stored = store.load()
        self._store = store
        self._on_change = on_change
        self._withheld = withheld
        self._clock_ns = clock_ns
        self._policy = policy
        self._rows: Mapping[str, Row] = {}
        self._history = {route: deque(items, HISTORY) for route, items in stored.history.items()}
        self._acted = stored.memory
        self._rollouts = Rollouts(stored.memory if self.acts else Memory(), self._now_ms())
        self.adopt(policy, {})

    @property
    def acts(self) -> bool:
        """Whether what it finds changes traffic."""
        return _acts(self._policy)

    def shares(self, policy: Policy) -> dict[str, int]:
        """Return the canary's share in parts of 10,000 by route, under this policy, adopted or about to be.

        A new canary never gets the share of the one before it, not for a moment. Nothing in observe mode: the policy's
        shares stay.
        """
        return self._acting().shares_under(policy) if _acts(policy) else {}

    def promoted(self, policy: Policy) -> dict[str, str]:
        """Return the last target promoted by route: what is stable from then on. Nothing in observe mode."""
        return self._acting().promoted if _acts(policy) else {}

    def _acting(self) -> Rollouts:
        return self._rollouts if self.acts else Rollouts(self._acted, self._now_ms())

    def adopt(self, policy: Policy, rows: Mapping[str, Row]) -> None:
        """Take the policy in force and its rows by name."""
        acted = self.acts
        self._policy = policy
        self._rows = rows
        if self.acts is not acted:
            self._rollouts = Rollouts(self._acted if self.acts else Memory(), self._now_ms())
        self._tell(self._rollouts.adopt(policy, self._now_ms()))

    def observe(self, entries: Sequence[Entry]) -> None:
        """Count what a batch of log entries says of first tries."""
        now_ms = self._now_ms()
        for entry in entries:
            if isinstance(entry, LogGap):
                self._rollouts.go_blind(now_ms)
                continue
            row = self._rows.get(entry.row)
            tried = first_try_of(entry, row) if row is not None else None
            if row is not None and tried is not None:
                self._rollouts.record(row.route, tried, now_ms)

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Move what evidence or time moves."""
        self._apply(self._rollouts.look(self._now_ms(), self._withheld()))

    def command(self, route: str, verb: Verb) -> Json:
        """Do what an operator asks and return the view; KeyError for an unknown route, RolloutRefused else."""
        self._apply(self._rollouts.command(route, verb, self._now_ms()))
        return self.view()

    def routes(self) -> tuple[str, ...]:
        """Return the routes that have a rollout."""
        return self._rollouts.routes()

    def view(self) -> Json:
        """Return every rollout with its evidence and history."""
        now_ms = self._now_ms()
        history = {route: tuple(items) for route, items in self._history.items()}
        return rollouts_view(self._rollouts.standings(now_ms), history, now_ms, acts=self.acts)

    def _apply(self, moves: Iterable[RolloutMoved]) -> None:
        moves = tuple(moves)
        self._tell(moves)
        if moves and self.acts:
            self._on_change()

    def _tell(self, moves: Sequence[RolloutMoved]) -> None:
        """Keep, store and log transitions."""
        for moved in moves:
            self._history.setdefault(moved.route, deque(maxlen=HISTORY)).append(_happened(moved))
            event(
                "rollout moved",
                logging.WARNING if moved.after is Phase.ABORTED else logging.INFO,
                route=moved.route,
                target=moved.target,
                before=moved.before.value,
                after=moved.after.value,
                step=moved.step + 1,
                share=moved.share_parts,
                reason=moved.cause.value,
                canary=list(moved.canary),
                stable=list(moved.stable),
                acts=self.acts,
            )
        if moves:
            known = set(self._rollouts.routes())
            self._history = {route: items for route, items in self._history.items() if route in known}
            history = {route: tuple(items) for route, items in self._history.items()}
            if self.acts:
                self._acted = self._rollouts.memory()
            self._store.save(Stored(self._acted, history))

    def _now_ms(self) -> int:
        return self._clock_ns() // 1_000_000


def _acts(policy: Policy) -> bool:
    return policy.settings.mode.rollout is LoopMode.ACT


def _happened(moved: RolloutMoved) -> Happened:
    return Happened(
        unix_ms=time.time_ns() // 1_000_000,
        target=moved.target,
        before=moved.before,
        after=moved.after,
        step=moved.step,
        share_parts=moved.share_parts,
        cause=moved.cause,
        canary=moved.canary,
        stable=moved.stable,
    )
