"""Policy documents as trees, written as plain Python values; every value of a document stands on one line."""

from __future__ import annotations

from pointsman.router.decode import Decoded
from pointsman.router.document import Document, Entry, Fields, Items, Node, Value
from pointsman.router.problem import Severity
from pointsman.router.schema import API_VERSION


def tree(value: object, line: int = 1) -> Node:
    """Return a value as a tree."""
    if isinstance(value, dict):
        return Fields(line, tuple(Entry(str(name), line, tree(item, line)) for name, item in value.items()))
    if isinstance(value, list):
        return Items(line, tuple(tree(item, line) for item in value))
    assert value is None or isinstance(value, str | int | float | bool)
    return Value(line, value, str(value))


def document(kind: str, name: object, spec: object, line: int = 1) -> Document:
    """Return a document with its four keys."""
    root = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    return Document("p.yaml", line, tree(root, line))


def version(name: object = "v1", **fields: object) -> dict[str, object]:
    """Return a version with one endpoint."""
    return {"name": name, "endpoints": [{"address": "127.0.0.1:9001"}], **fields}


def model(name: object = "m", *versions: dict[str, object], line: int = 1, **spec: object) -> Document:
    """Return a Model; without versions it has v1."""
    return document("Model", name, {"versions": list(versions or (version(),)), **spec}, line)


def route(name: object = "r", line: int = 1, **spec: object) -> Document:
    """Return a Route to model m."""
    return document("Route", name, {"targets": ["m"], **spec}, line)


def settings_of(**spec: object) -> Document:
    """Return a Settings."""
    return document("Settings", "default", spec)


def lines_of(decoded: Decoded, severity: Severity = Severity.ERROR) -> list[str]:
    """Return the problems of that severity as they are shown."""
    return [problem.render() for problem in decoded.problems if problem.severity is severity]
