"""How our gRPC servers listen on a fixed unix path that a predecessor may still hold.

Decides the order: bind beside the path, with no rights for others, and rename over it. So Envoy, which knows only the
path, meets the old server or the new one and never nothing. Refuses a path that is too long for a
socket, or where something lies that is none. Called by logs.py and ads.py before their servers start.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

MAX_PATH_BYTES = 107
"""What the kernel's sockaddr_un holds, without the end mark."""

SERVER_OPTIONS = (
    ("grpc.http2.min_ping_interval_without_data_ms", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)
"""Options of every gRPC server that Envoy talks to, besides its own limits: any ping is welcome (0: no shortest time).

Envoy pings its agent every 30 s (bootstrap.py). gRPC would bear one ping in 5 minutes and cut an idle connection after
the third; only our own user can connect, so there is nobody to bear down on.
"""


@dataclass(frozen=True, slots=True)
class SocketFile:
    """The file of a socket that a server of ours listens on, told from a successor's by device and inode."""

    path: Path
    device: int
    inode: int

    def remove(self) -> None:
        """Remove the file, unless another process has put its own there."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if (found.st_dev, found.st_ino) == (self.device, self.inode):
            self.path.unlink(missing_ok=True)


def listen_on(server: grpc.aio.Server, path: Path) -> SocketFile:
    """Have the server, not yet started, listen on the path in place of who did; OSError where that cannot be.

    Only our own user may connect (mode 0600). Connections wait until the server is started.
    """
    path = path.absolute()
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    size = len(os.fsencode(temporary))
    if size > MAX_PATH_BYTES:
        raise OSError(
            f"{temporary} has {size} bytes, a socket's path may have {MAX_PATH_BYTES}: use a shorter directory"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"directory {path.parent} of socket {path.name} does not exist: create it (mode 0700)")
    if path.exists() and not path.is_socket():
        raise FileExistsError(f"{path} is no socket and would be overwritten: remove it or choose another path")
    temporary.unlink(missing_ok=True)  # of a crashed process that had our id
    mask = os.umask(0o177)  # else anybody could connect between the bind and a chmod
    try:
        server.add_insecure_port(f"unix:{temporary}")
    except RuntimeError as error:
        raise OSError(f"cannot listen on {path}: {error}") from error
    finally:
        os.umask(mask)
    found = temporary.lstat()
    temporary.replace(path)
    return SocketFile(path, found.st_dev, found.st_ino)
