"""Policy -> route table. Pure; the same policy gives the same table, names included.

Decides which targets a row's arms and rungs are: the first listed target that meets the class gets the row, the others
that meet it are its rungs, then `fallback`. Filtered by what servers accept, by class and by profile; every target that
was looked at is kept with the reason (design sections 4 and 6). Refuses nothing: a row with nobody left is a refusal of
its own, with the filters' reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pointsman.router.policy import (
    FULL_SHARE,
    CannedFallback,
    Fallback,
    Model,
    ModelFallback,
    PinMode,
    Policy,
    Protocol,
    QosClass,
    Route,
    Target,
    Version,
    VersionFallback,
)
from pointsman.router.table import (
    AUTO,
    Arm,
    Branch,
    Branches,
    Candidate,
    CannedRung,
    ClassChoice,
    Ladder,
    Leaf,
    ModelNode,
    Outcome,
    Reason,
    Refusal,
    Row,
    Rung,
    Table,
    TargetRung,
    TargetSpec,
)
from pointsman.router.weights import apportion

SINGLE_RUNG_RETRY_ON = ("connect-failure", "reset-before-request")
"""A row with one rung keeps one retry on it, only where nothing can have run (design rule 9)."""


def build_table(policy: Policy, promoted: Mapping[str, str] | None = None) -> Table:
    """Return the table that the policy asks for, before any live decision.

    `promoted`: the last target that a rollout promoted, by route; it is that model's stable version there.
    """
    ordered = sorted(policy.routes, key=lambda route: (-route.match.condition_count, route.name))
    names = dict.fromkeys(name for route in ordered for name in (*route.targets, *route.match.models))
    known = dict.fromkeys([*(model.name for model in policy.models), *names])
    builders = {key: _Node(policy, tuple(ordered), key, promoted or {}) for key in (AUTO, *known)}
    listed = tuple(sorted(names))
    return Table(
        nodes=tuple(builder.build() for builder in builders.values()),
        targets=tuple(
            TargetSpec(
                target=Target(model.name, version.name),
                addresses=tuple(endpoint.address for endpoint in version.endpoints),
                connect_timeout_ms=model.connect_timeout_ms,
                is_http2=version.protocol is Protocol.HTTP2,
                accepts=version.accepts,
            )
            for model in policy.models
            for version in model.versions
        ),
        listed_models=listed,
        unknown_model=Refusal("unknown-model", 404, f"the model does not exist here; known models: {_words(listed)}"),
        contradictory_pin=Refusal(
            "contradictory-pin", 400, "model-version is given with different values; send one version"
        ),
        bad_session_ttl=Refusal(
            "bad-session-ttl", 400, "x-session-ttl must be a number of seconds, or a number with ms, s, m or h"
        ),
        limits=policy.settings.limits,
    )


def stable_version(model: Model, route: Route, promoted: str | None = None) -> Version:
    """Return the version that gets what the canary does not: the last target promoted on the route, else the first.

    The first that is listed; never the route's canary where there is another one.
    """
    canary = route.canary.version if route.canary and route.canary.model == model.name else None
    others = tuple(version for version in model.versions if version.name != canary) or model.versions[:1]
    return next((version for version in others if f"{model.name}@{version.name}" == promoted), others[0])


def class_fault(version: Version, qos: QosClass) -> str | None:
    """Return why the version does not meet the class's quality or cost, or None. What is not stated filters nothing."""
    if qos.min_quality is not None and version.quality is not None and version.quality < qos.min_quality:
        return f"quality {version.quality:g} is under the class's {qos.min_quality:g}"
    most, cost = qos.max_cost_per_million, version.cost
    if most is not None and cost is not None and cost.output_per_million > most:
        return f"cost {cost.output_per_million:g} a million output tokens is over the class's {most:g}"
    return None


