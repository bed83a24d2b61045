"""What of Envoy's log reaches an error message."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pointsman.sidecar.envoy_log import MAX_LOG_BYTES, log_tail, open_log, shown_errors

HEAD = "[2026-11-30 16:54:18.447][12735]"


def test_errors_are_shown_and_warnings_with_their_content_are_not() -> None:
    log = (
        f"{HEAD}[warning][config] [source/a.cc:1] gRPC config rejected: listener {{\n"
        "  authorization: Bearer hush\n}\n"
        f"{HEAD}[critical][main] [source/b.cc:76] error initializing configuration 'b.pb': no such\n  field\n"
        f"{HEAD}[info][main] [source/b.cc:77] exiting\n"
    )

    assert shown_errors(log) == "error initializing configuration 'b.pb': no such field"


def test_words_before_any_entry_are_shown() -> None:
    assert shown_errors("PARSE ERROR: Argument: --nope\n") == "PARSE ERROR: Argument: --nope"
    assert shown_errors("") == ""


def test_long_entry_keeps_both_ends() -> None:
    text = shown_errors(f"{HEAD}[error][config] [source/a.cc:1] first {'x' * 5_000} last\n")

    assert text.startswith("first ")
    assert text.endswith(" last")
    assert len(text) < 500


def test_last_three_entries_are_shown() -> None:
    text = shown_errors("".join(f"{HEAD}[error][config] [source/a.cc:1] number {number}\n" for number in range(5)))

    assert text == "number 2 | number 3 | number 4"


def test_tail_begins_where_it_is_told(tmp_path: Path) -> None:
    log = tmp_path / "envoy.log"
    old = f"{HEAD}[error][a] [b] old\n"
    log.write_text(old + f"{HEAD}[error][a] [b] new\n")

    assert log_tail(log, len(old)) == "new"
    assert log_tail(tmp_path / "none", 0) == ""


def test_log_is_appended_to_and_closed_to_others(tmp_path: Path) -> None:
    log = tmp_path / "envoy.log"
    for _ in range(2):
        descriptor = open_log(log)
        os.write(descriptor, b"line\n")
        os.close(descriptor)

    assert log.read_bytes() == b"line\nline\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_log_over_the_limit_is_put_aside(tmp_path: Path) -> None:
    log = tmp_path / "envoy.log"
    with log.open("wb") as file:
        file.truncate(MAX_LOG_BYTES + 1)

    os.close(open_log(log))

    assert log.stat().st_size == 0
    assert (tmp_path / "envoy.log.1").stat().st_size == MAX_LOG_BYTES + 1
