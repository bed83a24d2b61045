"""Our native module as an Envoy filter: the scanner of the listener, the rewriter of a ladder (sidecar/scan.c)."""

from __future__ import annotations

from pointsman.router.intent import JSON_PATHS
from pointsman.router.policy import Limits
from pointsman.xds.api import DynamicModuleFilter, StringValue, pack
from pointsman.xds.names import SCANNER_FILTER, SCANNER_MODULE


def module_filter(name: str, limits: Limits) -> DynamicModuleFilter:
    """Return the filter of that name; its configuration is text, `key=value` lines."""
    lines = [f"inspect_body_bytes={limits.inspect_body_bytes}"]
    if name == SCANNER_FILTER:
        lines.append(f"body_bytes={limits.body_bytes}")
        lines += [f"json_path={path}" for path in sorted(JSON_PATHS)]
    module = DynamicModuleFilter(filter_name=name)
    module.dynamic_module_config.name = SCANNER_MODULE
    module.filter_config.CopyFrom(pack(StringValue(value="\n".join(lines))))
    return module