@dataclass(frozen=True, slots=True)
class _Node:
    """Builds the node of one model key: a model's name, an alias that a Route matches, or `auto`."""

    policy: Policy
    routes: tuple[Route, ...]
    key: str
    promoted: Mapping[str, str] = field(default_factory=dict)

    def build(self) -> ModelNode:
        routes = [route for route in self.routes if self._is_applicable(route)]
        versions = dict.fromkeys(
            version.name for route in routes for model in self._models(route) for version in model.versions
        )
        nowhere = Refusal(f"{self.key}/no-route", 404, self._no_route_message())
        unknown = Refusal(
            f"{self.key}/unknown-version",
            404,
            f"model-version names a version that does not exist here; known versions: {_words(versions)}",
        )

        return ModelNode(
            key=self.key,
            pins=tuple(
                (
                    version,
                    Branches(
                        tuple(self._branch(route, self._pinned(route, version, unknown)) for route in routes), nowhere
                    ),
                )
                for version in versions
            ),
            unpinned=Branches(tuple(self._branch(route, self._classed(route)) for route in routes), nowhere),
            unknown_version=unknown,
        )

    def _no_route_message(self) -> str:
        if self.key == AUTO:
            return "no route takes this request; check the path, x-intent, and the body's model"
        return f"no route takes model {self.key} with this path and these headers"

    def _is_applicable(self, route: Route) -> bool:
        if self.key == AUTO:
            return not route.match.models
        if route.match.models:
            return self.key in route.match.models
        return self.key in route.targets

    def _models(self, route: Route) -> tuple[Model, ...]:
        """The models that the route may choose among for this key, in listed order."""
        names = (self.key,) if self.key in route.targets else route.targets
        return tuple(model for name in names if (model := self.policy.model(name)) is not None)

    def _branch(self, route: Route, outcome: Outcome) -> Branch:
        return Branch(route.name, route.match.intents, route.match.paths, route.match.headers, outcome)

    def _pinned(self, route: Route, version: str, unknown: Refusal) -> Leaf:
        candidates: list[Candidate] = []
        for model in self._models(route):
            pinned = model.version(version)
            if pinned is None:
                continue
            target = Target(model.name, version)
            why = self._refused_by_server(route, pinned)
            candidates.append(Candidate(target, why is None, why or "pinned"))
            if why is not None:
                continue
            rungs: list[Rung] = [self._rung(route, model, pinned)]
            if route.pin.mode is PinMode.LADDER:
                rungs += self._fallback_rungs(route, model, candidates)
            ladder = Ladder(_once(rungs), is_pin=True, marks_confidence=_asks_confidence(route))
            arm = Arm(ladder, FULL_SHARE, Reason.PINNED)
            return self._row(route, f"pin={version}", Reason.PINNED, (arm,), None, tuple(candidates))
        if candidates:
            return Refusal(f"{route.name}/{self.key}/pin={version}", 404, _nobody(candidates))
        return unknown

    def _classed(self, route: Route) -> Outcome:
        if not route.qos:
            return self._leaf(route, None, Reason.DEFAULT, "default")
        default = route.qos_class(route.default_qos) if route.default_qos else None
        default = default or route.qos[0]
        most = route.qos[0]
        return ClassChoice(
            named=tuple((qos.name, self._leaf(route, qos, Reason.QOS, "named")) for qos in route.qos),
            default=self._leaf(route, default, Reason.DEFAULT, "default"),
            unknown=self._leaf(route, default, Reason.DEFAULT, "unknown", "class=unknown"),
            numeric=tuple((qos, self._leaf(route, qos, Reason.QOS, "numeric")) for qos in reversed(route.qos)),
            unreadable=self._leaf(route, most, Reason.QOS, "unreadable", "class=unreadable"),
            unmet=self._leaf(route, most, Reason.QOS, "unmet", "class=unmet"),
        )

    def _leaf(self, route: Route, qos: QosClass | None, reason: Reason, how: str, note: str = "") -> Leaf:
        candidates: list[Candidate] = []
        chosen: Model | None = None
        rungs: list[Rung] = []
        for model in self._models(route):
            version = self._stable(model, route)
            why = self._filtered(route, model, version, qos)
            taken = "first listed target that meets the class" if chosen is None else "rung: meets the class too"
            candidates.append(Candidate(Target(model.name, version.name), why is None, why or taken))
            if why is None:
                chosen = chosen or model
                rungs.append(self._rung(route, model, version))
        rungs += self._fallback_rungs(route, chosen, candidates)
        stable_rungs = _once(rungs)
        if not stable_rungs:
            name = f"{route.name}/{self.key}/{qos.name if qos else '-'}/{how}"
            return Refusal(name, 503, _nobody(candidates), retry_after_s=2)
        if chosen is None:
            arms: tuple[Arm, ...] = (Arm(_ladder(route, stable_rungs), FULL_SHARE, Reason.FALLBACK),)
            return self._row(route, how, Reason.FALLBACK, arms, qos, tuple(candidates), note)
        arms = self._arms(route, chosen, stable_rungs, reason, candidates)
        return self._row(route, how, reason, arms, qos, tuple(candidates), note)

    def _arms(
        self, route: Route, chosen: Model, stable_rungs: tuple[Rung, ...], reason: Reason, candidates: list[Candidate]
    ) -> tuple[Arm, ...]:
        """The canary's arm first, then the rest: a growing share only adds keys (design rule 2)."""
        stable = Arm(_ladder(route, stable_rungs), FULL_SHARE, reason)
        canary = route.canary
        if canary is None or canary.model != chosen.name:
            return (stable,)
        version = chosen.version(canary.version)
        if version is None or version is self._stable(chosen, route):
            return (stable,)
        target = Target(chosen.name, version.name)
        why = self._refused_by_server(route, version)
        candidates.append(Candidate(target, why is None, why or f"canary: {canary.share_parts / 100:g} % of keys"))
        if why is not None:
            return (stable,)
        ladder = _ladder(route, _once([self._rung(route, chosen, version), *stable_rungs]))
        share, rest = apportion((canary.share_parts, FULL_SHARE - canary.share_parts))
        return (Arm(ladder, share, Reason.CANARY), Arm(stable.ladder, rest, reason))

    def _row(
        self,
        route: Route,
        how: str,
        reason: Reason,
        arms: tuple[Arm, ...],
        qos: QosClass | None,
        candidates: tuple[Candidate, ...],
        note: str = "",
    ) -> Row:
        shortest = min(len(arm.ladder.rungs) for arm in arms)
        retries = min(route.retries.max_count, shortest - 1)
        retry_on = route.retries.retry_on
        if shortest == 1 and route.retries.max_count > 0:
            retries, retry_on = 1, SINGLE_RUNG_RETRY_ON
        is_sticky = len(arms) > 1 and route.canary is not None
        return Row(
            name=f"{route.name}/{self.key}/{qos.name if qos else '-'}/{how}",
            route=route.name,
            reason=reason,
            arms=arms,
            stick_by=route.canary.stick_by if is_sticky and route.canary else (),
            retry_on=retry_on if retries else (),
            retries=retries,
            timeouts=route.timeouts,
            qos=qos,
            low_confidence_below=route.retries.low_confidence_below if retries and _asks_confidence(route) else None,
            note=note,
            candidates=candidates,
        )

    def _stable(self, model: Model, route: Route) -> Version:
        return stable_version(model, route, self.promoted.get(route.name))

    def _refused_by_server(self, route: Route, version: Version) -> str | None:
        """Why the version's server would not take the name that the client sent, or None."""
        if self.key == AUTO or route.rewrite_model or self.key in version.accepts:
            return None
        return f"its server does not accept the name {self.key}"

    def _filtered(self, route: Route, model: Model, version: Version, qos: QosClass | None) -> str | None:
        """Why the target is no candidate for the class, or None. What is not stated filters nothing."""
        if why := self._refused_by_server(route, version):
            return why
        if route.match.intents and model.intents and not set(route.match.intents) & set(model.intents):
            return "it serves none of the route's intents"
        return (class_fault(version, qos) if qos else None) or self._filtered_by_profile(model, version)

    def _filtered_by_profile(self, model: Model, version: Version) -> str | None:
        profile = self.policy.profile(model.name)
        if profile is None:
            return None
        tolerance, loss = profile.precision_tolerance, version.precision_loss
        if tolerance is not None and loss is not None and loss > tolerance:
            return f"precision loss {loss:g} is over the profile's {tolerance:g}"
        least = profile.min_throughput_qps
        rate = version.throughput_qps * len(version.endpoints) if version.throughput_qps is not None else None
        if least is not None and rate is not None and rate < least:
            return f"sustainable rate {rate:g}/s is under the profile's {least:g}/s"
        return None

    def _rung(self, route: Route, model: Model, version: Version) -> TargetRung:
        rewrites = route.rewrite_model and self.key not in version.accepts
        return TargetRung(Target(model.name, version.name), version.accepts[0] if rewrites else None)

    def _fallback_rungs(self, route: Route, chosen: Model | None, candidates: list[Candidate]) -> list[Rung]:
        """The route's own rungs, filtered by what servers accept and by modality, not by the class (design rule 9)."""
        rungs: list[Rung] = []
        for fallback in route.fallback:
            if isinstance(fallback, CannedFallback):
                rungs.append(CannedRung(fallback.status, fallback.retry_after_s))
                break
            found = self._fallback_target(fallback, chosen, route)
            if found is None:
                continue
            model, version = found
            why = self._refused_by_server(route, version)
            if why is None and chosen is not None and not set(chosen.modalities) & set(model.modalities):
                why = f"it has none of the modalities of {chosen.name}"
            candidates.append(Candidate(Target(model.name, version.name), why is None, why or "rung: fallback"))
            if why is None:
                rungs.append(self._rung(route, model, version))
        return rungs

    def _fallback_target(self, fallback: Fallback, chosen: Model | None, route: Route) -> tuple[Model, Version] | None:
        if isinstance(fallback, ModelFallback):
            model = self.policy.model(fallback.model)
            return (model, self._stable(model, route)) if model else None
        if isinstance(fallback, VersionFallback) and chosen is not None:
            version = chosen.version(fallback.version)
            return (chosen, version) if version else None
        return None


def _asks_confidence(route: Route) -> bool:
    return bool(route.retries.low_confidence_below) and route.retries.max_count > 0


def _ladder(route: Route, rungs: tuple[Rung, ...]) -> Ladder:
    return Ladder(rungs, marks_confidence=_asks_confidence(route))


def _once(rungs: list[Rung]) -> tuple[Rung, ...]:
    return tuple(dict.fromkeys(rungs))


def _words(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed) if listed else "none"


def _nobody(candidates: list[Candidate]) -> str:
    reasons = "; ".join(f"{candidate.target}: {candidate.why}" for candidate in candidates if not candidate.is_taken)
    return f"no target can take this request ({reasons or 'the route has no target'})"
