"""Which prompt beginnings a simulated server has seen, as a stand-in for an engine's prefix cache.

A prompt whose first 256 characters were seen before is a hit. Bounded: the least recently used beginning goes first.
"""

from __future__ import annotations

from collections import OrderedDict

PREFIX_CHARS = 256
"""How much of a prompt counts: about the length of a system prompt's opening."""

MAX_PREFIXES = 4_096
"""Bounds memory to about 4 MB of text."""


class PrefixCache:
    """The beginnings seen lately."""

    def __init__(self, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._seen: OrderedDict[str, None] = OrderedDict()

    def visit(self, prefix: str) -> bool:
        """Whether `prefix` was seen before; it now is. The empty prefix is never a hit."""
        if not prefix:
            return False
        if prefix in self._seen:
            self._seen.move_to_end(prefix)
            return True
        self._seen[prefix] = None
        if len(self._seen) > self._max_prefixes:
            self._seen.popitem(last=False)
        return False
