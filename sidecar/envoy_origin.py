"""What an Envoy was started from, so that a later agent can tell whether it would start the same one.

Decides which parts count: the bootstrap without its node id, the program's file, the scanner's content and place (Envoy
keeps a loaded library, whatever lies there later) and the arguments. Refuses nothing. Used by envoy_process.py.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

_ANY_NODE = "any"
"""Stands for the node id, which is each Envoy's own."""


@dataclass(frozen=True, slots=True)
class EnvoyOrigin:
    """Digests and names to be compared; empty: not known, which is equal to nothing that `origin_of` returns."""

    bootstrap: str = ""
    program: str = ""
    scanner: str = ""
    arguments: str = ""


def origin_of(
    binary: Path, bootstrap: Callable[[str], bytes], *, module: Path | None, arguments: Sequence[str]
) -> EnvoyOrigin:
    """Return what an Envoy that is started now comes from. Files that cannot be read are as good as others."""
    return EnvoyOrigin(
        bootstrap=hashlib.sha256(bootstrap(_ANY_NODE)).hexdigest(),
        program=_file_identity(binary),
        scanner="none" if module is None else f"{module} {_content_digest(module)}",
        arguments=" ".join(arguments),
    )


def changed_parts(before: EnvoyOrigin, now: EnvoyOrigin) -> tuple[str, ...]:
    """Return the names of the parts that differ."""
    names = (field.name for field in fields(EnvoyOrigin))
    return tuple(name for name in names if getattr(before, name) != getattr(now, name))


def _file_identity(path: Path) -> str:
    """Return what changes when another file is put in its place; its 100 MB are not read at every start."""
    try:
        found = path.stat()
    except OSError as error:
        return f"errno {error.errno}"
    return f"{os.major(found.st_dev)}:{os.minor(found.st_dev)} {found.st_ino} {found.st_mtime_ns} {found.st_size}"


def _content_digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"errno {error.errno}"
