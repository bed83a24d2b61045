"""The route table as values: model -> pin -> routes -> classes -> rows of arms and rungs, each with its reason.

A tree, not a list: Envoy evaluates it as nested matchers, `decide` walks the same nodes in the same order, and the
explanation names the nodes passed. Built by build.py, rendered by xds/, walked by decide.py. Decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pointsman.router.policy import FULL_SHARE, HeaderMatch, Intent, Limits, PathMatch, QosClass, Target, Timeouts
from pointsman.router.weights import split_admitted

AUTO = "auto"
"""The model key of a request that names no model, or `auto`."""


class Reason(StrEnum):
    """Why a request went where it went; the word in `x-pointsman-reason`, on spans and in metrics."""

    PINNED = "pinned"
    CANARY = "canary"
    QOS = "qos"
    DEFAULT = "default"
    FALLBACK = "fallback"
    REFUSED = "refused"
    LISTED = "listed"
    """The list of models, answered from policy."""


@dataclass(frozen=True, slots=True)
class TargetRung:
    """A rung that sends to a target. `rewrite_to`: the name that its server wants in the body's `model`."""

    target: Target
    rewrite_to: str | None = None

    @property
    def key(self) -> str:
        """The rung's part of a ladder's name."""
        return str(self.target) if self.rewrite_to is None else f"{self.target}={self.rewrite_to}"


@dataclass(frozen=True, slots=True)
class CannedRung:
    """A rung that answers by itself, in the API's error shape."""

    status: int
    retry_after_s: int

    @property
    def key(self) -> str:
        """The rung's part of a ladder's name, and its cluster's."""
        return f"canned:{self.status}:{self.retry_after_s}"


Rung = TargetRung | CannedRung


@dataclass(frozen=True, slots=True)
class Ladder:
    """Rungs in order. Its name is made of its content, so that equal ladders are one cluster.

    `marks_confidence`: answers say how sure the server was in a form that a retry can read (xds/clusters.py).
    """

    rungs: tuple[Rung, ...]
    is_pin: bool = False
    marks_confidence: bool = False

    @property
    def name(self) -> str:
        """The aggregate cluster's name: no target's can be the same, for theirs hold no `>`."""
        return f"{'pin' if self.is_pin else 'ladder'}{'~' if self.marks_confidence else ''}>" + ">".join(
            rung.key for rung in self.rungs
        )

    @property
    def first_target(self) -> Target | None:
        """Who should answer, or None where the first rung is canned."""
        first = self.rungs[0]
        return first.target if isinstance(first, TargetRung) else None

    @property
    def rewrites(self) -> bool:
        """Whether some rung needs another name in the body than the client may have sent."""
        return any(isinstance(rung, TargetRung) and rung.rewrite_to is not None for rung in self.rungs)

    @property
    def bypass(self) -> Ladder:
        """The same ladder without its first rung; of a single rung, a canned 503."""
        return Ladder(self.rungs[1:] or (OUT_OF_SERVICE,), self.is_pin, self.marks_confidence)


