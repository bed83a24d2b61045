"""scan.c refuses to load with a configuration that it does not know, and says what it expected."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import scan_lab

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_is_there")]

NOWHERE = {"match": {"prefix": "/"}, "direct_response": {"status": 404}}


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("scan", "inspect_bytes=1", "expected inspect_body_bytes, body_bytes or json_path: found 'inspect_bytes'"),
        ("scan", "body_bytes=1k", "expected a number of bytes: found 'body_bytes=1k'"),
        ("scan", "body_bytes", "expected a number of bytes: found 'body_bytes'"),
        ("scan", "json_path=v1", "json_path: expected a path that begins with /: found 'v1'"),
        ("scna", "", "filter_name: expected scan or rewrite: found 'scna'"),
    ],
)
def test_unknown_configuration_is_refused(name: str, config: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps(scan_lab.bootstrap([NOWHERE], [], scan_lab.module(name, config), tmp_path)))
    environment = os.environ | {"ENVOY_DYNAMIC_MODULES_SEARCH_PATH": str(scan_lab.LIBRARY.parent)}
    result = subprocess.run(
        [*scan_lab.envoy_command(path), "--mode", "validate"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert message in result.stderr
