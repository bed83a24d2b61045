"""Atheris target: bytes as a message of Envoy's log stream → entries → metrics and spans; nothing may raise.

Asserts what the rest of the product relies on: texts are short and show nothing that acts on a terminal, counts are
counts, times are finite. Seeds are the recorded entries of tests/xds/log_entries. Run by test_fuzz_python.py; by hand:
`python tests/fuzz/fuzz_log_entry.py -max_total_time=600 CORPUS` with CORPUS filled by `--write-seeds CORPUS`.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from math import isfinite
from pathlib import Path

import atheris
from fuzz_messages import change_message, parsed
from google.protobuf import text_format

with atheris.instrument_imports(include=["pointsman"]):
    from pointsman.otel.exporter import SpanExporter
    from pointsman.otel.metrics import Metrics
    from pointsman.router.build import build_table
    from pointsman.router.entry import RequestEntry, TryEntry
    from pointsman.sidecar import policy_file
    from pointsman.sidecar.attribution import Attribution
    from pointsman.sidecar.recorder import Recorder
    from pointsman.xds.api import HTTPAccessLogEntry, StreamAccessLogsMessage
    from pointsman.xds.log_entries import MAX_COUNT, MAX_TEXT_CHARS, decode_request, decode_try

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "xds" / "log_entries"
ENVOYS_OWN = ("row", "ladder", "target", "endpoint", "trace_id", "span_id")
"""Texts that Envoy or we chose; they are as long as they are."""

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e]")


def recorder() -> Recorder:
    """Return what entries go to, under the example's policy."""
    policy = policy_file.load(ROOT / "manifests" / "examples" / "canary.yaml").policy
    assert policy is not None
    made = Recorder(Metrics(policy, version="0"), Attribution.of(policy, build_table(policy), None))
    made.exporter = SpanExporter("127.0.0.1:1", on_drop=lambda *_: None)
    return made


RECORDER = recorder()


def take(data: bytes) -> None:
    """Take one input; an exception is a finding."""
    message = parsed(data, StreamAccessLogsMessage)
    if message is None:
        return
    entries: list[RequestEntry | TryEntry] = []
    for logged in message.http_logs.log_entry:
        entries += (decode_request(logged), decode_try(logged))
    for entry in entries:
        check(entry)
    RECORDER.record(entries)


def check(entry: RequestEntry | TryEntry) -> None:
    """Assert what an entry promises."""
    for name, text in texts(entry):
        if name not in ENVOYS_OWN:
            assert len(text) <= MAX_TEXT_CHARS, f"{name} is cut"
            assert not CONTROLS.search(text), f"{name} shows nothing that acts on a terminal"
    if isinstance(entry, RequestEntry):
        counts = (entry.stop_sequence_count, entry.input_tokens, entry.output_tokens, entry.cached_tokens)
        for count in (*counts, entry.reasoning_tokens):
            assert count is None or 0 <= count < MAX_COUNT, "a count is one"
        for number in entry.params.values():
            assert not isinstance(number, float) or isfinite(number), "a parameter is a number"
    else:
        assert entry.attempt >= 0, "an attempt is counted"


def texts(entry: RequestEntry | TryEntry) -> Iterator[tuple[str, str]]:
    """Yield every text of the entry with its field's name."""
    for field in fields(entry):
        value = getattr(entry, field.name)
        if isinstance(value, str):
            yield field.name, value
        elif isinstance(value, tuple):
            yield from ((field.name, one) for one in value)
        elif isinstance(value, Mapping):
            yield from ((field.name, one) for one in value.values() if isinstance(one, str))


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Change a message by fields most of the time."""
    message = parsed(data, StreamAccessLogsMessage)
    if message is None or seed % 4 == 0:
        return bytes(atheris.Mutate(data, max_size))
    change_message(message, atheris.Mutate, random.Random(seed))
    return message.SerializeToString()[:max_size]


def write_seeds(folder: Path) -> None:
    """Write each recorded entry as a message."""
    for file in RECORDED.glob("*.txtpb"):
        entry = text_format.Parse(file.read_text(encoding="utf-8"), HTTPAccessLogEntry())
        message = StreamAccessLogsMessage()
        message.identifier.log_name = "request"
        message.http_logs.log_entry.append(entry)
        (folder / file.stem).write_bytes(message.SerializeToString())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write-seeds"]:
        write_seeds(Path(sys.argv[2]))
        sys.exit(0)
    atheris.Setup(sys.argv, take, custom_mutator=mutate)
    atheris.Fuzz()
