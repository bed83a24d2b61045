"""Envoy's own log file: kept bounded, and its last words for an error message.

Decides which entries may be shown: those of level error and critical, shortened. A refused resource is logged as a
warning with its whole content, which may hold credentials, so warnings never are.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MAX_LOG_BYTES = 10 * 1024 * 1024
_TAIL_BYTES = 65_536
_TAIL_ENTRIES = 3
_ENTRY_CHARS = 400
_ENTRY = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:.]+\]\[\d+\]\[(\w+)\]\[[^\]]*\] (?:\[[^\]]*\] )?", re.MULTILINE)
_SHOWN_LEVELS = ("error", "critical")


def open_log(path: Path) -> int:
    """Return a descriptor that appends to the log, for this user alone; a log over 10 MiB is put aside first."""
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def log_tail(path: Path, from_byte: int) -> str:
    """Return the last errors from that place on, on one line; empty when there are none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(from_byte, end - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return shown_errors(text)


def shown_errors(text: str) -> str:
    """Return the errors in Envoy's output, one line, without what a warning holds."""
    # What precedes the first entry has no level: the command line's parser speaks so. Then come level, text, level, …
    first, *rest = _ENTRY.split(text)
    entries = [first, *(body for level, body in zip(rest[::2], rest[1::2], strict=True) if level in _SHOWN_LEVELS)]
    lines = [_shortened(" ".join(entry.split())) for entry in entries]
    return " | ".join([line for line in lines if line][-_TAIL_ENTRIES:])


def _shortened(line: str) -> str:
    """Keep both ends: Envoy says what failed first and why last."""
    if len(line) <= _ENTRY_CHARS:
        return line
    half = _ENTRY_CHARS // 2
    return f"{line[:half]} … {line[-half:]}"
