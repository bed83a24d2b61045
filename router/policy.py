"""Policy values: what the four kinds of document say, after the decoder accepted them.

Decides nothing. Made by decode.py, read by every other module of the core. None means "not stated";
times are in milliseconds, ratios in 0..1, shares of traffic in parts of 10,000.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

FULL_SHARE = 10_000
"""Parts of a whole: row weights are integers that sum to this (0.01 % steps, design rule 1)."""


class Intent(StrEnum):
    """What a request wants (design section 2)."""

    CHAT = "chat"
    COMPLETE = "complete"
    SUMMARIZE = "summarize"
    EXTRACT = "extract"
    CODE = "code"
    EMBED = "embed"
    RERANK = "rerank"
    TRANSCRIBE = "transcribe"
    SPEAK = "speak"
    IMAGE = "image"
    VISION = "vision"


GENERATING_INTENTS = frozenset(
    {Intent.CHAT, Intent.COMPLETE, Intent.SUMMARIZE, Intent.EXTRACT, Intent.CODE, Intent.VISION}
)
"""Intents whose latency budget is the time to the first token; the others' is the total time."""


class Residency(StrEnum):
    """Whether a model's weights are loaded (requirements A5)."""

    RESIDENT = "resident"
    ON_DEMAND = "onDemand"
    SCALE_TO_ZERO = "scaleToZero"


class Protocol(StrEnum):
    """What an upstream server speaks: HTTP/1.1, or HTTP/2 without TLS (gRPC servers)."""

    HTTP1 = "http1"
    HTTP2 = "http2"


class Steering(StrEnum):
    """How marked traffic reaches the canary (design rule 7)."""

    ADDRESS = "address"
    MARK = "mark"


class PinMode(StrEnum):
    """What a pin to a version that is out gets: 503 with Retry-After, or the route's ladder."""

    STRICT = "strict"
    LADDER = "ladder"


class SwitchMode(StrEnum):
    """Whether a choice among models may move a session."""

    PER_SESSION = "perSession"
    PER_REQUEST = "perRequest"


class LoopMode(StrEnum):
    """Whether a loop changes traffic or only computes and explains."""

    ACT = "act"
    OBSERVE = "observe"


class MatchKind(StrEnum):
    """How a header or a path is compared."""

    EXACT = "exact"
    PREFIX = "prefix"
    REGEX = "regex"
    RANGE = "range"
    PRESENT = "present"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server process: `host:port`, the node it runs on and the GPUs it uses."""

    address: str
    node: str | None = None
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cost:
    """Price per million tokens, in the owner's currency."""

    input_per_million: float
    output_per_million: float


@dataclass(frozen=True, slots=True)
class Slice:
    """The cgroup that holds one version's processes, and its packets' mark."""

    cgroup: str
    cpu_max: str | None = None
    memory_max_bytes: int | None = None
    mark: int | None = None
    mark_mask: int | None = None
    steering: Steering = Steering.ADDRESS
    coexist: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """One release of a model. `accepts` are the names its server answers to in a body's `model`."""

    name: str
    endpoints: tuple[Endpoint, ...]
    accepts: tuple[str, ...]
    quality: float | None = None
    precision: str | None = None
    precision_loss: float | None = None
    throughput_qps: float | None = None
    cost: Cost | None = None
    secret_file: str | None = None
    protocol: Protocol = Protocol.HTTP1
    slice: Slice | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Preferred and fallback device types (requirements A8)."""

    prefer: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A capability under one name that clients may ask for."""

    name: str
    versions: tuple[Version, ...]
    provider: str = "openai"
    intents: tuple[Intent, ...] = ()
    modalities: tuple[str, ...] = ("text",)
    max_input_tokens: int | None = None
    connect_timeout_ms: int = 1_000
    residency: Residency = Residency.RESIDENT
    cold_start_ms: int | None = None
    openapi_file: str | None = None
    placement: Placement | None = None

    def version(self, name: str) -> Version | None:
        """Return the version of that name, or None."""
        return next((version for version in self.versions if version.name == name), None)


@dataclass(frozen=True, slots=True)
class Target:
    """`model@version`: what a try is sent to."""

    model: str
    version: str

    def __str__(self) -> str:
        return f"{self.model}@{self.version}"


@dataclass(frozen=True, slots=True)
class QosClass:
    """Named demand. `latency_budget_ms`: to the first token on generating intents, in total on the others."""

    name: str
    latency_budget_ms: int
    min_quality: float | None = None
    max_cost_per_million: float | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class PathMatch:
    """A condition on the path without its query: exact, prefix or regex (RE2, whole path)."""

    kind: MatchKind
    value: str


@dataclass(frozen=True, slots=True)
class HeaderMatch:
    """A condition on a header's value (several lines joined by a comma). `range` is [start, end) over integers."""

    name: str
    kind: MatchKind
    value: str = ""
    range_start: int = 0
    range_end: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests a route takes: all stated conditions hold; within one, any value does."""

    intents: tuple[Intent, ...] = ()
    models: tuple[str, ...] = ()
    paths: tuple[PathMatch, ...] = ()
    headers: tuple[HeaderMatch, ...] = ()

    @property
    def condition_count(self) -> int:
        """How many conditions are stated; more go first (design section 4, "Which Route")."""
        return bool(self.intents) + bool(self.models) + bool(self.paths) + len(self.headers)


@dataclass(frozen=True, slots=True)
class Analysis:
    """Limits that a canary must hold against stable (acted on by the rollout loop)."""

    window_ms: int = 60_000
    min_requests: int = 200
    max_error_ratio: float = 0.01
    max_latency_ratio: float | None = None
    max_ttft_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a rollout: the canary's share, and how long it is held."""

    weight_parts: int
    hold_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Canary:
    """A version that gets a share of its model's keys. Either `weight_parts` or `steps` is stated, never both."""

    model: str
    version: str
    header: str = "model-version"
    stick_by: tuple[str, ...] = ("x-context-id", "x-session-id")
    weight_parts: int | None = None
    steps: tuple[Step, ...] = ()
    analysis: Analysis | None = None
    validation: Analysis | None = None

    @property
    def share_parts(self) -> int:
        """The configured share before any rollout decision: the weight, or the first step's."""
        if self.weight_parts is not None:
            return self.weight_parts
        return self.steps[0].weight_parts if self.steps else 0


