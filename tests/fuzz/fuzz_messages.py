"""Changes of protobuf messages field by field, for fuzz targets: bytes that do not parse reach no decoder."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

NUMBERS = (
    0,
    1,
    2,
    5,
    127,
    128,
    255,
    256,
    65_535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**64 - 1,
    -1,
    -(2**31),
)
TEXTS = ("", "\n", "a", "-1", "1e999", "nan", "9" * 30, "ü", "\u202e", "\x00", "x" * 300, "%", ",", "é" * 256, "*", "١")
"""What is likely to be taken wrongly."""

Place = tuple[Message, FieldDescriptor]
Mutate = Callable[[bytes, int], bytes]


def change_message(message: Message, mutate: Mutate, chance: random.Random) -> None:
    """Change one to three fields of the message, wherever they are; a field may also be set anew or cleared."""
    for _ in range(chance.randint(1, 3)):
        places = list(_places(message))
        if not places:
            return
        owner, field = chance.choice(places)
        try:
            _change(owner, field, mutate, chance)
        except (ValueError, TypeError, OverflowError):  # out of the field's range
            continue


def parsed(data: bytes, message_type: type[Message]) -> Message | None:
    """Return the message, or None where the bytes are none."""
    try:
        return message_type.FromString(data)
    except DecodeError:
        return None


def _places(message: Message, depth: int = 0) -> Iterator[Place]:
    """Yield every field of the message and of those in it: the set ones twice, since they are seen by somebody."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is None or depth > 6:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for entry in value.values():
                    yield from _places(entry, depth + 1)
        elif field.is_repeated:
            for entry in value:
                yield from _places(entry, depth + 1)
        else:
            yield from _places(value, depth + 1)


def _change(owner: Message, field: FieldDescriptor, mutate: Mutate, chance: random.Random) -> None:
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if chance.random() < 0.1:
        owner.ClearField(field.name)
    elif is_map:
        _change_map(owner, field, mutate, chance)
    elif field.message_type is not None:
        made = getattr(owner, field.name)
        made.add() if field.is_repeated else made.SetInParent()
    elif field.is_repeated:
        values = getattr(owner, field.name)
        if values and chance.random() < 0.7:
            place = chance.randrange(len(values))
            values[place] = _other(field, values[place], mutate, chance)
        else:
            values.append(_other(field, None, mutate, chance))
    else:
        setattr(owner, field.name, _other(field, getattr(owner, field.name), mutate, chance))


def _change_map(owner: Message, field: FieldDescriptor, mutate: Mutate, chance: random.Random) -> None:
    entries, kinds = getattr(owner, field.name), field.message_type.fields_by_name
    is_known = len(entries) > 0 and chance.random() < 0.8
    key = chance.choice(sorted(entries)) if is_known else _other(kinds["key"], None, mutate, chance)
    if kinds["value"].message_type is not None:
        entries[key].SetInParent()
    else:
        entries[key] = _other(kinds["value"], entries.get(key), mutate, chance)


def _other(field: FieldDescriptor, value: object, mutate: Mutate, chance: random.Random) -> object:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if chance.random() < 0.3:
            text: bytes = chance.choice(TEXTS).encode()
        else:
            before = value if isinstance(value, bytes) else str(value or "").encode()
            text = mutate(before, len(before) + 40)
        return text if field.type == FieldDescriptor.TYPE_BYTES else text.decode("utf-8", "replace")
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return chance.choice((0.0, -1.0, 1e308, float("inf"), float("nan")))
    return chance.choice(NUMBERS)
