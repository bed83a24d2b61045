"""What is sent: chat bodies of a size, of plain text or full of quotes and escapes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

PLAIN = "The customer asks whether the parcel that left on Monday can still be sent to another address, and when. "
ESCAPED = json.dumps({"tool": "find_order", "arguments": {"id": 4711, "fields": ["state", "eta"]}, "note": "a\n\tb"})
"""A tool call's JSON inside a JSON string: quotes, backslashes and line ends, as agents send them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of request. `headers` are sent besides content-type and x-context-id."""

    name: str
    size: int
    is_escaped: bool = False
    path: str = "/v1/chat/completions"
    headers: tuple[tuple[str, str], ...] = ()
    model: str = "support-chat"

    def write(self, folder: Path) -> Path:
        """Write the body to a file."""
        path = folder / f"{self.name.replace(' ', '-')}.json"
        path.write_bytes(self.body())
        return path

    def body(self) -> bytes:
        """Return a chat request of about `size` bytes."""
        unit = ESCAPED if self.is_escaped else PLAIN
        frame = len(self._body([]))
        room = max(self.size - frame, 0)
        per_unit = len(json.dumps(unit)) - 2
        if self.is_escaped:  # messages of about 1 KiB each
            a_message = [unit] * max(1, min(room, 1_024) // per_unit)
            count = max(1, round(room / (len(json.dumps({"role": "user", "content": "".join(a_message)})) + 2)))
            return self._body(["".join(a_message)] * count)
        return self._body([(PLAIN * (room // len(PLAIN) + 1))[: max(room - 36, 0)]])

    def _body(self, texts: list[str]) -> bytes:
        request = {
            "model": self.model,
            "temperature": 0.7,
            "top_p": 1,
            "max_tokens": 128,
            "stream": self.path == "/v1/completions",
            "messages": [{"role": "user", "content": text} for text in texts],
        }
        return json.dumps(request).encode()


SMALL = Workload("0.5 KB", 512)
EVENTS = Workload("0.5 KB, answer as SSE", 512, path="/v1/completions")
MEDIUM = Workload("32 KB", 32 * 1_024)
LARGE = Workload("220 KB", 220 * 1_024)
SMALL_ESCAPED = Workload("0.5 KB escaped", 512, is_escaped=True)
MEDIUM_ESCAPED = Workload("32 KB escaped", 32 * 1_024, is_escaped=True)
LARGE_ESCAPED = Workload("220 KB escaped", 220 * 1_024, is_escaped=True)