@dataclass(frozen=True, slots=True)
class VersionFallback:
    """Rung: another version of the arm's own model."""

    version: str


@dataclass(frozen=True, slots=True)
class ModelFallback:
    """Rung: another model (its stable version)."""

    model: str


@dataclass(frozen=True, slots=True)
class CachedFallback:
    """Rung: an answer from the cache."""

    max_age_ms: int
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SiteFallback:
    """Rung: another site, by its base URL and the identity that it must show."""

    url: str
    identity: str | None = None


@dataclass(frozen=True, slots=True)
class CannedFallback:
    """Rung: a fixed answer in the API's error shape."""

    status: int = 503
    retry_after_s: int = 2


Fallback = VersionFallback | ModelFallback | CachedFallback | SiteFallback | CannedFallback


@dataclass(frozen=True, slots=True)
class Retries:
    """Tries after the first one. Conditions are Envoy's names, or a status code as text."""

    max_count: int = 3
    retry_on: tuple[str, ...] = ("connect-failure", "refused-stream", "reset-before-request", "503")
    low_confidence_below: float | None = None


@dataclass(frozen=True, slots=True)
class Breaker:
    """When a target is taken out and how it comes back (acted on by the breaker loop)."""

    error_ratio: float = 0.12
    late_over_budget: float = 2.0
    late_ratio: float = 0.01
    windows_ms: tuple[int, ...] = (5_000, 60_000)
    min_failures: int = 5
    open_for_ms: int = 5_000
    recover_step_parts: int = 500
    recover_every_ms: int = 2_000
    hard: bool = False
    percentiles_source: bool = False


@dataclass(frozen=True, slots=True)
class Pin:
    """What pinned requests get. `max_concurrency` None: no cap of its own."""

    mode: PinMode = PinMode.STRICT
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Per route; zero turns that limit off. `first_byte_ms` ends at the answer's headers."""

    first_byte_ms: int = 30_000
    idle_ms: int = 60_000
    total_ms: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """Multi-modal rule: the first whose condition holds names the target (requirements A6)."""

    when: str
    to: str


@dataclass(frozen=True, slots=True)
class Require:
    """Topology that an endpoint must have."""

    min_link: str | None = None
    same_numa: bool = False
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """Which requests go to which models, how well and how fast they must answer, and what happens when they cannot."""

    name: str
    targets: tuple[str, ...]
    match: Match = Match()
    qos: tuple[QosClass, ...] = ()
    default_qos: str | None = None
    switch: SwitchMode = SwitchMode.PER_SESSION
    pin: Pin = Pin()
    canary: Canary | None = None
    rules: tuple[Rule, ...] = ()
    require: Require | None = None
    fallback: tuple[Fallback, ...] = ()
    retries: Retries = Retries()
    breaker: Breaker = Breaker()
    rewrite_model: bool = False
    scorers: tuple[tuple[str, float], ...] = ()
    timeouts: Timeouts = Timeouts()

    def qos_class(self, name: str) -> QosClass | None:
        """Return the class of that name, or None."""
        return next((qos for qos in self.qos if qos.name == name), None)


@dataclass(frozen=True, slots=True)
class Profile:
    """AIModelProfile: three constraints negotiated at run time (requirements A7); it has its model's name."""

    name: str
    latency_budget_ms: int | None = None
    min_throughput_qps: float | None = None
    precision_tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Modes:
    """Act or observe, per loop."""

    breaker: LoopMode = LoopMode.ACT
    rollout: LoopMode = LoopMode.ACT
    choice: LoopMode = LoopMode.ACT


@dataclass(frozen=True, slots=True)
class Tracing:
    """Where spans go (`host:port` of an OTLP gRPC receiver; None: nowhere) and which share of new traces is kept."""

    otlp: str | None = None
    sample_ratio: float = 0.01
    capture_content: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Bodies above `inspect_body_bytes` are routed by headers; above `body_bytes` they are refused with 413."""

    inspect_body_bytes: int = 4_194_304
    body_bytes: int = 67_108_864


@dataclass(frozen=True, slots=True)
class Settings:
    """One per process: where it listens, what it records, what it keeps."""

    listen: str = "127.0.0.1:15001"
    admin: str = "127.0.0.1:15000"
    mode: Modes = Modes()
    tracing: Tracing = Tracing()
    limits: Limits = Limits()
    answer_headers: bool = True
    state_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """All documents together, checked against one another."""

    models: tuple[Model, ...] = ()
    routes: tuple[Route, ...] = ()
    profiles: tuple[Profile, ...] = ()
    settings: Settings = field(default_factory=Settings)

    def model(self, name: str) -> Model | None:
        """Return the model of that name, or None."""
        return next((model for model in self.models if model.name == name), None)

    def profile(self, model: str) -> Profile | None:
        """Return the profile of that model, or None."""
        return next((profile for profile in self.profiles if profile.name == model), None)
