"""Advice: what a policy says that is legal key by key and yet cannot be meant, or does nothing.

Decides what is an error (contradictions inside a document, keys that would be unsafe to pass over) and what is a
warning (rungs, classes and routes that never apply, keys without effect). Reads the values of the documents that have
no error, and the trees for their lines. Called by decode.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from pointsman.router.build import class_fault, stable_version
from pointsman.router.document import Document, Fields, Items, Node, Step, Value, dotted
from pointsman.router.overlap import may_overlap
from pointsman.router.policy import (
    CannedFallback,
    Endpoint,
    Model,
    ModelFallback,
    Policy,
    Route,
    Settings,
    VersionFallback,
)
from pointsman.router.problem import Code, Problem, Severity
from pointsman.router.reading import Reading, policy_of
from pointsman.router.schema import UNUSED, Unused

MAX_OVERLAPS = 20
"""Warnings about overlaps; more of them say nothing new."""
COMPARED_ROUTES = 500
"""Comparing is quadratic: routes after these are not looked at for overlaps."""

Place = tuple[Step, ...]


def advise(readings: Sequence[Reading], *, has_all: bool = True) -> tuple[Problem, ...]:
    """Return errors and warnings about documents that are well-formed one by one; `has_all` as in check_names."""
    policy = policy_of(readings)
    problems = list(_unused(readings))
    for reading in readings:
        value = reading.value
        if isinstance(value, Model):
            problems += _model(reading, value, policy.settings)
        elif isinstance(value, Settings):
            problems += _settings(reading, value)
        elif isinstance(value, Route):
            problems += _route(reading, value, policy)
    problems += _overlaps(readings)
    if has_all and readings and not any(reading.kind in ("Route", None) for reading in readings):
        problems.append(_warning(readings[0], (), "the policy has no Route: every request is answered 404"))
    return tuple(problems)


def _unused(readings: Sequence[Reading]) -> Iterator[Problem]:
    """Name each key without effect once, at its first place; each refused one wherever it stands."""
    for unused in UNUSED:
        places = [
            (reading, place)
            for reading in readings
            if reading.kind == unused.kind
            for place, node in _at(reading.document.root, unused.path, ())
            if not _is_idle(node, unused)
        ]
        if unused.severity is Severity.ERROR:
            for reading, place in places:
                yield _error(reading, place, unused.note, Code.NOT_SUPPORTED)
        elif places:
            reading, place = places[0]
            more = f" (also in {len(places) - 1} other places)" if len(places) > 1 else ""
            yield _warning(reading, place, unused.note + more, Code.NO_EFFECT)


def _at(node: Node | None, path: tuple[str, ...], place: Place) -> Iterator[tuple[Place, Node]]:
    if node is None:
        return
    if not path:
        yield place, node
    elif path[0] in ("[]", "[1:]"):
        for index, item in enumerate(node.items if isinstance(node, Items) else ()):
            if index or path[0] == "[]":
                yield from _at(item, path[1:], (*place, index))
    elif isinstance(node, Fields):
        yield from _at(node.get(path[0]), path[1:], (*place, path[0]))


def _is_idle(node: Node, unused: Unused) -> bool:
    """Say whether this value asks for nothing that is not there."""
    if isinstance(node, Value):
        return node.value is None or (type(node.value) is type(unused.unless) and node.value == unused.unless)
    return (isinstance(node, Items) and not node.items) or (isinstance(node, Fields) and not node.entries)


def _settings(reading: Reading, settings: Settings) -> Iterator[Problem]:
    if settings.listen == settings.admin:
        yield _error(reading, ("spec", "admin"), f"{settings.admin} is the same address as spec.listen")
    limits = settings.limits
    if limits.inspect_body_bytes > limits.body_bytes:
        note = f"{limits.inspect_body_bytes} is more than bodyBytes, {limits.body_bytes}"
        yield _error(reading, ("spec", "limits", "inspectBodyBytes"), note)


def _model(reading: Reading, model: Model, settings: Settings) -> Iterator[Problem]:
    for index, version in enumerate(model.versions):
        place: Place = ("spec", "versions", index)
        if not version.endpoints:
            yield _warning(reading, (*place, "endpoints"), f"{model.name}@{version.name} has no endpoint")
        for number, endpoint in enumerate(version.endpoints):
            if endpoint.address == settings.listen:
                note = f"{endpoint.address} is Settings' spec.listen: requests would go round in a circle"
                yield _error(reading, (*place, "endpoints", number, "address"), note)
        held = version.slice
        if held is not None and held.mark is not None and held.mark & ~(held.mark_mask or held.mark):
            note = f"mark {held.mark:#x} has bits outside markMask {held.mark_mask or 0:#x}"
            yield _error(reading, (*place, "slice", "mark"), note)


def _route(reading: Reading, route: Route, policy: Policy) -> Iterator[Problem]:
    yield from _rising(reading, route)
    targets = [model for name in route.targets if (model := policy.model(name)) is not None]
    if len(targets) == len(route.targets):
        yield from _classes(reading, route, targets)
        yield from _rungs(reading, route, targets, policy)
    if route.canary is not None:
        yield from _shared_gpu(reading, route, policy)


def _rising(reading: Reading, route: Route) -> Iterator[Problem]:
    """Lists that must rise: a rollout's steps, the breaker's windows; and classes that should."""
    if route.canary is not None:
        shares = [step.weight_parts for step in route.canary.steps]
        for index, (before, after) in enumerate(pairwise(shares), 1):
            if after <= before:
                note = f"{after / 100:g} is not more than the step before, {before / 100:g}"
                yield _error(reading, ("spec", "canary", "steps", index, "weight"), note)
    for index, (before, after) in enumerate(pairwise(route.breaker.windows_ms), 1):
        if after <= before:
            yield _error(reading, ("spec", "breaker", "windows", index), "windows must be listed shortest first")
    for index, (demanding, later) in enumerate(pairwise(route.qos), 1):
        if later.latency_budget_ms < demanding.latency_budget_ms:
            note = (
                f"class {later.name} ({later.latency_budget_ms} ms) is listed after {demanding.name} "
                f"({demanding.latency_budget_ms} ms); list the most demanding class first"
            )
            yield _warning(reading, ("spec", "qos", index, "latencyBudgetMs"), note)


def _classes(reading: Reading, route: Route, targets: Sequence[Model]) -> Iterator[Problem]:
    for index, qos in enumerate(route.qos):
        if all(class_fault(stable_version(model, route), qos) for model in targets):
            note = f"no target's stable version meets class {qos.name} (quality and cost): only the fallback is left"
            yield _warning(reading, ("spec", "qos", index), note)


def _rungs(reading: Reading, route: Route, targets: Sequence[Model], policy: Policy) -> Iterator[Problem]:
    for index, (before, _) in enumerate(pairwise(route.fallback), 1):
        if isinstance(before, CannedFallback):
            note = "this rung and those after it are never reached: the canned answer before it always answers"
            yield _warning(reading, ("spec", "fallback", index), note)
            break
    if route.rewrite_model:
        return
    # What a client can put into the body's `model` and still come to this route.
    names = {*route.targets, *route.match.models}
    for index, rung in enumerate(route.fallback):
        if isinstance(rung, ModelFallback):
            model = policy.model(rung.model)
            versions = () if model is None else model.versions
        elif isinstance(rung, VersionFallback):
            found = (model.version(rung.version) for model in targets)
            versions = tuple(version for version in found if version is not None)
        else:
            continue
        if versions and all(names.isdisjoint(version.accepts) for version in versions):
            accepted = ", ".join(sorted({name for version in versions for name in version.accepts}))
            what = rung.model if isinstance(rung, ModelFallback) else rung.version
            note = (
                f"this rung can never apply to a request that names a model: {what} accepts {accepted}, the route's "
                f"requests name {', '.join(sorted(names))}; add to accepts, or set rewriteModel: true"
            )
            yield _warning(reading, ("spec", "fallback", index), note)


def _shared_gpu(reading: Reading, route: Route, policy: Policy) -> Iterator[Problem]:
    canary = route.canary
    model = policy.model(canary.model) if canary is not None else None
    version = model.version(canary.version) if model is not None and canary is not None else None
    if model is None or version is None:
        return
    ours = _gpus(version.endpoints)
    for other in model.versions:
        shared = sorted(ours & _gpus(other.endpoints)) if other is not version else []
        if shared:
            gpus = ", ".join(f"{node} GPU {gpu}" for node, gpu in shared)
            note = (
                f"canary {version.name} and {other.name} share {gpus}; "
                "a slice protects CPU and memory only, so the canary can slow the other down"
            )
            yield _warning(reading, ("spec", "canary", "version"), note)


def _gpus(endpoints: Sequence[Endpoint]) -> set[tuple[str, int]]:
    """The GPUs of the endpoints, by node; an endpoint without a node stands on its address's host."""
    return {
        (endpoint.node or endpoint.address.rpartition(":")[0], gpu) for endpoint in endpoints for gpu in endpoint.gpus
    }


