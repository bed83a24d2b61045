"""The schema is the one truth: the values' fields, their defaults and docs/policy.md follow from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pointsman.router import policy
from pointsman.router.document import Document, Entry, Fields, Items, Node, Value
from pointsman.router.reading import FAILED, _Reader
from pointsman.router.schema import KINDS, UNUSED, Unused
from pointsman.router.shape import Key, Listing, Record, Shape, Short

DOCS = Path(__file__).resolve().parents[2] / "docs" / "policy.md"


def keys_of(shape: Shape, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Record, Key]]:
    """Yield every key below a shape: its path, the record it stands in, itself."""
    if isinstance(shape, Short):
        shape = shape.record
    if isinstance(shape, Listing):
        yield from keys_of(shape.of, (*path, "[]"))
    elif isinstance(shape, Record):
        for key in shape.keys:
            yield (*path, key.name), shape, key
            yield from keys_of(key.shape, (*path, key.name))


def dotted(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".[", "[")


def unused_note(kind: str, path: tuple[str, ...]) -> Unused | None:
    return next((one for one in UNUSED if one.kind == kind and one.path[: len(path)] == path == one.path), None)


def row(kind: str, path: tuple[str, ...], key: Key) -> str:
    """Return a key's row in docs/policy.md."""
    default = "required" if key.is_required else f"`{key.default}`" if key.default not in ("", "{}") else ""
    expected = key.shape.expected()
    if isinstance(key.shape, Record):
        expected = "a mapping"
    elif isinstance(key.shape, Listing) and isinstance(key.shape.of, Record):
        expected = f"a list of {key.shape.minimum} to {key.shape.maximum} mappings"
    elif isinstance(key.shape, Short):
        expected = f"{key.shape.scalar.expected()}, or a mapping"
    unused = unused_note(kind, path)
    effect = ""
    if unused is not None:
        unless = "false" if unused.unless is False else unused.unless
        condition = f"Except `{unless}`: " if unless is not None else ""
        effect = f" *{condition}{unused.note}.*"
    return f"| `{dotted(path)}` | {expected} | {default} | {key.meaning}{effect} |"


ALL_KEYS = [
    pytest.param(kind.name, path, record, key, id=f"{kind.name}-{dotted(path)}")
    for kind in KINDS.values()
    for path, record, key in keys_of(kind.spec, ("spec",))
]
VALUE_OF_SPEC = {"Model": "Model", "Route": "Route", "AIModelProfile": "Profile", "Settings": "Settings"}


def tree(value: object) -> Node:
    if isinstance(value, dict):
        return Fields(1, tuple(Entry(str(name), 1, tree(item)) for name, item in value.items()))
    if isinstance(value, list):
        return Items(1, tuple(tree(item) for item in value))
    assert value is None or isinstance(value, str | int | float | bool)
    return Value(1, value, str(value))


@pytest.mark.parametrize(("kind", "path", "record", "key"), ALL_KEYS)
def test_every_key_is_in_the_reference_as_the_schema_says(
    kind: str, path: tuple[str, ...], record: Record, key: Key
) -> None:
    section = DOCS.read_text().split(f"\n## {kind}\n")[1].split("\n## ")[0]
    assert row(kind, path, key) in section


@pytest.mark.parametrize(("kind", "path", "record", "key"), [one for one in ALL_KEYS if one.values[3].default])
def test_every_stated_default_is_the_value_that_an_absent_key_gives(
    kind: str, path: tuple[str, ...], record: Record, key: Key
) -> None:
    made = record.build if dataclasses.is_dataclass(record.build) else None
    if record is KINDS[kind].spec:
        made = getattr(policy, VALUE_OF_SPEC[kind])
    if made is None:
        pytest.skip("the record is no value of its own")
    field = next(one for one in dataclasses.fields(made) if one.name == key.field)
    default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    if default is None:
        pytest.skip("absent means not stated")
    reader = _Reader(Document("f", 1, tree({})))
    value = reader._value(key.shape, tree(yaml.safe_load(key.default)), "x")
    assert value is not FAILED, reader.problems
    assert default == value


@pytest.mark.parametrize("unused", UNUSED, ids=lambda one: dotted(one.path))
def test_every_unused_key_exists(unused: Unused) -> None:
    path = tuple("[]" if step == "[1:]" else step for step in unused.path)
    known = {one for one, _, _ in keys_of(KINDS[unused.kind].spec, ("spec",))}
    assert path in known or path[:-1] in known
