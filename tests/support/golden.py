"""Golden pairs: rendered values beside files; `UPDATE_GOLDEN=1 pytest …` writes them anew."""

import json
import os
from pathlib import Path

from google.protobuf import json_format
from google.protobuf.message import Message
from pointsman.xds.api import message_pool


def as_json(message: Message) -> object:
    """The message as plain values, Anys opened."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=message_pool())


def assert_golden(found: object, file: Path) -> None:
    """Compare with the file, parsed."""
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert json.loads(file.read_text()) == json.loads(json.dumps(found))
