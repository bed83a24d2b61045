"""Shapes: what a value in a policy may look like. The words in which schema.py says what every key is.

Decides nothing: a shape is data. `expected()` is the phrase that problems and docs/policy.md use. Read by schema.py,
decode.py and, later, the generator of the CRD schemas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Text:
    """Text that matches a pattern as a whole, minus reserved words and prefixes. `is_folded`: upper case is lowered."""

    phrase: str
    pattern: re.Pattern[str] | None = None
    max_characters: int = 1_024
    reserved: tuple[str, ...] = ()
    refused_prefixes: tuple[str, ...] = ()
    is_folded: bool = False

    def expected(self) -> str:
        return self.phrase


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression that RE2 and Python read alike."""

    def expected(self) -> str:
        return "a regular expression (RE2) that matches the whole value"


@dataclass(frozen=True, slots=True)
class Address:
    """`host:port`. A place to listen at has no DNS name."""

    has_names: bool = True

    def expected(self) -> str:
        host = "an IPv4 address, [IPv6 address] or DNS name" if self.has_names else "an IPv4 address or [IPv6 address]"
        return f"host:port (host: {host}; port: 1 to 65535)"


@dataclass(frozen=True, slots=True)
class Words:
    """One of a few words; each stands for a value."""

    values: tuple[tuple[str, object], ...]

    def expected(self) -> str:
        words = [word for word, _ in self.values]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


@dataclass(frozen=True, slots=True)
class Boolean:
    """true or false."""

    def expected(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number in a range."""

    minimum: int
    maximum: int
    unit: str = ""

    def expected(self) -> str:
        return f"a whole number from {self.minimum} to {self.maximum}{self.unit and ' ' + self.unit}"


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a range. `is_open`: the minimum itself is not allowed."""

    minimum: float
    maximum: float
    unit: str = ""
    is_open: bool = False

    def expected(self) -> str:
        unit = self.unit and " " + self.unit
        if self.is_open:
            return f"a number above {self.minimum:g}, at most {self.maximum:g}{unit}"
        return f"a number from {self.minimum:g} to {self.maximum:g}{unit}"


@dataclass(frozen=True, slots=True)
class Percent:
    """A percentage with at most two decimals → parts of 10,000."""

    minimum_parts: int = 0

    def expected(self) -> str:
        return f"a percentage from {self.minimum_parts / 100:g} to 100 (at most two decimals)"


@dataclass(frozen=True, slots=True)
class Duration:
    """A whole count of ms, s, m or h → milliseconds. `zero` says what 0 does; empty: zero is refused."""

    zero: str = ""
    maximum_ms: int = 30 * DAY_MS

    def expected(self) -> str:
        zero = f"; 0s {self.zero}" if self.zero else ", more than zero"
        return f"a duration such as 250ms, 5s, 10m or 1h{zero}"


@dataclass(frozen=True, slots=True)
class Size:
    """A count of bytes, or of Ki, Mi, Gi or Ti → bytes."""

    minimum: int = 1
    maximum: int = 1 << 50

    def expected(self) -> str:
        return f"a size from {_size_text(self.minimum)} to {_size_text(self.maximum)} (bytes, or such as 512Mi, 2Gi)"


@dataclass(frozen=True, slots=True)
class Range:
    """`[start, end]`: whole numbers, start below end; end itself is outside."""

    def expected(self) -> str:
        return "two whole numbers [start, end], start below end"


@dataclass(frozen=True, slots=True)
class Scores:
    """A mapping from names to weights → pairs."""

    of: Number

    def expected(self) -> str:
        return f"a mapping from names to {self.of.expected().removeprefix('a ')}"


@dataclass(frozen=True, slots=True)
class Listing:
    """A list. `unique_key`: the key that two items may not share; empty with `is_unique`: the items themselves."""

    of: Shape
    minimum: int = 0
    maximum: int = 256
    is_unique: bool = False
    unique_key: str = ""

    def expected(self) -> str:
        least = f"{self.minimum} to {self.maximum}" if self.minimum else f"at most {self.maximum}"
        return f"a list of {least}: {self.of.expected()}"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a record. `default` is as written in a file; empty: absent means not stated.

    `attr` is the field of the value where it is not the key in snake case.
    """

    name: str
    shape: Shape
    meaning: str
    attr: str = ""
    default: str = ""
    is_required: bool = False

    @property
    def field(self) -> str:
        """The name of the field that takes the value."""
        return self.attr or _snake(self.name)


@dataclass(frozen=True, slots=True)
class Record:
    """A mapping with known keys → `build(**fields)`. At most one of `one_of` (exactly one with `needs_one`) is stated.

    `is_secret`: neither its keys nor its values are shown in problems.
    """

    keys: tuple[Key, ...]
    build: Callable[..., object]
    one_of: tuple[str, ...] = ()
    needs_one: bool = False
    is_secret: bool = False

    def expected(self) -> str:
        return f"a mapping with {', '.join(key.name for key in self.keys)}"


@dataclass(frozen=True, slots=True)
class Short:
    """A record that may also be written as one scalar, which `build` turns into the same value."""

    scalar: Shape
    build: Callable[[object], object]
    record: Record

    def expected(self) -> str:
        return f"{self.scalar.expected()}, or {self.record.expected()}"


Shape: TypeAlias = (
    Text
    | Pattern
    | Address
    | Words
    | Boolean
    | Integer
    | Number
    | Percent
    | Duration
    | Size
    | Range
    | Scores
    | Listing
    | Record
    | Short
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of document. `build(name, fields)` makes its value from the fields of its spec."""

    name: str
    name_shape: Text
    spec: Record
    build: Callable[[str, Mapping[str, object]], object]
    meaning: str


def words_of(enum: type[Enum]) -> Words:
    """Return the words of an enum of text."""
    return Words(tuple((str(member.value), member) for member in enum))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z]+)", lambda match: "_" + match[1].lower(), name)


def _size_text(count: int) -> str:
    for unit, factor in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)
