"""What a simulated model server tells about its load: vLLM's metrics as text, and ORCA load reports.

Names, units and buckets are vLLM's (V1 engine): prefix cache counters count tokens, kv_cache_usage_perc is 0..1.
Written by hand because only otel may know a metrics library. Recording is a few additions; rendering is the scraper's.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from dataclasses import dataclass, field

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
LATENCY_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)

FINISH_REASONS = ("stop", "length", "abort", "error")
"""Every value of the label finished_reason; always shown, so that a rate starts at zero."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_RATE_WINDOW_S = 1.0
"""How fast the request rate follows: a load balancer wants now, not the last minute."""


class Histogram:
    """Observations by bucket, upper bounds included."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds_s, value_s)] += 1
        self._sum_s += value_s

    def lines(self, name: str, labels: str) -> list[str]:
        """The samples in the text format."""
        lines = []
        total = 0
        for bound, count in zip((*self._bounds_s, math.inf), self._counts, strict=True):
            total += count
            le = "+Inf" if math.isinf(bound) else str(bound)
            lines.append(f'{name}_bucket{{le="{le}",{labels}}} {float(total)}')
        return [*lines, f"{name}_sum{{{labels}}} {self._sum_s}", f"{name}_count{{{labels}}} {float(total)}"]


class RequestRate:
    """Requests a second, by exponential decay over about a second."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._at_s = 0.0

    def count(self, now_s: float) -> None:
        """One request came in."""
        self._rate = self.at(now_s) + 1 / _RATE_WINDOW_S
        self._at_s = now_s

    def at(self, now_s: float) -> float:
        """The rate at `now_s`."""
        return self._rate * math.exp((self._at_s - now_s) / _RATE_WINDOW_S)


@dataclass(slots=True)
class Counters:
    """What the server has done since it started."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS_S))
    latency: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS_S))
    queue: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS_S))


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the server is. The KV cache is taken to be as full as the slots are."""

    running: int
    waiting: int
    slots: int
    requests_per_s: float

    @property
    def kv_cache_ratio(self) -> float:
        """Running requests by slots, at most 1."""
        return min(1.0, self.running / self.slots)

    @property
    def utilization(self) -> float:
        """Running and waiting requests by slots; over 1 when some wait."""
        return (self.running + self.waiting) / self.slots


def load_report(load: Load, wanted: str) -> str | None:
    """The `endpoint-load-metrics` value in the format that the request names (TEXT or JSON); None for others."""
    named = {"kv_cache_usage_perc": round(load.kv_cache_ratio, 4), "num_requests_waiting": load.waiting}
    top = {"application_utilization": round(load.utilization, 4), "rps_fractional": round(load.requests_per_s, 3)}
    match wanted.strip().upper():
        case "TEXT":
            pairs = [*top.items(), *((f"named_metrics.{name}", value) for name, value in named.items())]
            return "TEXT " + ", ".join(f"{name}={value}" for name, value in pairs)
        case "JSON":
            return "JSON " + json.dumps({**top, "named_metrics": named}, separators=(",", ":"))
        case _:
            return None


def exposition(counters: Counters, load: Load, model: str) -> str:
    """Everything GET /metrics answers."""
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'engine="0",model_name="{escaped}"'
    lines: list[str] = []
    for name, kind, text, value in (
        ("num_requests_running", "gauge", "Number of requests in model execution batches.", load.running),
        ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", load.waiting),
        ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", load.kv_cache_ratio),
        ("prefix_cache_queries_total", "counter", "Prompt tokens looked up.", counters.prefix_queries),
        ("prefix_cache_hits_total", "counter", "Prompt tokens found cached.", counters.prefix_hits),
        ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", counters.prompt_tokens),
        ("generation_tokens_total", "counter", "Number of generation tokens processed.", counters.generation_tokens),
    ):
        lines += [*_head(name, kind, text), f"vllm:{name}{{{labels}}} {float(value)}"]
    lines += _head("request_success_total", "counter", "Count of processed requests by the reason they ended.")
    lines += [
        f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{escaped}"}} {float(count)}'
        for reason, count in counters.finished.items()
    ]
    for name, text, histogram in (
        ("time_to_first_token_seconds", "Time to first token in seconds.", counters.ttft),
        ("e2e_request_latency_seconds", "End to end request latency in seconds.", counters.latency),
        ("request_queue_time_seconds", "Time spent waiting in seconds.", counters.queue),
    ):
        lines += [*_head(name, "histogram", text), *histogram.lines(f"vllm:{name}", labels)]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"
