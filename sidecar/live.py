"""The policy in force: turns an accepted policy into a published snapshot, and a refused one into a report.

Owns what the agent's loops share: table, version, problems, the recorder's attribution. On a bad change the last good
policy stays, and status, log and metric say so. Settings that a running process cannot change (listen, admin, stateDir)
keep their first values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from pointsman.otel.metrics import Metrics
from pointsman.router.admission import Admits, admit_table
from pointsman.router.build import build_table
from pointsman.router.policy import Policy, Settings
from pointsman.router.problem import Code, Problem, Severity
from pointsman.router.rollout import share_table
from pointsman.router.table import Table
from pointsman.sidecar.attribution import Attribution
from pointsman.sidecar.json_log import event
from pointsman.xds.names import LOG_CLUSTER, XDS_CLUSTER
from pointsman.xds.proxyless import render_proxyless
from pointsman.xds.render import Renderer
from pointsman.xds.snapshot import Snapshot, SnapshotRefused

FIXED_SETTINGS = ("listen", "admin", "state_dir")
"""Settings that take effect at the next start."""

MAX_LOGGED_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Decided:
    """Live decisions that a table was made with."""

    admits: Admits
    shares: Mapping[str, int]
    promoted: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class InForce:
    """One policy with all that was made of it."""

    policy: Policy
    table: Table
    snapshot: Snapshot
    proxyless: Snapshot
    """The same for gRPC clients that take xDS themselves."""

    left_out: tuple[str, ...]
    """What such clients cannot be told."""

    attribution: Attribution
    decided: Decided


class Rolled(Protocol):
    """What rollouts decide, asked for a policy that is, or is about to be, in force."""

    def shares(self, policy: Policy) -> Mapping[str, int]:
        """Return the canaries' shares in parts of 10,000 by route; what is not in it stays as configured."""

    def promoted(self, policy: Policy) -> Mapping[str, str]:
        """Return the last target promoted by route."""


class Live:
    """Holds the policy in force and replaces it whole."""

    def __init__(self, policy: Policy, renderer: Renderer, rolled: Rolled | None = None) -> None:
        """Take the first policy; SnapshotRefused when Envoy resources cannot be made of it."""
        self._rolled = rolled
        self._renderer = renderer
        self._admits: Admits = {}
        self.problems: tuple[Problem, ...] = ()
        self.warnings: tuple[Problem, ...] = ()
        self.pending: tuple[str, ...] = ()
        self.in_force = self._make(policy, None)
        self.metrics = Metrics(policy, version=_version())

    def apply(self, policy: Policy | None, problems: tuple[Problem, ...], publish: Callable[[Snapshot], None]) -> bool:
        """Put the policy in force and publish it, or keep the last one when it is refused; tell which."""
        errors = tuple(problem for problem in problems if problem.severity is Severity.ERROR)
        if policy is None:
            self._refuse(errors)
            return False
        before = self.in_force
        policy = self._keep_fixed(policy, before.policy.settings)
        self._tell_warnings(problems)
        if policy == before.policy:
            if self.problems:
                event("policy is again the one in force", version=before.snapshot.version)
            self.problems = ()
            return False
        try:
            made = self._make(policy, before)
        except SnapshotRefused as refused:
            self._refuse(tuple(_as_problem(text) for text in refused.problems))
            return False
        self.problems = ()
        self.in_force = made
        publish(made.snapshot)
        self.metrics.adopt(policy)
        self.metrics.policy_reloaded(is_applied=True)
        self._tell_in_force()
        return True

    def readmit(self, admits: Admits, publish: Callable[[Snapshot], None]) -> None:
        """Make and publish the table again under the decisions in force; they hold for later policies too."""
        self._admits = admits
        if self._decided(self.in_force.policy) == self.in_force.decided:
            return
        made = self._make(self.in_force.policy, self.in_force)
        if made.snapshot.version != self.in_force.snapshot.version:
            self.in_force = made
            publish(made.snapshot)

    def tell_start(self, problems: tuple[Problem, ...]) -> None:
        """Log the first policy, and what `check` would warn of."""
        self._tell_in_force()
        self._tell_warnings(problems)

    def refuse_fault(self, error: Exception) -> None:
        """Keep the last good policy after a fault of ours: the policy may be right, we could not take it."""
        event("fault while a policy change was read", logging.ERROR, error=error)
        self._refuse((_as_problem(f"pointsman could not take it ({type(error).__name__}); report this, with the log"),))

    def _tell_in_force(self) -> None:
        made = self.in_force
        event("policy in force", version=made.snapshot.version, rows=sum(1 for _ in made.table.rows()))

    def _tell_warnings(self, problems: tuple[Problem, ...]) -> None:
        warnings = tuple(problem for problem in problems if problem.severity is Severity.WARNING)
        if warnings != self.warnings:
            self.warnings = warnings
            if warnings:
                shown = [problem.render() for problem in warnings[:MAX_LOGGED_PROBLEMS]]
                event("policy has warnings", logging.WARNING, problems=shown, problem_count=len(warnings))

    def _make(self, policy: Policy, before: InForce | None) -> InForce:
        decided = self._decided(policy)
        table = admit_table(share_table(build_table(policy, decided.promoted), decided.shares), decided.admits)
        rendered = self._renderer.render(table, policy.settings)
        snapshot = Snapshot.build(
            rendered.clusters,
            rendered.assignments,
            rendered.listeners,
            rendered.routes,
            static_clusters=(XDS_CLUSTER, LOG_CLUSTER),
            previous=before.snapshot if before else None,
        )
        grpc = render_proxyless(table)
        proxyless = Snapshot.build(
            grpc.clusters,
            grpc.assignments,
            grpc.listeners,
            grpc.routes,
            previous=before.proxyless if before else None,
        )
        attribution = Attribution.of(policy, table, before.attribution if before else None)
        return InForce(policy, table, snapshot, proxyless, grpc.left_out, attribution, decided)

    def _decided(self, policy: Policy) -> Decided:
        if self._rolled is None:
            return Decided(self._admits, {}, {})
        return Decided(self._admits, self._rolled.shares(policy), self._rolled.promoted(policy))

    def _refuse(self, errors: tuple[Problem, ...]) -> None:
        if errors == self.problems:
            return
        self.problems = errors
        self.metrics.policy_reloaded(is_applied=False)
        event(
            "policy change refused, the last good policy stays in force",
            logging.ERROR,
            version=self.in_force.snapshot.version,
            problems=[problem.render() for problem in errors[:MAX_LOGGED_PROBLEMS]],
            problem_count=len(errors),
        )

    def _keep_fixed(self, policy: Policy, running: Settings) -> Policy:
        changed = tuple(name for name in FIXED_SETTINGS if getattr(policy.settings, name) != getattr(running, name))
        if changed != self.pending:
            self.pending = changed
            if changed:
                event("settings that take effect at the next start", logging.WARNING, settings=list(changed))
            else:
                event("no settings wait for the next start")
        if not changed:
            return policy
        kept = {name: getattr(running, name) for name in changed}
        return replace(policy, settings=replace(policy.settings, **kept))


def _as_problem(text: str) -> Problem:
    """A fault of the resources that were made of a policy: ours, not a line's."""
    return Problem(Severity.ERROR, Code.RESOURCES, "", 0, note=text)


def _version() -> str:
    from importlib import metadata

    return metadata.version("pointsman")
