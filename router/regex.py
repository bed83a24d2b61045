"""Which regular expressions a policy may hold: those that RE2 (in Envoy) and Python's re read in the same way.

Refuses what RE2 lacks, what Python cannot compile, what the two read differently, and what would make a large program
in the proxy. Called by decode.py.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 512
MAX_GROUP_DEPTH = 32
MAX_REPEAT = 1_000
"""RE2 refuses larger counts, and nested ones whose product is larger."""
MAX_STEPS = 1_000
"""Atoms after counted repetitions are written out; one makes up to about 20 RE2 instructions."""

_GROUPS_IN_BOTH = re.compile(r"\(\?(?:P<[A-Za-z_]\w*>|:|[ims]+(?:-[ims]+)?:)", re.ASCII)
_REFUSED_GROUPS = {
    "(?=": "look-ahead",
    "(?!": "negative look-ahead",
    "(?<=": "look-behind",
    "(?<!": "negative look-behind",
    "(?>": "atomic groups",
    "(?P=": "back-references",
    "(?(": "conditional groups",
    "(?#": "comment groups",
}
_ESCAPES_IN_BOTH = frozenset("dDwWsStnrfvax")
_ANCHOR_ESCAPES = frozenset("bBA")
_COUNTED = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")


def regex_fault(pattern: str) -> str | None:
    """Return why a policy cannot hold this pattern, or None when it can."""
    if len(pattern) > MAX_CHARACTERS:
        return f"it has {len(pattern)} characters, at most {MAX_CHARACTERS} are allowed"
    fault = _Scan(pattern).fault()
    if fault is not None:
        return fault
    try:
        re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        return f"it does not compile: {error}"
    return None


class _Scan:
    """One pass over a pattern: finds what RE2 refuses and counts steps. Broken structure is left to re.compile."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._index = 0
        self._steps = [0]  # one total for each open group
        self._last = 0  # steps of the last atom

    def fault(self) -> str | None:
        while self._index < len(self._pattern):
            sign = self._pattern[self._index]
            if sign == "\\":
                fault = self._escape()
            elif sign == "[":
                fault = self._bracket_class()
            elif sign == "(":
                fault = self._open_group()
            elif sign in "*+?{":
                fault = self._repetition()
            else:
                fault = self._plain(sign)
            if fault is not None:
                return fault
            if self._steps[-1] > MAX_STEPS:
                return f"it is larger than {MAX_STEPS} steps once its repetitions are written out"
        return None

    def _plain(self, sign: str) -> str | None:
        self._index += 1
        if sign == ")" and len(self._steps) > 1:
            self._last = self._steps.pop() + 2
            self._steps[-1] += self._last
        else:
            self._atom()
        return None

    def _atom(self) -> None:
        self._last = 1
        self._steps[-1] += 1

    def _escape(self) -> str | None:
        sign = self._pattern[self._index + 1 : self._index + 2]
        self._index += 2
        self._atom()
        return None if sign in _ANCHOR_ESCAPES else _escape_fault(sign)

    def _open_group(self) -> str | None:
        start = self._index
        if len(self._steps) > MAX_GROUP_DEPTH:
            return f"its groups nest deeper than {MAX_GROUP_DEPTH}"
        self._steps.append(0)
        if not self._pattern.startswith("(?", start):
            self._index += 1
            return None
        match = _GROUPS_IN_BOTH.match(self._pattern, start)
        if match is not None:
            self._index = match.end()
            return None
        if start == 0 and self._pattern.startswith("(?i)"):
            self._index = 3  # its bracket closes the group as any other
            return None
        for opening, name in _REFUSED_GROUPS.items():
            if self._pattern.startswith(opening, start):
                return f"RE2 has no {name}: {opening}"
        return f"this group is not the same in RE2 and in Python: {self._pattern[start : start + 4]}"

    def _bracket_class(self) -> str | None:
        """Read one bracket class; what Python reserves for set operations must be escaped."""
        self._index += 2 if self._pattern.startswith("[^", self._index) else 1
        self._atom()
        first = self._index
        while self._index < len(self._pattern):
            sign = self._pattern[self._index]
            if sign == "]" and self._index > first:
                self._index += 1
                return None
            if sign == "\\":
                fault = _escape_fault(self._pattern[self._index + 1 : self._index + 2])
                if fault is not None:
                    return fault
                self._index += 1
            elif sign == "[":
                return "inside a bracket class, [ must be written \\["
            elif self._pattern[self._index : self._index + 2] in {"--", "&&", "~~", "||"}:
                return f"inside a bracket class, {sign * 2} must be escaped"
            self._index += 1
        return None

    def _repetition(self) -> str | None:
        """Read one repetition; another one right after it is possessive or doubled."""
        start = self._index
        self._index += 1
        if self._pattern[start] == "{":
            match = _COUNTED.match(self._pattern, start)
            if match is None:
                return "a literal { must be written \\{"
            count = max(int(match[1]), int(match[2] or 0))
            if count > MAX_REPEAT:
                return f"RE2 repeats at most {MAX_REPEAT} times: {match[0]}"
            self._index = match.end()
            self._steps[-1] += self._last * max(count - 1, 0)
        if self._pattern.startswith("?", self._index):
            self._index += 1
        after = self._pattern[self._index : self._index + 1]
        if after and after in "*+?{":
            kind = "possessive" if after == "+" else "doubled"
            return f"RE2 has no {kind} repetitions: {self._pattern[start : self._index + 1]}"
        return None


def _escape_fault(sign: str) -> str | None:
    if sign.isdigit():
        return f"RE2 has no back-references: \\{sign}"
    if sign == "_" or not sign.isascii() or (sign.isalpha() and sign not in _ESCAPES_IN_BOTH):
        return f"this escape is not the same in RE2 and in Python: \\{sign}"
    return None
