"""Logs: one JSON object a line, with the caller's fields."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pointsman.sidecar.json_log import LOGGER, event, start_logging


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger(LOGGER)
    handlers, levels = root.handlers[:], (root.level, own.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


@pytest.fixture
def stream(logging_as_before: None) -> io.StringIO:
    stream = io.StringIO()
    start_logging("info", stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_event_is_one_object_with_time_level_logger_message_and_fields(stream: io.StringIO) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    event("Envoy died", logging.ERROR, exit="killed by SIGKILL", count=2)
    (line,) = lines(stream)
    told = datetime.fromisoformat(str(line.pop("time")))
    assert before <= told <= datetime.now(UTC)
    assert timedelta(0) == told.utcoffset()
    assert {
        "level": "error",
        "logger": "pointsman",
        "message": "Envoy died",
        "exit": "killed by SIGKILL",
        "count": 2,
    } == line


def test_event_is_information_unless_said_otherwise(stream: io.StringIO) -> None:
    event("policy in force")
    assert ["info"] == [line["level"] for line in lines(stream)]


def test_line_ends_in_texts_do_not_break_the_line(stream: io.StringIO) -> None:
    event("two\nlines", log_tail="a\nb\r\n\u2028c")
    (line,) = lines(stream)
    assert ("two\nlines", "a\nb\r\n\u2028c") == (line["message"], line["log_tail"])
    assert 1 == stream.getvalue().count("\n")


def test_values_that_json_does_not_have_are_told_as_text(stream: io.StringIO) -> None:
    event("started", path=Path("/state"))
    assert "/state" == lines(stream)[0]["path"]


def test_a_percent_sign_is_no_format(stream: io.StringIO) -> None:
    event("5 % of keys", share="5 %s")
    assert "5 % of keys" == lines(stream)[0]["message"]


def test_exception_is_part_of_the_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("the cause")
    except ValueError:
        logging.getLogger(f"{LOGGER}.part").exception("failed")
    (line,) = lines(stream)
    assert ("failed", "pointsman.part") == (line["message"], line["logger"])
    assert "ValueError: the cause" in str(line["exception"])


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_level_bounds_what_is_told(logging_as_before: None, level: str, told: list[str]) -> None:
    stream = io.StringIO()
    start_logging(level, stream)
    for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        event("something", number)
    assert told == [line["level"] for line in lines(stream)]


def test_other_libraries_are_told_from_warning_on(stream: io.StringIO) -> None:
    logging.getLogger("somebody").info("chatter")
    logging.getLogger("somebody").warning("%s is wrong", "this")
    assert [("somebody", "this is wrong")] == [(line["logger"], line["message"]) for line in lines(stream)]


def test_a_second_start_does_not_double_the_lines(stream: io.StringIO) -> None:
    start_logging("info", stream)
    event("once")
    assert 1 == len(lines(stream))


def test_standard_error_is_the_default(logging_as_before: None, capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("info")
    event("told")
    captured = capsys.readouterr()
    assert ("", "told") == (captured.out, json.loads(captured.err)["message"])
