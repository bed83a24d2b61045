"""Build steps: the Envoy descriptor set (xds/envoy_api.binpb) and the body scanner (sidecar/libpmscan.so).

Both are made from what is in the isolated build environment and lie in the source tree afterwards (ignored by git),
so that editable installs and wheels carry the same files.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SCANNER_SOURCE = ROOT / "sidecar" / "scan.c"
SCANNER_LIBRARY = ROOT / "sidecar" / "libpmscan.so"

# The messages that pointsman sends to Envoy or reads from it; what they import comes along.
ENVOY_MESSAGES = (
    "envoy.config.bootstrap.v3.bootstrap",
    "envoy.config.cluster.v3.cluster",
    "envoy.config.core.v3.base",
    "envoy.config.endpoint.v3.endpoint",
    "envoy.config.listener.v3.listener",
    "envoy.config.overload.v3.overload",
    "envoy.config.route.v3.route",
    "envoy.config.trace.v3.opentelemetry",
    "envoy.data.accesslog.v3.accesslog",
    "envoy.extensions.access_loggers.grpc.v3.als",
    "envoy.extensions.bootstrap.internal_listener.v3.internal_listener",
    "envoy.extensions.clusters.aggregate.v3.cluster",
    "envoy.extensions.dynamic_modules.v3.dynamic_modules",
    "envoy.extensions.filters.http.dynamic_modules.v3.dynamic_modules",
    "envoy.extensions.filters.http.header_mutation.v3.header_mutation",
    "envoy.extensions.filters.http.credential_injector.v3.credential_injector",
    "envoy.extensions.filters.http.lua.v3.lua",
    "envoy.extensions.filters.http.router.v3.router",
    "envoy.extensions.filters.http.upstream_codec.v3.upstream_codec",
    "envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager",
    "envoy.extensions.http.early_header_mutation.header_mutation.v3.header_mutation",
    "envoy.extensions.http.injected_credentials.generic.v3.generic",
    "envoy.extensions.load_balancing_policies.least_request.v3.least_request",
    "envoy.extensions.load_balancing_policies.ring_hash.v3.ring_hash",
    "envoy.extensions.request_id.uuid.v3.uuid",
    "envoy.extensions.resource_monitors.downstream_connections.v3.downstream_connections",
    "envoy.extensions.resource_monitors.fixed_heap.v3.fixed_heap",
    "envoy.extensions.retry.host.previous_hosts.v3.previous_hosts",
    "envoy.extensions.retry.priority.previous_priorities.v3.previous_priorities_config",
    "envoy.extensions.transport_sockets.internal_upstream.v3.internal_upstream",
    "envoy.extensions.transport_sockets.raw_buffer.v3.raw_buffer",
    "envoy.extensions.transport_sockets.tls.v3.tls",
    "envoy.extensions.upstreams.http.v3.http_protocol_options",
    "envoy.service.accesslog.v3.als",
    "envoy.service.discovery.v3.ads",
    "envoy.service.discovery.v3.discovery",
    "envoy.type.matcher.v3.http_inputs",
    "xds.type.matcher.v3.matcher",
    "xds.type.v3.typed_struct",
)


def write_descriptor_set(path: Path) -> None:
    """Write one FileDescriptorSet, in dependency order, of ENVOY_MESSAGES and all that they import."""
    from google.protobuf import descriptor_pb2  # the build environment's, not ours

    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def add(descriptor: object) -> None:
        if descriptor.name in files:  # type: ignore[attr-defined]
            return
        for dependency in descriptor.dependencies:  # type: ignore[attr-defined]
            add(dependency)
        proto = descriptor_pb2.FileDescriptorProto()
        descriptor.CopyToProto(proto)  # type: ignore[attr-defined]
        files[proto.name] = proto

    for name in ENVOY_MESSAGES:
        add(importlib.import_module(f"{name}_pb2").DESCRIPTOR)
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString(deterministic=True))


def build_scanner() -> None:
    """Compile the body scanner with the system's C compiler; without one pointsman runs in header mode and says so."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        SCANNER_LIBRARY.unlink(missing_ok=True)  # an old one would not be of this source
        print(
            "pointsman: no C compiler found: the body scanner is left out, requests are routed by headers only "
            "(install gcc and run 'make setup' again)",
            file=sys.stderr,
        )
        return
    flags = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden")
    subprocess.run([compiler, *flags, "-o", str(SCANNER_LIBRARY), str(SCANNER_SOURCE)], check=True)


class BuildPy(build_py):
    """setuptools' build_py, preceded by the generated files."""

    def run(self) -> None:
        """Generate, then build as usual."""
        write_descriptor_set(ROOT / "xds" / "envoy_api.binpb")
        build_scanner()
        super().run()


class PlatformDistribution(Distribution):
    """A distribution with a native library: its wheel is for this platform only."""

    def has_ext_modules(self) -> bool:
        """Say so to the wheel's tag."""
        return True


setup(cmdclass={"build_py": BuildPy}, distclass=PlatformDistribution)
