"""Scalars of a policy: from a value as written to a value in our units.

Decides what text, numbers, durations, sizes, percentages and addresses are accepted; strict about types (true is not 1,
5.0 is not a whole number). Refuses by returning a Fault. Called by reading.py.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from decimal import Decimal

from pointsman.router.document import Value
from pointsman.router.policy import FULL_SHARE
from pointsman.router.problem import nearest_name
from pointsman.router.regex import regex_fault
from pointsman.router.shape import (
    Address,
    Boolean,
    Duration,
    Integer,
    Number,
    Pattern,
    Percent,
    Shape,
    Size,
    Text,
    Words,
)

_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_SIZE = re.compile(r"([0-9]{1,15})(Ki|Mi|Gi|Ti)?")
_UNIT_BYTES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:]+)):([1-9][0-9]{0,4})")
_DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    r"(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*"
)
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a scalar is not accepted, where the shape's phrase does not say it all."""

    note: str | None = None
    nearest: str | None = None


def read_scalar(shape: Shape, node: Value) -> object:
    """Return the value in our units, or a Fault."""
    value = node.value
    match shape:
        case Boolean():
            return value if isinstance(value, bool) else Fault()
        case Integer() | Number():
            return _number(shape, value)
        case Percent():
            return _parts(shape, value)
        case Size():
            return _bytes(shape, value)
        case Words():
            return _word(shape, node)
        case _:
            return _text(shape, value) if isinstance(value, str) else _not_text(shape, node)


def _number(shape: Integer | Number, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int if isinstance(shape, Integer) else int | float):
        return Fault()
    # Compared before any conversion: an int may be too large for a float, and NaN compares false.
    if not shape.minimum <= value <= shape.maximum:
        return Fault()
    if isinstance(shape, Integer):
        return value
    return Fault() if shape.is_open and value == shape.minimum else float(value)


def _parts(shape: Percent, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        return Fault()
    parts = Decimal(str(value)) * (FULL_SHARE // 100)
    return int(parts) if parts == int(parts) and parts >= shape.minimum_parts else Fault()


def _bytes(shape: Size, value: object) -> object:
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        value = int(match[1]) * _UNIT_BYTES[match[2]] if match and match[2] else None
    if isinstance(value, bool) or not isinstance(value, int):
        return Fault()
    return value if shape.minimum <= value <= shape.maximum else Fault()


def _word(shape: Words, node: Value) -> object:
    written = {True: "true", False: "false"}[node.value] if isinstance(node.value, bool) else node.value
    for word, value in shape.values:
        if word == written:
            return value
    return Fault(
        nearest=nearest_name(written, (word for word, _ in shape.values)) if isinstance(written, str) else None
    )


def _not_text(shape: Shape, node: Value) -> Fault:
    if node.value is not None and node.text and not isinstance(_text(shape, node.text), Fault):
        return Fault("put it in quotes")
    return Fault()


def _text(shape: Shape, text: str) -> object:
    match shape:
        case Text():
            return _plain(shape, text)
        case Duration():
            return _milliseconds(shape, text)
        case Address():
            return _address(shape, text)
        case Pattern():
            fault = regex_fault(text) if _is_clean(text) else "it has control characters"
            return text if fault is None else Fault(fault)
        case _:
            return Fault()


def _plain(shape: Text, text: str) -> object:
    text = text.lower() if shape.is_folded else text
    if len(text) > shape.max_characters:
        return Fault(f"it has {len(text)} characters, at most {shape.max_characters} are allowed")
    if not _is_clean(text) or text in shape.reserved or text.startswith(shape.refused_prefixes):
        return Fault()
    if shape.pattern is not None and shape.pattern.fullmatch(text) is None:
        return Fault()
    return text


def _is_clean(text: str) -> bool:
    """Text that can be written to files, logs and the proxy: not empty, no control characters, no half characters."""
    return bool(text) and not any(sign < " " or sign == "\x7f" or "\ud800" <= sign <= "\udfff" for sign in text)


def _milliseconds(shape: Duration, text: str) -> object:
    match = _DURATION.fullmatch(text)
    if match is None:
        return Fault()
    count_ms = int(match[1]) * _UNIT_MS[match[2]]
    if count_ms > shape.maximum_ms:
        return Fault(f"at most {shape.maximum_ms // _UNIT_MS['h']}h")
    return count_ms if count_ms > 0 or shape.zero else Fault()


def _address(shape: Address, text: str) -> object:
    match = _HOST_PORT.fullmatch(text)
    if match is None or int(match[3]) > _MAX_PORT:
        return Fault()
    try:
        if match[1] is not None:
            ipaddress.IPv6Address(match[1])
        elif match[2].rpartition(".")[2].isdigit() or not shape.has_names:
            ipaddress.IPv4Address(match[2])
        elif _DNS_NAME.fullmatch(match[2]) is None:
            return Fault()
    except ValueError:
        return Fault()
    return text
