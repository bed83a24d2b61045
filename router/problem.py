"""Problem: one thing that is wrong, or worth knowing, in a policy, and how it reads on one line.

Decides how found values are shown: short, on one line, without control characters. Refuses nothing. Made by decode.py,
crosscheck.py, advice.py and the file shell; printed by `check`, logged by `run` and `reload`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

SHOWN_CHARACTERS = 60
"""A found text is cut here, so that one bad value cannot fill a terminal."""

COMPARED_CHARACTERS = 128
"""Longer words have no nearest name: no key or name is longer, and the comparison is quadratic."""
COMPARED_NAMES = 200
"""Only so many known names are compared, so that a large policy with many mistakes is still checked quickly."""


class Severity(StrEnum):
    """An error refuses the policy; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


class Code(StrEnum):
    """What kind of problem it is; stable, for programs that read `--json`."""

    UNREADABLE = "unreadable"
    SYNTAX = "syntax"
    DUPLICATE_KEY = "duplicate-key"
    UNKNOWN_KEY = "unknown-key"
    MISSING_KEY = "missing-key"
    WRONG_VALUE = "wrong-value"
    CONFLICT = "conflict"
    DUPLICATE_NAME = "duplicate-name"
    UNKNOWN_NAME = "unknown-name"
    NOT_SUPPORTED = "not-supported"
    NO_EFFECT = "no-effect"
    DOUBTFUL = "doubtful"
    TOO_MANY = "too-many"
    RESOURCES = "resources"
    """What was made of the policy does not hold together: a fault of pointsman."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `line` counts from 1, 0 means the file as a whole; `document` is like `Route support`, or empty.

    `found` and `expected` are phrases; `note` is what they cannot say; `nearest` is the known name that is most alike.
    """

    severity: Severity
    code: Code
    file: str
    line: int
    document: str = ""
    path: str = ""
    found: str | None = None
    expected: str | None = None
    note: str | None = None
    nearest: str | None = None

    @property
    def message(self) -> str:
        """What is wrong, without the place."""
        parts = []
        if self.found is not None:
            parts.append(f"found {self.found}" + (f", expected {self.expected}" if self.expected else ""))
        elif self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.note is not None:
            parts.append(self.note)
        if self.nearest is not None:
            parts.append(f"did you mean {shown(self.nearest)}?")
        return "; ".join(parts)

    def render(self) -> str:
        """One line: place, severity if a warning, document and path, what is wrong."""
        place = f"{one_line(self.file)}:{self.line}" if self.line else one_line(self.file)
        subject = " ".join(part for part in (self.document, self.path) if part)
        warning = "warning: " if self.severity is Severity.WARNING else ""
        return f"{place}: {warning}{subject}{': ' if subject else ''}{self.message}"

    def as_json(self) -> dict[str, str | int]:
        """The same for programs; what is not known is left out."""
        fields: dict[str, str | int | None] = {
            "severity": self.severity.value,
            "code": self.code.value,
            "file": one_line(self.file),
            "line": self.line or None,
            "document": self.document or None,
            "path": self.path or None,
            "message": self.message,
            "found": self.found,
            "expected": self.expected,
            "nearest": self.nearest,
        }
        return {name: value for name, value in fields.items() if value is not None}


def has_errors(problems: Iterable[Problem]) -> bool:
    """Say whether any problem refuses the policy."""
    return any(problem.severity is Severity.ERROR for problem in problems)


def shown(text: str) -> str:
    """Return text in quotes, on one line, cut to SHOWN_CHARACTERS."""
    cut = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
    return one_line(json.dumps(cut, ensure_ascii=False))


def one_line(text: str) -> str:
    """Return text with everything that cannot be printed written as an escape."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text)


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name` (case does not count), or None when none is alike."""
    if len(name) > COMPARED_CHARACTERS:
        return None
    folded = {candidate.lower(): candidate for candidate in islice(known, COMPARED_NAMES)}
    matches = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None
