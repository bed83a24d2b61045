"""The four kinds of policy document, key by key: the one truth about what a policy may say.

decode.py reads documents by it, docs/policy.md lists it (a test compares the two), the CRD schemas will be made
from it. Refuses nothing itself. `UNUSED` is the one table of keys that are accepted and not acted on yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pointsman.router import policy
from pointsman.router.document import Scalar
from pointsman.router.problem import Severity
from pointsman.router.schema_model import MODEL, build_model
from pointsman.router.schema_names import FILE, LABEL, LATENCY_MS, MODEL_NAME, RATIO
from pointsman.router.schema_route import ROUTE
from pointsman.router.shape import Address, Boolean, Key, Kind, Number, Record, Short, Size, words_of

API_VERSION = "pointsman.dev/v1alpha1"
DOCUMENT_KEYS = ("apiVersion", "kind", "metadata", "spec")

_GIB = 1 << 30

_PROFILE = Record(
    (
        Key("latencyBudgetMs", LATENCY_MS, "P99."),
        Key("minThroughputQPS", Number(0, 1e6, "requests a second"), "Versions that sustain less are filtered."),
        Key("precisionTolerance", RATIO, "Versions that lose more are filtered."),
    ),
    policy.Profile,
)
_LOOP = words_of(policy.LoopMode)
_MODE = Short(
    _LOOP,
    lambda value: policy.Modes(*[cast(policy.LoopMode, value)] * 3),
    Record(
        tuple(Key(loop, _LOOP, f"The {loop} loop.", default="act") for loop in ("breaker", "rollout", "choice")),
        policy.Modes,
    ),
)
_SETTINGS = Record(
    (
        Key("listen", Address(has_names=False), "Where clients connect.", default="127.0.0.1:15001"),
        Key("admin", Address(has_names=False), "Where operators connect.", default="127.0.0.1:15000"),
        Key("mode", _MODE, "Act, or compute and explain only; one word sets all loops.", default="act"),
        Key(
            "tracing",
            Record(
                (
                    Key("otlp", Address(), "OTLP gRPC receiver. Absent: no spans are sent."),
                    Key("sampleRatio", RATIO, "Share of new traces that is kept.", default="0.01"),
                    Key("captureContent", Boolean(), "Put prompts and answers on spans.", default="false"),
                ),
                policy.Tracing,
            ),
            "Where spans go.",
            default="{}",
        ),
        Key(
            "limits",
            Record(
                (
                    Key(
                        "inspectBodyBytes",
                        Size(maximum=_GIB),
                        "Longer bodies are routed by headers.",
                        default="4194304",
                    ),
                    Key("bodyBytes", Size(maximum=_GIB), "Longer bodies are refused with 413.", default="67108864"),
                ),
                policy.Limits,
            ),
            "Body sizes.",
            default="{}",
        ),
        Key(
            "answerHeaders",
            Boolean(),
            "Answers carry x-pointsman-target, x-pointsman-reason, x-trace-id.",
            default="true",
        ),
        Key("stateDir", FILE, "Lock, sockets, last table. Absent: under $XDG_STATE_HOME/pointsman."),
    ),
    policy.Settings,
)

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("Model", MODEL_NAME, MODEL, build_model, "A capability under one name that clients may ask for."),
        Kind(
            "Route",
            LABEL,
            ROUTE,
            lambda name, fields: policy.Route(name, **fields),  # type: ignore[arg-type]  # decode.py checked them
            "Which requests go to which models, and what happens when those cannot answer.",
        ),
        Kind(
            "AIModelProfile",
            MODEL_NAME,
            _PROFILE,
            lambda name, fields: policy.Profile(name, **fields),  # type: ignore[arg-type]  # decode.py checked them
            "Three constraints on the model of the same name.",
        ),
        Kind(
            "Settings",
            LABEL,
            _SETTINGS,
            lambda _, fields: policy.Settings(**fields),  # type: ignore[arg-type]  # decode.py checked them
            "Where the process listens, what it records and keeps; at most one.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Unused:
    """A key that is accepted and not acted on. `unless`: this value (or an empty one) needs nothing and passes.

    In `path`, `[]` is any item of a list and `[1:]` any but the first.
    """

    kind: str
    path: tuple[str, ...]
    unless: Scalar = None
    severity: Severity = Severity.WARNING
    note: str = "accepted, no effect in this version"


UNUSED: tuple[Unused, ...] = (
    Unused("Model", ("spec", "maxInputTokens")),
    Unused("Model", ("spec", "residency"), unless="resident"),
    Unused("Model", ("spec", "coldStartMs")),
    Unused("Model", ("spec", "capability")),
    Unused("Model", ("spec", "placement")),
    Unused("Model", ("spec", "versions", "[]", "slice")),
    Unused(
        "Model",
        ("spec", "versions", "[]", "auth", "secretFile"),
        severity=Severity.ERROR,
        note="not supported in this version: it would send requests without the credential, which is unsafe",
    ),
    Unused("Route", ("spec", "qos", "[]", "priority"), unless=0),
    Unused("Route", ("spec", "switch"), unless="perSession"),
    Unused(
        "Route",
        ("spec", "canary", "header"),
        unless="model-version",
        note="accepted, no effect in this version: only model-version pins",
    ),
    Unused("Route", ("spec", "rules")),
    Unused("Route", ("spec", "require")),
    Unused("Route", ("spec", "scorers")),
    Unused(
        "Route", ("spec", "fallback", "[]", "cached"), note="accepted, no effect in this version: the rung is skipped"
    ),
    Unused(
        "Route", ("spec", "fallback", "[]", "site"), note="accepted, no effect in this version: the rung is skipped"
    ),
    Unused("Route", ("spec", "breaker", "hard"), unless=False),
    Unused("Route", ("spec", "breaker", "percentiles")),
    Unused("Route", ("spec", "pin", "maxConcurrency")),
    Unused("AIModelProfile", ("spec", "latencyBudgetMs")),
    Unused("Settings", ("spec", "mode", "choice"), unless="act"),
    Unused(
        "Settings",
        ("spec", "tracing", "captureContent"),
        unless=False,
        severity=Severity.ERROR,
        note="not supported in this version: prompts and answers are never captured",
    ),
)