OUT_OF_SERVICE = CannedRung(status=503, retry_after_s=2)
"""What a target without further rungs answers while it is not admitted; 2 s is the breaker's usual recovery step."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One target of a row's split: base in parts of 10,000 (rollout and choice own it), admit 0..1 (the breaker's)."""

    ladder: Ladder
    base: int
    reason: Reason
    admit: float = 1.0

    @property
    def weights(self) -> tuple[int, int]:
        """Parts that go to the ladder and to its bypass; they sum to the base."""
        return split_admitted(self.base, self.admit)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A target that was looked at for a row, and what came of it."""

    target: Target
    is_taken: bool
    why: str


@dataclass(frozen=True, slots=True)
class Row:
    """Where a class of requests goes. Arm bases sum to 10,000, in a fixed order.

    `note` tells what was unusual in how the row was reached (`class=unknown`); `candidates` explain the arms.
    """

    name: str
    route: str
    reason: Reason
    arms: tuple[Arm, ...]
    stick_by: tuple[str, ...]
    retry_on: tuple[str, ...]
    retries: int
    timeouts: Timeouts
    qos: QosClass | None = None
    low_confidence_below: float | None = None
    note: str = ""
    candidates: tuple[Candidate, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a row whose bases do not sum to the whole: Envoy's split would silently change."""
        if sum(arm.base for arm in self.arms) != FULL_SHARE:
            raise ValueError(
                f"row {self.name}: arm bases sum to {sum(arm.base for arm in self.arms)}, expected {FULL_SHARE}"
            )

    @property
    def improvable(self) -> tuple[str, ...]:
        """Targets after which every ladder of the row has another model: whose unsure answers may be asked again.

        A canned rung is no better than an unsure answer, so the last model's stands.
        """
        followed: dict[str, bool] = {}
        for ladder in (side for arm in self.arms for side in (arm.ladder, arm.ladder.bypass)):
            for rung, after in zip(ladder.rungs, (*ladder.rungs[1:], None), strict=True):
                if isinstance(rung, TargetRung):
                    name = str(rung.target)
                    followed[name] = followed.get(name, True) and isinstance(after, TargetRung)
        return tuple(name for name, is_followed in followed.items() if is_followed)

    @property
    def label(self) -> str:
        """The row's reason as clients see it, for arms that have no reason of their own."""
        return f"{self.reason.value};{self.note}" if self.note else self.reason.value

    def arm_label(self, arm: Arm) -> str:
        """The arm's reason as clients see it."""
        return self.label if arm.reason is self.reason else arm.reason.value


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the table gives by itself: the caller's mistake, or nobody left to ask."""

    name: str
    status: int
    message: str
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class ClassChoice:
    """Which class a request gets: a name beats numbers; numbers get the least demanding class that satisfies them all.

    `numeric` lists the classes from the least demanding to the most; `unreadable` and `unmet` are rows of the most
    demanding one, `default` and `unknown` of the route's default.
    """

    named: tuple[tuple[str, Row | Refusal], ...]
    default: Row | Refusal
    unknown: Row | Refusal
    numeric: tuple[tuple[QosClass, Row | Refusal], ...]
    unreadable: Row | Refusal
    unmet: Row | Refusal


Leaf = Row | Refusal
Outcome = ClassChoice | Row | Refusal


@dataclass(frozen=True, slots=True)
class Branch:
    """One Route under a model and a pin: its conditions, and what follows when they all hold."""

    route: str
    intents: tuple[Intent, ...]
    paths: tuple[PathMatch, ...]
    headers: tuple[HeaderMatch, ...]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Branches:
    """Routes in precedence order; the first whose conditions hold takes the request."""

    branches: tuple[Branch, ...]
    otherwise: Refusal


@dataclass(frozen=True, slots=True)
class ModelNode:
    """What follows when the body names this model (or none, under `auto`)."""

    key: str
    pins: tuple[tuple[str, Branches], ...]
    unpinned: Branches
    unknown_version: Refusal


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A target's endpoints and how to reach them: all that a cluster and its assignment need."""

    target: Target
    addresses: tuple[str, ...]
    connect_timeout_ms: int
    is_http2: bool = False
    accepts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """The whole table: nodes by model key (the first is `auto`), targets, the answer of `GET /v1/models`."""

    nodes: tuple[ModelNode, ...]
    targets: tuple[TargetSpec, ...]
    listed_models: tuple[str, ...]
    unknown_model: Refusal
    contradictory_pin: Refusal
    bad_session_ttl: Refusal
    limits: Limits

    def node(self, key: str) -> ModelNode | None:
        """Return the node of that model key, or None."""
        return next((node for node in self.nodes if node.key == key), None)

    def rows(self) -> Iterator[Row]:
        """Yield every row of the tree, in tree order."""
        for leaf in self.leaves():
            if isinstance(leaf, Row):
                yield leaf

    def leaves(self) -> Iterator[Leaf]:
        """Yield every leaf of the tree, in tree order."""
        for node in self.nodes:
            for branches in (*(branches for _, branches in node.pins), node.unpinned):
                for branch in branches.branches:
                    yield from _leaves_of(branch.outcome)
                yield branches.otherwise
            yield node.unknown_version

    def ladders(self) -> tuple[Ladder, ...]:
        """Return every ladder and bypass that a row names, each once, in order of first use."""
        found: dict[str, Ladder] = {}
        for row in self.rows():
            for arm in row.arms:
                for ladder in (arm.ladder, arm.ladder.bypass):
                    found.setdefault(ladder.name, ladder)
        return tuple(found.values())


def _leaves_of(outcome: Outcome) -> Iterator[Leaf]:
    if not isinstance(outcome, ClassChoice):
        yield outcome
        return
    yield from (leaf for _, leaf in outcome.named)
    yield outcome.default
    yield outcome.unknown
    yield from (leaf for _, leaf in outcome.numeric)
    yield outcome.unreadable
    yield outcome.unmet