def _overlaps(readings: Sequence[Reading]) -> Iterator[Problem]:
    """Warn of routes that want the same requests with equally many conditions; the name decides then."""
    routes = sorted(
        ((reading.value, reading) for reading in readings if isinstance(reading.value, Route)),
        key=lambda pair: pair[0].name,
    )
    count = 0
    for (winner, _), (loser, reading) in combinations(routes[:COMPARED_ROUTES], 2):
        if winner.match.condition_count != loser.match.condition_count or not may_overlap(winner, loser):
            continue
        count += 1
        if count > MAX_OVERLAPS:
            return
        note = f"may take the same requests as Route {winner.name}, with as many conditions; {winner.name} wins by name"
        yield _warning(reading, ("spec", "match"), note)


def _error(reading: Reading, place: Place, note: str, code: Code = Code.CONFLICT) -> Problem:
    return _problem(Severity.ERROR, code, reading, place, note)


def _warning(reading: Reading, place: Place, note: str, code: Code = Code.DOUBTFUL) -> Problem:
    return _problem(Severity.WARNING, code, reading, place, note)


def _problem(severity: Severity, code: Code, reading: Reading, place: Place, note: str) -> Problem:
    document: Document = reading.document
    line = document.line_of(*place)
    return Problem(severity, code, document.file, line, document.title, dotted(*place), note=note)
