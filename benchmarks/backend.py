"""The model servers' stand-in: one nginx with keep-alive that answers a fixed chat answer, whole or as events.

Decides what a server's answer looks like in the measurements. Refuses to start where nginx does not listen in time.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sockets import free_port, wait_until_listening

TEMPLATE = Path(__file__).with_name("nginx.conf")
EVENTS = 12
"""Chunks of an answer that comes as server-sent events; nginx sends them in one write."""


@contextlib.contextmanager
def backend(folder: Path) -> Iterator[int]:
    """Run nginx in the folder; yields its port."""
    port = free_port()
    (folder / "files" / "v1" / "chat").mkdir(parents=True)
    for path in ("v1/chat/completions", "v1/completions"):  # a POST to a file is a 405, after its body was read
        (folder / "files" / path).write_text("")
    values = {"FOLDER": str(folder), "PORT": str(port), "JSON": _json_answer(), "EVENTS": _events_answer()}
    text = TEMPLATE.read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    config = folder / "nginx.conf"
    config.write_text(text)
    program = shutil.which("nginx") or "nginx"
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")])
    try:
        wait_until_listening(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _answer(**choice: object) -> dict[str, object]:
    return {
        "id": "chatcmpl-7f3a2c51",
        "object": "chat.completion",
        "created": 1764500000,
        "model": "support-chat",
        "choices": [{"index": 0, **choice}],
    }


def _json_answer() -> str:
    text = "You can return the item within 30 days; the label is in your order page. " * 4
    answer = _answer(message={"role": "assistant", "content": text}, finish_reason="stop")
    return json.dumps(answer | {"usage": {"prompt_tokens": 61, "completion_tokens": 72, "total_tokens": 133}})


def _events_answer() -> str:
    chunks = [_answer(delta={"content": "a few words "}, finish_reason=None) for _ in range(EVENTS)]
    chunks.append(_answer(delta={}, finish_reason="stop"))
    chunks.append({"choices": [], "usage": {"prompt_tokens": 61, "completion_tokens": 72, "total_tokens": 133}})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
