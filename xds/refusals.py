"""What one node refused, kept across its streams so that no refused content is sent to it again (xDS point 8, 35).

Decides whether content was refused. All refused contents of a name are kept until the node takes another one; the
oldest give way when there are too many. Shared by the node's streams (stream.py), owned by the server (nodes.py).
"""

from __future__ import annotations

from pointsman.xds.snapshot import ResourceType
from pointsman.xds.status import Refusal

_LIMIT = 1_024
"""Refused contents remembered a node: several tables' worth, about 1 MB of texts at worst."""


class Refusals:
    """A bounded memory of refused resources."""

    __slots__ = ("_by_content", "_limit", "forgotten")

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._by_content: dict[tuple[ResourceType, str, str], Refusal] = {}
        self.forgotten = 0
        """Entries that gave way to newer ones: their content may be tried once more."""

    def add(self, refusal: Refusal) -> None:
        """Remember the refusal as the newest."""
        key = (refusal.type_url, refusal.name, refusal.version)
        self._by_content.pop(key, None)
        self._by_content[key] = refusal
        if len(self._by_content) > self._limit:
            del self._by_content[next(iter(self._by_content))]
            self.forgotten += 1

    def is_refused(self, kind: ResourceType, name: str, version: str) -> bool:
        """Return whether the node refused this content; version "" asks about the removal."""
        return (kind, name, version) in self._by_content

    def forgive(self, kind: ResourceType, name: str) -> None:
        """Forget the name's refusals: the node took other content since."""
        for key in [key for key in self._by_content if key[:2] == (kind, name)]:
            del self._by_content[key]

    def forgive_all(self) -> None:
        """Forget everything: another process stands behind the node's name."""
        self._by_content.clear()

    def of(self, kind: ResourceType) -> tuple[Refusal, ...]:
        """Return the refusals of one type, oldest first."""
        return tuple(refusal for refusal in self._by_content.values() if refusal.type_url is kind)
