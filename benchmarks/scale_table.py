"""A policy whose table has as many rows as wanted: models with a canary, two classes and a canned rung each."""

from __future__ import annotations

ROWS_EACH = 10
"""Rows of one model: two pins, two named classes, default, unknown, two by number, unreadable, unmet."""

MODEL = """apiVersion: pointsman.dev/v1alpha1
kind: Model
metadata: {{name: {name}}}
spec:
  provider: vllm
  intents: [chat, summarize]
  versions:
    - {{name: v1, quality: 0.86, endpoints: [{{address: "127.0.0.1:{old}", node: node-a}}]}}
    - {{name: v2, quality: 0.90, endpoints: [{{address: "127.0.0.1:{new}", node: node-a}}]}}
---
apiVersion: pointsman.dev/v1alpha1
kind: Route
metadata: {{name: {name}}}
spec:
  match: {{models: [{name}]}}
  targets: [{name}]
  qos:
    - {{name: interactive, latencyBudgetMs: 120, minQuality: 0.8, priority: 10}}
    - {{name: batch, latencyBudgetMs: 5000, priority: 0}}
  defaultQos: interactive
  canary: {{model: {name}, version: v2, stickBy: [x-context-id], weight: {weight}}}
  fallback: [{{canned: {{status: 503, retryAfter: 2}}}}]
  retries: {{max: 1, retryOn: [connect-failure, refused-stream, reset-before-request, "503"]}}
---
"""
SETTINGS = """apiVersion: pointsman.dev/v1alpha1
kind: Settings
metadata: {{name: default}}
spec: {{listen: "127.0.0.1:{listen}", admin: "127.0.0.1:{admin}", stateDir: "{state}"}}
"""


def model_name(number: int) -> str:
    """Return the name of one model; a request names the first to see a change."""
    return f"model-{number:03}"


def policy(rows: int, weight: int, *, ports: tuple[int, int], listen: int, admin: int, state: str) -> str:
    """Return the policy; `weight` is the first model's canary, `ports` those of the old and the new side."""
    old, new = ports
    documents = [
        MODEL.format(name=model_name(number), old=old, new=new, weight=5 if number else weight)
        for number in range(rows // ROWS_EACH)
    ]
    return "".join((*documents, SETTINGS.format(listen=listen, admin=admin, state=state)))
