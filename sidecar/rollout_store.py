"""The file in which rollouts outlive the process: where each one is, what was aborted and promoted, what happened.

One small JSON object, replaced whole, for this user alone. A damaged file is refused: it is kept aside for a person
and the rollouts start from the policy. Evidence is not kept: a hold begins again after a restart.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from pointsman.router.rollout import Cause, Phase
from pointsman.router.rollouts import Kept, Memory
from pointsman.sidecar.json_log import event
from pointsman.sidecar.process_identity import replace_file

FORMAT = 1
MAX_BYTES = 4 * 1_024 * 1_024
"""A thousand rollouts with fifty transitions each would be more; such a file is not ours."""

HISTORY = 50
"""Transitions that are kept, of each route."""


@dataclass(frozen=True, slots=True)
class Happened:
    """A transition with its time, as it is told later."""

    unix_ms: int
    target: str
    before: Phase
    after: Phase
    step: int
    share_parts: int
    cause: Cause
    canary: tuple[int, int]
    stable: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stored:
    """All that the file holds."""

    memory: Memory = field(default_factory=Memory)
    history: dict[str, tuple[Happened, ...]] = field(default_factory=dict)


class RolloutStore:
    """The file at `path`; its directory is the state directory."""

    def __init__(self, path: Path) -> None:
        """Touches nothing yet."""
        self._path = path

    def load(self) -> Stored:
        """Return what was stored; nothing where there is no file or where it is damaged (it is kept aside then)."""
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ValueError(f"larger than {MAX_BYTES} bytes")
            return _stored(json.loads(content))
        except FileNotFoundError:
            return Stored()
        except OSError as error:
            event("rollouts start from the policy", logging.ERROR, file=self._path.name, reason=error.strerror)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            aside = self._set_aside()
            event(
                "rollouts start from the policy",
                logging.ERROR,
                file=self._path.name,
                reason=f"the file is damaged ({type(error).__name__})",
                kept_as=aside,
            )
        return Stored()

    def save(self, stored: Stored) -> None:
        """Replace the file whole. A full disk ends no rollout: it is told, and tried again at the next transition."""
        content = {
            "format": FORMAT,
            "kept": [asdict(kept) for kept in stored.memory.kept],
            "aborted": [list(latch) for latch in stored.memory.aborted],
            "promoted": dict(stored.memory.promoted),
            "history": {route: [asdict(item) for item in items] for route, items in stored.history.items()},
        }
        try:
            replace_file(self._path, json.dumps(content, separators=(",", ":")).encode())
        except OSError as error:
            event("rollouts cannot be stored", logging.ERROR, file=self._path.name, reason=error.strerror)

    def _set_aside(self) -> str | None:
        """Rename the damaged file to the first name that is free; None when it cannot be."""
        number = 1
        while (aside := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
            number += 1
        try:
            self._path.rename(aside)
        except OSError:
            return None
        return aside.name


def _stored(content: object) -> Stored:
    """Read the file's value; ValueError, KeyError, TypeError or AttributeError where it is not ours."""
    page = cast(dict[str, object], content)
    if page["format"] != FORMAT:
        raise ValueError("another format")
    kept = tuple(
        Kept(
            _text(row["route"]),
            _text(row["version"]),
            _text(row["spec"]),
            Phase(_text(row["phase"])),
            _count(row["step"]),
            Cause(_text(row["cause"])),
        )
        for row in _rows(page["kept"])
    )
    aborted = []
    for latch in cast(list[list[object]], page["aborted"]):
        route, version, spec = latch
        aborted.append((_text(route), _text(version), _text(spec)))
    promoted = tuple((_text(k), _text(v)) for k, v in cast(dict[str, object], page["promoted"]).items())
    history = {
        _text(route): tuple(_happened(row) for row in _rows(rows))[-HISTORY:]
        for route, rows in cast(dict[str, object], page["history"]).items()
    }
    return Stored(Memory(kept, tuple(aborted), promoted), history)


def _happened(row: dict[str, object]) -> Happened:
    return Happened(
        unix_ms=_count(row["unix_ms"]),
        target=_text(row["target"]),
        before=Phase(_text(row["before"])),
        after=Phase(_text(row["after"])),
        step=_count(row["step"]),
        share_parts=_count(row["share_parts"]),
        cause=Cause(_text(row["cause"])),
        canary=_two(row["canary"]),
        stable=_two(row["stable"]),
    )


def _rows(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise TypeError("expected a list of objects")
    return cast(list[dict[str, object]], value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError("expected a count")
    return value


def _two(value: object) -> tuple[int, int]:
    first, second = cast(list[object], value)
    return _count(first), _count(second)
