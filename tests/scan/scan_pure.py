"""Runs the pure scanners of the module in-process: builds tests/scan/pure.c with the system compiler, speaks ctypes.

Two builds: the one that ships (SSE2 on x86-64) and the portable one. Called by the tests beside it.
"""

from __future__ import annotations

import ctypes
import enum
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = (HERE / "pure.c", *sorted((HERE.parents[1] / "sidecar").glob("scan_*.h")))
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")


class Refusal(enum.IntEnum):
    """enum pm_refusal."""

    ACCEPTED = 0
    EMPTY = 1
    NOT_OBJECT = 2
    MALFORMED = 3
    ENDED_EARLY = 4
    TOO_DEEP = 5
    NOT_UTF8 = 6
    MODEL_NOT_STRING = 7
    MODEL_TOO_LONG = 8


class Media(enum.IntEnum):
    """enum pm_media."""

    ABSENT = 0
    JSON = 1
    SSE = 2
    GRPC = 3
    OTHER = 4


NUMBERS = ("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty", "seed", "n")
STREAM, STOP = 12, 14
COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class Request:
    """What the request scanner says about one body."""

    refusal: Refusal
    model: bytes | None
    fields: dict[str, float | bool | bytes]
    spans: tuple[tuple[int, int], ...]
    position: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the answer scanner says about one answer."""

    counts: dict[str, float]
    finish_reasons: bytes
    answer_id: bytes
    model: bytes
    done: bool


class Scanner:
    """The pure scanners of one build."""

    def __init__(self, library: Path) -> None:
        self._lib = lib = ctypes.CDLL(str(library))
        lib.pure_request_size.restype = lib.pure_answer_size.restype = lib.pure_said_size.restype = ctypes.c_size_t
        lib.pure_number.restype = lib.pure_max_tokens.restype = ctypes.c_bool
        lib.pure_count.restype = lib.pure_done.restype = ctypes.c_bool
        lib.pure_position.restype = ctypes.c_uint64
        lib.pure_reason.restype = ctypes.c_size_t
        self._request = ctypes.create_string_buffer(lib.pure_request_size())
        self._answer = ctypes.create_string_buffer(lib.pure_answer_size())
        self._said = ctypes.create_string_buffer(lib.pure_said_size())

    def request(self, body: bytes, cuts: Sequence[int] = ()) -> Request:
        """Scan a body that arrives in pieces ending at these offsets (ascending)."""
        lib, r = self._lib, self._request
        offsets = (ctypes.c_size_t * len(cuts))(*cuts)
        refusal = Refusal(lib.pure_request(r, body, ctypes.c_size_t(len(body)), offsets, ctypes.c_size_t(len(cuts))))
        fields: dict[str, float | bool | bytes] = {}
        value = ctypes.c_double()
        for index, name in enumerate(NUMBERS, 1):
            if name != "max_tokens" and lib.pure_number(r, index, ctypes.byref(value)):
                fields[name] = value.value
        if lib.pure_max_tokens(r, ctypes.byref(value)):
            fields["max_tokens"] = value.value
        if lib.pure_number(r, STOP, ctypes.byref(value)):
            fields["stop_count"] = value.value
        if lib.pure_number(r, STREAM, ctypes.byref(value)):
            fields["stream"] = value.value != 0
        effort = self._text(lib.pure_effort, r)
        if effort is not None:
            fields["reasoning_effort"] = effort
        places = (ctypes.c_uint64 * 16)()
        count = lib.pure_spans(r, places)
        spans = tuple((places[2 * i], places[2 * i + 1]) for i in range(min(count, 8)))
        return Request(refusal, self._text(lib.pure_model, r), fields, spans, lib.pure_position(r))

    def answer(self, body: bytes, cuts: Sequence[int] = (), *, sse: bool = False) -> Answer:
        """Scan an answer that arrives in pieces ending at these offsets (ascending)."""
        lib, a = self._lib, self._answer
        offsets = (ctypes.c_size_t * len(cuts))(*cuts)
        lib.pure_answer(a, ctypes.c_bool(sse), body, ctypes.c_size_t(len(body)), offsets, ctypes.c_size_t(len(cuts)))
        value = ctypes.c_double()
        counts = {name: value.value for i, name in enumerate(COUNTS) if lib.pure_count(a, i, ctypes.byref(value))}
        texts = [self._text(lib.pure_text, a, which) or b"" for which in range(3)]
        return Answer(counts, texts[0], texts[1], texts[2], lib.pure_done(a))

    def said(
        self, body: bytes | None, answer: bytes | None, first_chunk_ns: int = 0, *, sse: bool = False
    ) -> str | None:
        """Return the text that goes to the metadata; None: nothing is said. body: an accepted one."""
        if body is not None:
            assert self.request(body).refusal == Refusal.ACCEPTED
        if answer is not None:
            self.answer(answer, sse=sse)
        request = None if body is None else self._request
        scanned = None if answer is None else self._answer
        text = self._text(self._lib.pure_said, self._said, request, scanned, ctypes.c_uint64(first_chunk_ns))
        return None if text is None else text.decode("ascii")

    def media(self, content_type: bytes) -> Media:
        """Classify a content-type value."""
        return Media(self._lib.pure_media(content_type, ctypes.c_size_t(len(content_type))))

    def reason(self, reason: bytes, target: bytes) -> bytes | None:
        """Return what the client sees instead of a route's reason; None: leave it."""
        into = ctypes.create_string_buffer(160)
        size = self._lib.pure_reason(
            reason, ctypes.c_size_t(len(reason)), target, ctypes.c_size_t(len(target)), into, ctypes.c_size_t(160)
        )
        return into.raw[:size] if size else None

    def _text(self, read: ctypes._NamedFuncPointer, *arguments: object) -> bytes | None:
        at = ctypes.c_void_p()
        size = read(*arguments, ctypes.byref(at))
        return ctypes.string_at(at.value or 0, size) if size >= 0 else None


def build(*, portable: bool) -> Scanner:
    """Compile if a source is newer than the library, and load it."""
    assert COMPILER is not None
    library = HERE / "bin" / f"libpure{'_portable' if portable else ''}.so"
    if not library.exists() or library.stat().st_mtime < max(s.stat().st_mtime for s in SOURCES):
        library.parent.mkdir(exist_ok=True)
        fresh = library.with_suffix(f".{os.getpid()}")
        flags = ["-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
        flags += ["-Wno-unused-function", *(["-DPM_PORTABLE"] if portable else [])]
        subprocess.run([COMPILER, *flags, "-o", str(fresh), str(HERE / "pure.c"), "-lm"], check=True)
        fresh.replace(library)
    return Scanner(library)
