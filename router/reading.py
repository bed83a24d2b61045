"""Reading: one document, read by the schema.

Decides whether a document is well-formed by itself: its keys, types and ranges. Refuses unknown keys and unknown kinds.
What documents say about one another is crosscheck.py's. Called by decode.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pointsman.router.document import Document, Entry, Fields, Items, Node, Unreadable, Value
from pointsman.router.policy import Model, Policy, Profile, Route, Settings
from pointsman.router.problem import Code, Problem, Severity, nearest_name, one_line, shown
from pointsman.router.scalar import Fault, read_scalar
from pointsman.router.schema import API_VERSION, DOCUMENT_KEYS, KINDS
from pointsman.router.shape import Integer, Kind, Listing, Range, Record, Scores, Shape, Short, Text

MAX_PROBLEMS = 1_000
"""A policy with more is not repaired line by line; the limit also bounds the work on hostile input."""

_HIDDEN = "something that is not shown"
_SCORER_NAME = Text("a name")
_BOUND = Integer(0, 999_999_999)
"""Of a range condition: what a numeric header can hold (number_regex.py)."""


class _Outcome(Enum):
    FAILED = "failed"


FAILED = _Outcome.FAILED
"""In place of a value that could not be read; the problem is reported."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A document and what it means. `name` is as written; `value` is None if the document has an error.

    `kind` is None if it is none of the four: such a document may be anything.
    """

    document: Document
    kind: str | None
    name: str | None
    value: Model | Route | Profile | Settings | None


def read_document(document: Document) -> tuple[Reading, tuple[Problem, ...]]:
    """Return what the document means, and every problem in it."""
    reader = _Reader(document)
    kind, value = reader.document()
    name = document.written("metadata", "name")
    problems = tuple(reader.problems)
    if problems or not isinstance(value, Model | Route | Profile | Settings):
        return Reading(document, kind, name, None), problems
    return Reading(document, kind, name, value), problems


def policy_of(readings: Sequence[Reading]) -> Policy:
    """Return the policy of the documents that could be read."""
    values = [reading.value for reading in readings]
    settings = [value for value in values if isinstance(value, Settings)]
    return Policy(
        models=tuple(value for value in values if isinstance(value, Model)),
        routes=tuple(value for value in values if isinstance(value, Route)),
        profiles=tuple(value for value in values if isinstance(value, Profile)),
        settings=settings[0] if settings else Settings(),
    )


def found_text(node: Node) -> str:
    """Return how a node is shown in a problem."""
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Fields):
        return "a mapping"
    if isinstance(node, Unreadable) or node.value is None:
        return "nothing"
    return shown(node.value) if isinstance(node.value, str) else one_line(node.text[:40])


class _Reader:
    """Walks one document's tree along the schema and collects problems."""

    def __init__(self, document: Document) -> None:
        self.problems: list[Problem] = []
        self._document = document
        self._title = document.title

    def document(self) -> tuple[str | None, object]:
        """Return the document's kind, and its value or FAILED."""
        root = self._document.root
        if not isinstance(root, Fields):
            if not isinstance(root, Unreadable):
                self._wrong(root, "", f"a mapping with {', '.join(DOCUMENT_KEYS)}")
            return None, FAILED
        self._refuse_unknown(root, "", DOCUMENT_KEYS)
        self._word(root, "apiVersion", (API_VERSION,))
        word = self._word(root, "kind", tuple(KINDS))
        if word is None:
            return None, FAILED
        kind = KINDS[word]
        name = self._name(root, kind)
        spec = self._required(root, "spec", kind.spec)
        fields = self._fields(kind.spec, spec, "spec") if isinstance(spec, Fields) else None
        if fields is None or name is None or self.problems:
            return word, FAILED
        return word, kind.build(name, fields)

    def _word(self, root: Fields, key: str, words: tuple[str, ...]) -> str | None:
        node = root.get(key)
        expected = words[0] if len(words) == 1 else f"one of {', '.join(words)}"
        if node is None:
            self._missing(root, key, expected)
        elif isinstance(node, Value) and isinstance(node.value, str):
            if node.value in words:
                return node.value
            self._wrong(node, key, expected, Fault(nearest=nearest_name(node.value, words)))
        else:
            self._wrong(node, key, expected)
        return None

    def _name(self, root: Fields, kind: Kind) -> str | None:
        metadata = self._required(root, "metadata", Record((), dict))
        if not isinstance(metadata, Fields):
            return None
        self._refuse_unknown(metadata, "metadata", ("name",))
        node = metadata.get("name")
        if node is None:
            self._missing(metadata, "metadata.name", kind.name_shape.expected())
            return None
        name = self._value(kind.name_shape, node, "metadata.name")
        return name if isinstance(name, str) else None

    def _required(self, root: Fields, key: str, record: Record) -> Node | None:
        node = root.get(key)
        if node is None:
            self._missing(root, key, "a mapping")
        elif not isinstance(node, Fields):
            self._wrong(node, key, record.expected() if record.keys else "a mapping with name")
        return node

    def _value(self, shape: Shape, node: Node, path: str, *, is_hidden: bool = False) -> object:
        """Return the node's value by its shape, or FAILED after reporting why."""
        if isinstance(node, Unreadable):
            return FAILED
        match shape:
            case Record():
                return self._record(shape, node, path, is_hidden=is_hidden or shape.is_secret)
            case Listing():
                return self._listing(shape, node, path, is_hidden=is_hidden)
            case Short():
                if isinstance(node, Fields):
                    return self._value(shape.record, node, path, is_hidden=is_hidden)
                short = self._scalar(shape.scalar, node, path, expected=shape.expected(), is_hidden=is_hidden)
                return FAILED if short is FAILED else shape.build(short)
            case Range():
                return self._range(shape, node, path)
            case Scores():
                return self._scores(shape, node, path)
            case _:
                return self._scalar(shape, node, path, expected=shape.expected(), is_hidden=is_hidden)

    def _scalar(self, shape: Shape, node: Node, path: str, *, expected: str, is_hidden: bool) -> object:
        value = read_scalar(shape, node) if isinstance(node, Value) else Fault()
        if isinstance(value, Fault):
            self._wrong(node, path, expected, value, is_hidden=is_hidden)
            return FAILED
        return value

    def _record(self, record: Record, node: Node, path: str, *, is_hidden: bool) -> object:
        if not isinstance(node, Fields):
            self._wrong(node, path, record.expected(), is_hidden=is_hidden)
            return FAILED
        fields = self._fields(record, node, path, is_hidden=is_hidden)
        return FAILED if fields is None else record.build(**fields)

    def _fields(self, record: Record, node: Fields, path: str, *, is_hidden: bool = False) -> dict[str, object] | None:
        """Return the fields that a record's build takes, or None after reporting why not."""
        before = len(self.problems)
        keys = {key.name: key for key in record.keys}
        self._refuse_unknown(node, path, tuple(keys), is_hidden=is_hidden)
        self._refuse_conflict(record, node, path)
        fields: dict[str, object] = {}
        is_whole = True
        for entry in node.entries:
            key = keys.get(entry.key)
            if key is None:
                continue
            value = self._value(key.shape, entry.node, f"{path}.{key.name}", is_hidden=is_hidden)
            is_whole = is_whole and value is not FAILED
            fields[key.field] = value
        for key in record.keys:
            if key.is_required and node.get(key.name) is None:
                self._missing(node, f"{path}.{key.name}", key.shape.expected())
        return fields if is_whole and len(self.problems) == before else None

    def _refuse_conflict(self, record: Record, node: Fields, path: str) -> None:
        stated = [entry for entry in node.entries if entry.key in record.one_of]
        words = ", ".join(record.one_of)
        if len(stated) > 1:
            found = " and ".join(entry.key for entry in stated)
            self._add(
                Code.CONFLICT,
                stated[1].line,
                path,
                found,
                f"{'exactly' if record.needs_one else 'at most'} one of {words}",
            )
        elif record.needs_one and not stated:
            self._missing(node, path, f"exactly one of {words}")

    def _refuse_unknown(self, node: Fields, path: str, known: tuple[str, ...], *, is_hidden: bool = False) -> None:
        for entry in node.entries:
            if entry.key in known or self._is_full():
                continue
            # A secret may stand where a key belongs, so there even the key is not shown.
            where = f"{path}.{one_line(entry.key[:64])}".removeprefix(".") if not is_hidden else path
            found = "an unknown key" if not is_hidden else "an unknown key that is not shown"
            nearest = None if is_hidden else nearest_name(entry.key, known)
            self._add(Code.UNKNOWN_KEY, entry.line, where, found, f"one of {', '.join(known)}", Fault(nearest=nearest))

    def _listing(self, listing: Listing, node: Node, path: str, *, is_hidden: bool) -> object:
        if not isinstance(node, Items):
            self._wrong(node, path, listing.expected(), is_hidden=is_hidden)
            return FAILED
        count = len(node.items)
        if not listing.minimum <= count <= listing.maximum:
            self._add(Code.WRONG_VALUE, node.line, path, f"a list of {count}", listing.expected())
            return FAILED
        values = [
            self._value(listing.of, item, f"{path}[{index}]", is_hidden=is_hidden)
            for index, item in enumerate(node.items)
        ]
        if listing.is_unique:
            self._refuse_repeated(node, path, values, "")
        elif listing.unique_key:
            names = [item.get(listing.unique_key) if isinstance(item, Fields) else None for item in node.items]
            texts = [name.value if isinstance(name, Value) else None for name in names]
            self._refuse_repeated(node, path, texts, f".{listing.unique_key}")
        return FAILED if FAILED in values else tuple(values)

    def _refuse_repeated(self, node: Items, path: str, values: Sequence[object], suffix: str) -> None:
        first: dict[object, int] = {}
        for index, (item, value) in enumerate(zip(node.items, values, strict=True)):
            if value is None or value is FAILED:
                continue
            if value in first:
                what = shown(str(getattr(value, "value", value)))
                note = f"{what} is there already, on line {node.items[first[value]].line}"
                self._add(Code.CONFLICT, item.line, f"{path}[{index}]{suffix}", fault=Fault(note))
            else:
                first[value] = index

    def _range(self, shape: Range, node: Node, path: str) -> object:
        if isinstance(node, Items) and len(node.items) == 2:
            start, end = (read_scalar(_BOUND, item) if isinstance(item, Value) else Fault() for item in node.items)
            if isinstance(start, int) and isinstance(end, int) and start < end:
                return start, end
        self._wrong(node, path, shape.expected())
        return FAILED

    def _scores(self, shape: Scores, node: Node, path: str) -> object:
        if not isinstance(node, Fields):
            self._wrong(node, path, shape.expected())
            return FAILED
        pairs: list[tuple[str, object]] = []
        for entry in node.entries:
            self._score_name(entry, path)
            pairs.append((entry.key, self._value(shape.of, entry.node, f"{path}.{one_line(entry.key[:64])}")))
        return FAILED if any(value is FAILED for _, value in pairs) else tuple(pairs)

    def _score_name(self, entry: Entry, path: str) -> None:
        if isinstance(read_scalar(_SCORER_NAME, Value(entry.line, entry.key, entry.key)), Fault):
            self._add(Code.WRONG_VALUE, entry.line, path, shown(entry.key), _SCORER_NAME.expected())

    def _missing(self, node: Node, path: str, expected: str) -> None:
        self._add(Code.MISSING_KEY, node.line, path, "no such key", expected)

    def _wrong(
        self, node: Node, path: str, expected: str, fault: Fault | None = None, *, is_hidden: bool = False
    ) -> None:
        if isinstance(node, Unreadable):
            return
        found = _HIDDEN if is_hidden else found_text(node)
        fault = Fault() if is_hidden else fault
        self._add(Code.WRONG_VALUE, node.line, path, found, expected, fault)

    def _add(
        self,
        code: Code,
        line: int,
        path: str,
        found: str | None = None,
        expected: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        fault = fault or Fault()
        self.problems.append(
            Problem(
                Severity.ERROR,
                code,
                self._document.file,
                line,
                self._title,
                path,
                found,
                expected,
                fault.note,
                fault.nearest,
            )
        )

    def _is_full(self) -> bool:
        return len(self.problems) > MAX_PROBLEMS
