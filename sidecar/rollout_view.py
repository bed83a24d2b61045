"""Rollouts as JSON for `/rollouts`: where each one stands, both versions side by side, what happened. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from pointsman.router.policy import FULL_SHARE
from pointsman.router.rollout_evidence import P50, P90, Histogram, Tally
from pointsman.router.rollouts import Standing
from pointsman.router.wilson import lower_bound, upper_bound
from pointsman.sidecar.rollout_store import Happened
from pointsman.sidecar.views import Json


def rollouts_view(
    standings: Iterable[Standing], history: Mapping[str, tuple[Happened, ...]], now_ms: int, *, acts: bool
) -> Json:
    """Return every rollout: phase, step, share, reason, next look, the step's evidence of both versions, history."""
    return {
        "mode": "act" if acts else "observe",
        "rollouts": [_rollout(standing, history.get(standing.plan.route, ()), now_ms) for standing in standings],
    }


def _rollout(standing: Standing, history: tuple[Happened, ...], now_ms: int) -> Json:
    plan, state = standing.plan, standing.state
    next_ms = standing.next_look_ms
    return {
        "route": plan.route,
        "phase": state.phase.value,
        "reason": state.cause.value,
        "since": _time(history[-1].unix_ms) if history else None,
        "step": state.step + 1,
        "steps": [step.weight_parts / 100 for step in plan.steps],
        "sharePercent": standing.share_parts * 100 / FULL_SHARE,
        "nextLookInMs": max(0, next_ms - now_ms) if next_ms is not None else None,
        "maxErrorRatio": plan.analysis.max_error_ratio if plan.analysis else None,
        "canary": _side(plan.target, standing.look.whole.canary),
        "stable": _side(f"{plan.model}@{plan.stable}", standing.look.whole.stable),
        "history": [_happened(item) for item in history],
    }


def _side(target: str, tally: Tally) -> Json:
    return {
        "target": target,
        "requests": tally.requests,
        "failures": tally.failures,
        "errorRatio": _rounded(tally.error_ratio, 6),
        "errorRatioBounds": [
            round(lower_bound(tally.failures, tally.requests), 6),
            round(upper_bound(tally.failures, tally.requests), 6),
        ],
        "durationMs": _quantiles(tally.durations),
        "firstTokenMs": _quantiles(tally.first_tokens),
        "tokensPerSecond": _rounded(tally.tokens_per_s, 1),
    }


def _quantiles(times: Histogram) -> Json:
    return {"p50": _rounded(times.quantile(P50), 1), "p90": _rounded(times.quantile(P90), 1)}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _happened(item: Happened) -> Json:
    return {
        "time": _time(item.unix_ms),
        "target": item.target,
        "before": item.before.value,
        "after": item.after.value,
        "step": item.step + 1,
        "sharePercent": item.share_parts * 100 / FULL_SHARE,
        "reason": item.cause.value,
        "canary": list(item.canary),
        "stable": list(item.stable),
    }


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).isoformat(timespec="milliseconds")
