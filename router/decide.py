"""What the table does with one request, and why: the same choice that Envoy makes of the rendered table.

Walks the tree of table.py in Envoy's order: body, session ttl, model, pin, route, class, split. Used by `explain`, by
simulation, and by the differential test against a real Envoy. Pure: a split without a sticky key has no chosen arm,
only its shares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pointsman.router.body import UNNAMEABLE, read_body
from pointsman.router.intent import MODELS_PATH, PATH_INTENTS, known_intent, paths_of, strip_query
from pointsman.router.number_regex import NUMBER_REGEX
from pointsman.router.policy import FULL_SHARE, HeaderMatch, MatchKind, PathMatch, QosClass
from pointsman.router.request import (
    CLASS_HEADER,
    INTENT_HEADER,
    LATENCY_HEADER,
    PIN_HEADER,
    QUALITY_HEADER,
    SESSION_TTL_HEADER,
    TTFT_HEADER,
    Request,
    admit,
    on_the_wire,
)
from pointsman.router.table import AUTO, Arm, Branch, Branches, ClassChoice, Leaf, Reason, Refusal, Row, Table
from pointsman.router.xxhash64 import hash_lines

SESSION_TTL = re.compile(r"[1-9][0-9]{0,8}(ms|s|m|h)?")
"""What `x-session-ttl` may be: whole seconds, or a whole number with its unit."""

NUMBER = re.compile(NUMBER_REGEX)


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of the walk, in words."""

    stage: str
    finding: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Where the request goes. `refusal` set: nowhere, that is the answer. A row without an arm: its split is random."""

    steps: tuple[Step, ...]
    row: Row | None = None
    arm: Arm | None = None
    bypassed: bool = False
    refusal: Refusal | None = None
    listed_models: tuple[str, ...] | None = None

    @property
    def reason(self) -> str:
        """The reason as clients see it; of a random split the row's own."""
        if self.row is None:
            return (Reason.REFUSED if self.listed_models is None else Reason.LISTED).value
        return self.row.arm_label(self.arm) if self.arm else self.row.label

    @property
    def target(self) -> str | None:
        """`model@version` that is tried first, where it is certain and not canned."""
        if self.arm is None:
            return None
        ladder = self.arm.ladder.bypass if self.bypassed else self.arm.ladder
        return str(ladder.first_target) if ladder.first_target else None


def decide(request: Request, table: Table, *, reads_body: bool = True) -> Decision:
    """Return the decision for the request; `reads_body` False is header mode (no scanner in Envoy)."""
    steps: list[Step] = []
    seen = admit(request)
    model_key = AUTO
    if reads_body:
        verdict = read_body(seen, table.limits)
        if verdict.status:
            refusal = Refusal("body", verdict.status, verdict.cause)
            return _refused(steps, Step("body", verdict.cause), refusal)
        model_key = verdict.model or AUTO
        steps.append(Step("body", f"model {model_key}" if verdict.was_read else "not read: routed by headers"))
    ttl = seen.joined(SESSION_TTL_HEADER)
    if ttl is not None and not SESSION_TTL.fullmatch(ttl):
        return _refused(steps, Step("session", "x-session-ttl cannot be read"), table.bad_session_ttl)
    if seen.method in ("GET", "HEAD") and (listed := _listed(seen.path, table)) is not None:
        if not listed and strip_query(seen.path) != MODELS_PATH:
            return _refused(steps, Step("path", "names a model that is not listed"), table.unknown_model)
        return Decision((*steps, Step("path", "models are answered from policy")), listed_models=listed)
    node = table.node(model_key) if model_key != UNNAMEABLE else None
    if node is None:
        return _refused(steps, Step("model", "not in the policy"), table.unknown_model)
    pinned = _pinned(seen.joined(PIN_HEADER), dict(node.pins))
    if isinstance(pinned, str):
        refusal = table.contradictory_pin if pinned == "contradictory" else node.unknown_version
        return _refused(steps, Step("pin", pinned), refusal)
    steps.append(Step("pin", "none" if pinned is None else "version known"))
    return _routed(seen, node.unpinned if pinned is None else pinned, steps)


def _listed(path: str, table: Table) -> tuple[str, ...] | None:
    """The models that the path asks for: all, one (exactly named), none of that name; None: it asks for no models."""
    if strip_query(path) == MODELS_PATH:
        return table.listed_models
    if not path.startswith(MODELS_PATH + "/"):
        return None
    name = path.removeprefix(MODELS_PATH + "/")
    return (name,) if name in table.listed_models else ()


def _refused(steps: list[Step], step: Step, refusal: Refusal) -> Decision:
    return Decision((*steps, step), refusal=refusal)


def _pinned(value: str | None, pins: dict[str, Branches]) -> Branches | str | None:
    """The pin's branches; None: no pin; a word: why not. A version repeated is that version."""
    if value is None:
        return None
    if value in pins:
        return pins[value]
    parts = {part.strip(" ") for part in value.split(",")}
    if len(parts) == 1 and (only := parts.pop()) in pins:
        return pins[only]
    return "contradictory" if "," in value else "unknown version"


