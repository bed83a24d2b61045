"""YAML events → document trees with line numbers.

Decides how YAML scalars get their type: by YAML 1.2's core. What YAML 1.1 parsers read differently (yes, 010, 1:30) is
refused, since the same document must mean the same in a cluster; so are duplicate keys, anchors, aliases, merge keys,
tags and deep nesting. Called by policy_file.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import yaml
from pointsman.router.document import Document, Entry, Fields, Items, Node, Scalar, Step, Unreadable, Value, dotted
from pointsman.router.problem import Code, Problem, Severity, one_line, shown

MAX_DEPTH = 32
"""The deepest key of the schema is at 8. libyaml takes quadratic time on deep nesting, so reading stops here."""
MAX_NODES = 200_000
"""A policy of a thousand models has fewer values; the limit bounds the time that a hostile file can take."""
MAX_FILE_PROBLEMS = 200
"""More in one file are not reported."""

TOO_DEEP = f"values are nested deeper than {MAX_DEPTH}; the rest of the file is not read"

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9A-Fa-f]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_WORDS: dict[str, Scalar] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_AMBIGUOUS = (
    (
        re.compile(r"yes|no|on|off", re.IGNORECASE),
        "some YAML parsers read it as a boolean: write true or false, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?0[0-9_]+|0o[0-7_]+"),
        "some YAML parsers read it as an octal number: write it in decimal, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?0b[01_]+|0x[0-9A-Fa-f_]*_[0-9A-Fa-f_]*|[-+]?[0-9][0-9_]*_[0-9_]*"),
        "write the number in decimal or as 0x…, without _, or put it in quotes",
    ),
    (
        re.compile(r"[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?"),
        "some YAML parsers read it as a number in base 60: put it in quotes",
    ),
)
_MAX_DIGITS = 40
"""No number in a policy is longer; Python refuses to convert very long ones."""


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not come. `key` waits for its value."""

    line: int
    is_mapping: bool
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    key: Value | None = None
    is_dropped: bool = False

    def closed(self) -> Node:
        if self.is_dropped:
            return Unreadable(self.line)
        if self.is_mapping:
            return Fields(self.line, tuple(self.entries.values()))
        return Items(self.line, tuple(self.items))


