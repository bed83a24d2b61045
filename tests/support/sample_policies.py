"""Small policies that several tests share."""

from dataclasses import replace

from pointsman.router.policy import (
    Canary,
    CannedFallback,
    Cost,
    Endpoint,
    Intent,
    Match,
    Model,
    ModelFallback,
    Policy,
    QosClass,
    Route,
    Version,
)


def version(name: str, port: int, *accepts: str, quality: float | None = None, cost: float | None = None) -> Version:
    return Version(
        name=name,
        endpoints=(Endpoint(f"127.0.0.1:{port}"),),
        accepts=accepts,
        quality=quality,
        cost=Cost(cost / 2, cost) if cost is not None else None,
    )


SUPPORT_CHAT = Model(
    name="support-chat",
    versions=(
        version("v2.2", 9001, "support-chat", quality=0.86, cost=1.0),
        version("v2.3-beta", 9002, "support-chat", quality=0.90, cost=1.0),
    ),
    intents=(Intent.CHAT, Intent.SUMMARIZE),
)
SMALL_CHAT = Model(
    name="small-chat",
    versions=(version("v1", 9003, "small-chat", "support-chat", quality=0.6, cost=0.1),),
    intents=(Intent.CHAT, Intent.SUMMARIZE),
)
EMBEDDER = Model(name="embedder", versions=(version("v1", 9004, "embedder"),), intents=(Intent.EMBED,))

INTERACTIVE = QosClass("interactive", 120, min_quality=0.8, max_cost_per_million=2.0, priority=10)
BATCH = QosClass("batch", 5000)

SUPPORT = Route(
    name="support",
    targets=("support-chat",),
    match=Match(intents=(Intent.CHAT, Intent.SUMMARIZE)),
    qos=(INTERACTIVE, BATCH),
    default_qos="interactive",
    canary=Canary(model="support-chat", version="v2.3-beta", weight_parts=500),
    fallback=(ModelFallback("small-chat"), CannedFallback(503, 2)),
)
EMBED = Route(name="embed", targets=("embedder",), match=Match(intents=(Intent.EMBED,)))

SUPPORT_POLICY = Policy(models=(SUPPORT_CHAT, SMALL_CHAT, EMBEDDER), routes=(SUPPORT, EMBED))


def with_route(**changes: object) -> Policy:
    """The support policy with its first route changed."""
    return replace(SUPPORT_POLICY, routes=(replace(SUPPORT, **changes), EMBED))  # type: ignore[arg-type]