def _routed(request: Request, branches: Branches, steps: list[Step]) -> Decision:
    for branch in branches.branches:
        if failed_condition(branch, request) is None:
            steps.append(Step("route", branch.route))
            leaf, step = choose_class(branch.outcome, request)
            if step is not None:
                steps.append(step)
            return _delivered(leaf, request, steps)
        steps.append(Step("route", f"{branch.route}: {failed_condition(branch, request)}"))
    return _refused(steps, Step("route", "none"), branches.otherwise)


def failed_condition(branch: Branch, request: Request) -> str | None:
    """Return the first of the branch's conditions that does not hold for the request (as `admit` left it), or None."""
    path = strip_query(request.path)
    if branch.intents:
        named = known_intent(request.joined(INTENT_HEADER))
        implied = named is None and path in paths_of(branch.intents)
        if named not in branch.intents and not implied:
            wanted = ", ".join(intent.value for intent in branch.intents)
            found = named or PATH_INTENTS.get(path)
            return f"intents: it takes {wanted}, this is {found.value if found else 'none'}"
    if branch.paths and not any(_path_matches(match, path) for match in branch.paths):
        return "paths: " + ", ".join(f"{match.kind.value} {match.value}" for match in branch.paths)
    for match in branch.headers:
        if not _header_matches(match, request.joined(match.name)):
            return f"headers: {match.name} {match.kind.value} {match.value}".rstrip()
    return None


def _path_matches(match: PathMatch, path: str) -> bool:
    if match.kind is MatchKind.EXACT:
        return path == match.value
    if match.kind is MatchKind.PREFIX:
        return path.startswith(match.value)
    return re.fullmatch(match.value, path) is not None


def _header_matches(match: HeaderMatch, value: str | None) -> bool:
    if value is None:
        return False
    if match.kind is MatchKind.EXACT:
        return value == on_the_wire(match.value)
    if match.kind is MatchKind.PREFIX:
        return value.startswith(on_the_wire(match.value))
    if match.kind is MatchKind.REGEX:
        return re.fullmatch(match.value, value) is not None
    if match.kind is MatchKind.RANGE:
        return NUMBER.fullmatch(value) is not None and match.range_start <= float(value) < match.range_end
    return True


def choose_class(outcome: ClassChoice | Leaf, request: Request) -> tuple[Leaf, Step | None]:
    """Return the row of the request's class, and the step that says how it was found."""
    if not isinstance(outcome, ClassChoice):
        return outcome, None
    named = request.joined(CLASS_HEADER)
    if named is not None:
        row = dict(outcome.named).get(named)
        if row is not None:
            return row, Step("class", f"{named}, by name")
        return outcome.unknown, Step("class", "unknown name: the route's default")
    demands = {
        name: value
        for name in (TTFT_HEADER, LATENCY_HEADER, QUALITY_HEADER)
        if (value := request.joined(name)) is not None
    }
    if not demands:
        return outcome.default, Step("class", "the route's default")
    if not all(NUMBER.fullmatch(value) for value in demands.values()):
        return outcome.unreadable, Step("class", "a numeric demand cannot be read: the most demanding class")
    for qos, row in outcome.numeric:
        if satisfies(qos, demands):
            return row, Step("class", f"{qos.name}, the least demanding that satisfies the numbers")
    return outcome.unmet, Step("class", "no class satisfies the numbers: the most demanding one")


def satisfies(qos: QosClass, demands: dict[str, str]) -> bool:
    """Tell whether the class promises at least what the numeric headers demand."""
    for name, value in demands.items():
        number = float(value)
        if name == QUALITY_HEADER:
            if number > class_quality_percent(qos):
                return False
        elif number < qos.latency_budget_ms:
            return False
    return True


def class_quality_percent(qos: QosClass) -> float:
    """Return the quality that the class promises, in percent; a class that states none promises 0."""
    return round((qos.min_quality or 0.0) * 100, 4)


def _delivered(leaf: Leaf, request: Request, steps: list[Step]) -> Decision:
    if isinstance(leaf, Refusal):
        return _refused(steps, Step("target", leaf.message), leaf)
    sides = [(arm, bool(side)) for arm in leaf.arms for side, weight in enumerate(arm.weights) if weight]
    if len(sides) == 1:
        arm, bypassed = sides[0]
        return Decision((*steps, Step("split", "one side has all")), leaf, arm, bypassed)
    for name in leaf.stick_by:
        lines = request.lines(name)
        if lines:
            arm, bypassed, slot = split(leaf, hash_lines(lines))
            return Decision((*steps, Step("split", f"by {name}: slot {slot} of {FULL_SHARE}")), leaf, arm, bypassed)
    shares = ", ".join(f"{arm.ladder.first_target} {arm.base / 100:g} %" for arm in leaf.arms)
    return Decision((*steps, Step("split", f"random: {shares}")), row=leaf)


def split(row: Row, key_hash: int) -> tuple[Arm, bool, int]:
    """Return the arm, whether its bypass was hit, and the slot: Envoy's walk over the weighted clusters."""
    slot = key_hash % FULL_SHARE
    passed = 0
    for arm in row.arms:
        for is_bypass, weight in enumerate(arm.weights):
            passed += weight
            if slot < passed:
                return arm, bool(is_bypass), slot
    raise ValueError(f"row {row.name}: weights sum to {passed}, expected {FULL_SHARE}")
