"""The state directory: who may use it, and where everything in it lies.

Decides the places of sockets, bootstrap, log and pid file. Refuses a directory that another pointsman holds, that
belongs to someone else, or that is open to others with other content. Called by the agent before anything is started.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

MAX_SOCKET_PATH_BYTES = 100
"""The kernel takes 107 bytes; a few are kept for temporary names beside the socket."""

_LONGEST_SOCKET = "admin-4194304.sock"
_HASH_CHARS = 12


class StateRefused(Exception):
    """The directory cannot be used; the text says why and what to do."""

    code = "state_refused"


def default_state_path(policy: Path, environ: Mapping[str, str]) -> Path:
    """Return where the state of this policy lies unless Settings say otherwise."""
    base = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/state")
    return Path(base) / "pointsman" / _short_hash(policy.resolve())


def runtime_path(environ: Mapping[str, str]) -> Path:
    """Return the user's folder for locks and sockets that need a short path. It need not exist."""
    base = environ.get("XDG_RUNTIME_DIR")
    if base and len(os.fsencode(base)) <= MAX_SOCKET_PATH_BYTES // 2 and os.access(base, os.W_OK):
        return Path(base) / "pointsman"
    return Path("/tmp") / f"pointsman-{os.getuid()}"


class StateDir:
    """One pointsman's directory, held by a lock until `close`. It is made where it is missing."""

    __slots__ = ("_lock_fd", "path", "sockets")

    def __init__(self, path: Path, *, runtime: Path) -> None:
        self.path = path.absolute()
        _own_directory(self.path)
        self._lock_fd = lock_file(self.path / "lock", f"the state directory {self.path}", "choose another stateDir")
        try:
            self.sockets = self._socket_folder(runtime)
        except BaseException:
            os.close(self._lock_fd)
            raise

    @property
    def admin_socket(self) -> Path:
        """Envoy's admin interface."""
        return self.sockets / "admin.sock"

    def old_admin_socket(self, pid: int) -> Path:
        """Return where the admin interface of an Envoy that is being replaced goes on."""
        return self.sockets / f"admin-{pid}.sock"

    @property
    def xds_socket(self) -> Path:
        """The agent's xDS server."""
        return self.sockets / "xds.sock"

    @property
    def log_socket(self) -> Path:
        """The agent's access-log server."""
        return self.sockets / "log.sock"

    @property
    def bootstrap(self) -> Path:
        """Envoy's bootstrap, a serialized message."""
        return self.path / "bootstrap.pb"

    @property
    def envoy_log(self) -> Path:
        """What Envoy says."""
        return self.path / "envoy.log"

    @property
    def envoy_pids(self) -> Path:
        """The Envoys that were started here and may still live."""
        return self.path / "envoy.pid"

    @property
    def rollouts(self) -> Path:
        """Where rollouts are, what was aborted and promoted."""
        return self.path / "rollouts.json"

    @property
    def module_check(self) -> Path:
        """Whether the scanner was loadable, and for which files that holds."""
        return self.path / "module.json"

    def close(self) -> None:
        """Remove the agent's sockets and give the directory back. An admin socket belongs to its Envoy and stays."""
        if self._lock_fd < 0:
            return
        for socket in (self.xds_socket, self.log_socket):
            socket.unlink(missing_ok=True)
        if self.sockets != self.path:
            with contextlib.suppress(OSError):
                self.sockets.rmdir()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _socket_folder(self, runtime: Path) -> Path:
        if len(os.fsencode(self.path / _LONGEST_SOCKET)) <= MAX_SOCKET_PATH_BYTES:
            return self.path
        # The name is derived, so that the next agent finds the sockets of an Envoy that outlived this one.
        short = runtime / _short_hash(self.path)
        if len(os.fsencode(short / _LONGEST_SOCKET)) > MAX_SOCKET_PATH_BYTES:
            raise StateRefused(
                f"state directory {self.path}: its sockets' paths are longer than {MAX_SOCKET_PATH_BYTES} bytes, and so"
                f" are those in {runtime}; choose a shorter stateDir"
            )
        own_private_directory(runtime)
        own_private_directory(short)
        return short


def own_private_directory(path: Path) -> None:
    """Make the directory for this user alone; StateRefused when there is another one in its place.

    It may lie in a folder that everyone can write: a link, or a directory that someone else prepared, is not taken.
    """
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=True)
        found = path.lstat()
    except OSError as error:
        raise StateRefused(f"{path}: cannot make the directory: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StateRefused(
            f"{path}: expected a directory of user {os.getuid()} with mode drwx------, found"
            f" {stat.filemode(found.st_mode)} of user {found.st_uid}; remove it or set XDG_RUNTIME_DIR"
        )


def lock_file(path: Path, what: str, next_step: str) -> int:
    """Return the descriptor that holds the lock; StateRefused naming the holder's pid when another one has it.

    The lock ends with the descriptor, however the process ends; child processes do not inherit it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StateRefused(f"{path}: cannot open the lock: {error.strerror}; {next_step}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except OSError as error:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise StateRefused(f"{path}: cannot lock: {error.strerror}; {next_step}") from error
        raise StateRefused(f"{what} is in use by another pointsman, pid {holder}; end it or {next_step}") from None
    return descriptor


def _own_directory(path: Path) -> None:
    """Make the directory, or take one that is this user's: closed to others, or still without content."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=True)
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode):
            raise StateRefused(f"state directory {path}: found a file; choose another stateDir")
        if found.st_uid != os.getuid():
            raise StateRefused(
                f"state directory {path}: expected an owner with user id {os.getuid()}, found {found.st_uid};"
                " choose another stateDir or a new folder in it"
            )
        if found.st_mode & 0o077:
            # Closing a directory that others use (a stateDir of /tmp) would break them.
            if found.st_mode & stat.S_ISVTX or (any(path.iterdir()) and not (path / "lock").exists()):
                raise StateRefused(
                    f"state directory {path}: it is open to others and may be theirs too; choose a new folder in it"
                )
            path.chmod(0o700)
    except OSError as error:
        raise StateRefused(f"state directory {path}: {error.strerror}; choose another stateDir") from error


def _short_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:_HASH_CHARS]
