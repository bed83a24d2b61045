"""Document: a policy document as a tree of values, each with the line where it stands.

Decides nothing about policy. Made by the file shell (and later from cluster objects), read by decode.py and
crosscheck.py. Scalars have been given their type by the shell; `text` is what was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from pointsman.router.problem import one_line

Scalar = str | int | float | bool | None
Step = str | int
"""One step into a tree: a key of a mapping, or an index of a list."""


@dataclass(frozen=True, slots=True)
class Value:
    """A scalar. `text` is as written, without quotes."""

    line: int
    value: Scalar
    text: str = ""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A value that the shell could not read and has already reported: nobody reports it again."""

    line: int


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    line: int
    items: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping, its own line, and its value."""

    key: str
    line: int
    node: Node


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping; keys are unique (the shell keeps the first and reports the others)."""

    line: int
    entries: tuple[Entry, ...] = ()

    def get(self, key: str) -> Node | None:
        """Return the value of that key, or None."""
        return next((entry.node for entry in self.entries if entry.key == key), None)


Node: TypeAlias = Value | Unreadable | Items | Fields


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file. `line` is where it starts."""

    file: str
    line: int
    root: Node = field(default_factory=lambda: Fields(1))

    def at(self, *steps: Step) -> Node | None:
        """Return the node at that place, or None."""
        node: Node | None = self.root
        for step in steps:
            node = _inside(node, step)
        return node

    def line_of(self, *steps: Step) -> int:
        """Return the line of the deepest node that exists on the way to that place."""
        node: Node | None = self.root
        line = self.root.line
        for step in steps:
            node = _inside(node, step)
            if node is None:
                break
            line = node.line
        return line

    def text(self, *steps: Step) -> str | None:
        """Return the text at that place, or None when there is none or it is not text."""
        node = self.at(*steps)
        return node.value if isinstance(node, Value) and isinstance(node.value, str) else None

    def written(self, *steps: Step) -> str | None:
        """Return the scalar at that place as it is written, whatever its type, or None when there is none."""
        node = self.at(*steps)
        return node.text if isinstance(node, Value) and node.value is not None else None

    @property
    def title(self) -> str:
        """How problems name the document: `Route support`."""
        words = (self.written("kind"), self.written("metadata", "name"))
        return " ".join(one_line(word[:64]) for word in words if word)

    def items(self, *steps: Step) -> Iterator[tuple[int, Node]]:
        """Yield the items of the list at that place with their index; nothing when it is not a list."""
        node = self.at(*steps)
        yield from enumerate(node.items if isinstance(node, Items) else ())


def dotted(*steps: Step) -> str:
    """Return a place as it is shown: `spec.versions[0].name`."""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _inside(node: Node | None, step: Step) -> Node | None:
    if isinstance(node, Fields) and isinstance(step, str):
        return node.get(step)
    if isinstance(node, Items) and isinstance(step, int) and 0 <= step < len(node.items):
        return node.items[step]
    return None
