"""The policies that are measured: a canary with a sticky split and a ladder, a table of one row, and a large table."""

from __future__ import annotations

import json

MODELS, VERSIONS, CLASSES = 20, 4, 4
"""Size of the large table."""

CLASS_BUDGETS_MS = (100, 300, 1_000, 5_000)


def canary(listen: int, backend: int, traces: int | None = None) -> str:
    """Return a policy like manifests/examples/canary.yaml: 5 % of keys to a new version, a lighter model after it."""
    intents = ["chat", "complete"]
    models = [
        _model("support-chat", [_version("v2.2", backend), _version("v2.3-beta", backend)], intents),
        _model("small-chat", [_version("v1", backend) | {"accepts": ["small-chat", "support-chat"]}], intents),
    ]
    route: dict[str, object] = {
        "match": {"intents": intents},
        "targets": ["support-chat"],
        "canary": {"model": "support-chat", "version": "v2.3-beta", "stickBy": ["x-context-id"], "weight": 5},
        "fallback": [{"model": "small-chat"}, {"canned": {"status": 503, "retryAfter": 2}}],
        "retries": {"max": 2, "retryOn": ["connect-failure", "refused-stream", "reset-before-request", "503"]},
    }
    return _documents(listen, models, {"support": route}, traces)


def one_row(listen: int, backend: int) -> str:
    """Return a policy of one model, one version and one route without classes."""
    models = [_model("support-chat", [_version("v1", backend)], ["chat"])]
    route: dict[str, object] = {"match": {"intents": ["chat"]}, "targets": ["support-chat"]}
    return _documents(listen, models, {"all": route}, None)


def large(listen: int, backend: int) -> str:
    """Return 20 models with 4 versions each, and a route each with 4 classes."""
    names = [*(f"model-{number:02}" for number in range(1, MODELS)), "support-chat"]
    versions = [_version(f"v{number + 1}", backend) for number in range(VERSIONS)]
    classes = [{"name": f"class-{n + 1}", "latencyBudgetMs": ms} for n, ms in enumerate(CLASS_BUDGETS_MS[:CLASSES])]
    route: dict[str, object] = {"match": {"intents": ["chat"]}, "targets": names, "qos": classes}
    return _documents(listen, [_model(name, versions, ["chat"]) for name in names], {"all": route}, None)


def _version(name: str, backend: int) -> dict[str, object]:
    return {"name": name, "quality": 0.9, "endpoints": [{"address": f"127.0.0.1:{backend}"}]}


def _model(name: str, versions: list[dict[str, object]], intents: list[str]) -> tuple[str, dict[str, object]]:
    return name, {"intents": intents, "versions": versions}


def _documents(
    listen: int,
    models: list[tuple[str, dict[str, object]]],
    routes: dict[str, dict[str, object]],
    traces: int | None,
) -> str:
    settings: dict[str, object] = {"listen": f"127.0.0.1:{listen}", "admin": "127.0.0.1:9"}
    if traces is not None:
        settings["tracing"] = {"otlp": f"127.0.0.1:{traces}", "sampleRatio": 1.0}
    documents = [_document("Model", name, spec) for name, spec in models]
    documents += [_document("Route", name, spec) for name, spec in routes.items()]
    documents.append(_document("Settings", "default", settings))
    return "\n---\n".join(json.dumps(document) for document in documents)


def _document(kind: str, name: str, spec: dict[str, object]) -> dict[str, object]:
    return {"apiVersion": "pointsman.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