class TreeBuilder:
    """Builds trees from the parser's events, without recursion."""

    def __init__(self, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._open: list[_Open] = []
        self._root: Node | None = None
        self._anchors: set[str] = set()
        self._node_count = 0

    def documents(self, events: Iterable[yaml.Event]) -> Iterator[Document]:
        """Yield each document that is not empty; problems stand in `problems`. Past a limit the rest is not read."""
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._root, self._open, reported = None, [], len(self.problems)
            elif isinstance(event, yaml.DocumentEndEvent):
                if self._root is None or (isinstance(self._root, Value) and self._root.value is None):
                    continue
                document = Document(self._file, self._root.line, self._root)
                self.problems[reported:] = [replace(one, document=document.title) for one in self.problems[reported:]]
                yield document
            elif isinstance(event, yaml.NodeEvent):
                if self._is_over(event):
                    return
                self._node(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._add(self._open.pop().closed())

    def report(self, line: int, code: Code, note: str, *, path: str = "", found: str | None = None) -> None:
        """Add a problem, up to MAX_FILE_PROBLEMS."""
        if len(self.problems) < MAX_FILE_PROBLEMS:
            self.problems.append(Problem(Severity.ERROR, code, self._file, line, "", path, found=found, note=note))

    def _is_over(self, event: yaml.NodeEvent) -> bool:
        self._node_count += 1
        if self._node_count > MAX_NODES:
            note = f"the file has more than {MAX_NODES} values; the rest is not read"
        elif len(self._open) >= MAX_DEPTH and isinstance(event, yaml.CollectionStartEvent):
            note = TOO_DEEP
        else:
            return False
        self.problems.append(Problem(Severity.ERROR, Code.TOO_MANY, self._file, _line(event), note=note))
        return True

    def _node(self, event: yaml.NodeEvent) -> None:
        line = _line(event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                self._unsupported(line, "aliases are not supported: write the value out")
            self._add(Unreadable(line))
            return
        if event.anchor is not None:
            self._anchors.add(event.anchor)
            self._unsupported(line, "anchors and aliases are not supported: write the value out each time")
        tag = event.tag if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) else None
        is_tagged = tag is not None and tag != "!"
        if is_tagged:
            self._unsupported(line, "tags are not supported: use quotes to make text")
        if not isinstance(event, yaml.ScalarEvent):
            self._open.append(_Open(line, isinstance(event, yaml.MappingStartEvent), is_dropped=is_tagged))
        elif is_tagged:
            self._add(Unreadable(line))
        elif self._awaits_key() or not event.implicit[0]:
            self._add(Value(line, event.value, event.value))
        else:
            self._add(self._plain(line, event.value))

    def _awaits_key(self) -> bool:
        return bool(self._open) and self._open[-1].is_mapping and self._open[-1].key is None

    def _unsupported(self, line: int, note: str) -> None:
        self.report(line, Code.NOT_SUPPORTED, note, path=self._path())

    def _path(self) -> str:
        """Where the next value stands; what is below `auth` is left out, since a secret may stand there as a key."""
        steps: list[Step] = []
        for one in self._open:
            if not one.is_mapping:
                steps.append(len(one.items))
            elif one.key is not None:
                steps.append(one_line(one.key.text[:64]))
            if steps[-1:] == ["auth"]:
                break
        return dotted(*steps)

    def _is_secret(self) -> bool:
        return any(one.key is not None and one.key.text == "auth" for one in self._open)

    def _plain(self, line: int, text: str) -> Node:
        """Give a scalar without quotes its type; refuse what YAML parsers read differently."""
        if text in _WORDS:
            return Value(line, _WORDS[text], text)
        note = next((note for pattern, note in _AMBIGUOUS if pattern.fullmatch(text)), None)
        is_int, is_float = _INT.fullmatch(text) is not None, _FLOAT.fullmatch(text) is not None
        if note is None and (is_int or is_float) and len(text) > _MAX_DIGITS:
            note = f"a number of {len(text)} characters: put it in quotes if it is text"
        if note is not None:
            found = "something that is not shown" if self._is_secret() else shown(text)
            self.report(line, Code.WRONG_VALUE, note, path=self._path(), found=found)
            return Unreadable(line)
        if is_int:
            return Value(line, int(text, 16 if "x" in text else 10), text)
        return Value(line, float(text.replace(".inf", "inf").replace(".nan", "nan")) if is_float else text, text)

    def _add(self, node: Node) -> None:
        """Put a finished node where it belongs: the root, a list, or a mapping's key or value."""
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        if not parent.is_mapping:
            parent.items.append(node)
        elif parent.key is None:
            parent.key = self._key(node)
        else:
            self._entry(parent, parent.key, node)
            parent.key = None

    def _key(self, node: Node) -> Value:
        if isinstance(node, Value):
            return node
        if not isinstance(node, Unreadable):
            self.report(node.line, Code.SYNTAX, "a key must be a word, not a list or a mapping", path=self._path())
        return Value(node.line, None)

    def _entry(self, parent: _Open, key: Value, node: Node) -> None:
        if key.value is None:
            return  # reported already
        name = key.text
        if name == "<<":
            self.report(
                key.line, Code.NOT_SUPPORTED, "merge keys are not supported: write the keys out", path=self._path()
            )
        elif name in parent.entries:
            found = "a key that is not shown" if self._is_secret() else f"{shown(name)} again"
            note = f"the key is there already, on line {parent.entries[name].line}"
            self.report(key.line, Code.DUPLICATE_KEY, note, path=self._path(), found=found)
        else:
            parent.entries[name] = Entry(name, key.line, node)


def _line(event: yaml.NodeEvent) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1
