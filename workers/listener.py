"""The socket that a worker listens on: its own user's alone (a Unix socket, mode 0600), or TCP."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from workers.wire import Address, TcpAddress, UnixAddress

_BACKLOG = 16


class ListenError(Exception):
    """The address cannot be listened on; the text is one sentence."""


def listen(address: Address) -> socket.socket:
    """A listening socket that does not block. Raises ``ListenError``."""
    try:
        sock = _listen_unix(Path(address.path)) if isinstance(address, UnixAddress) else _listen_tcp(address)
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from None
    sock.setblocking(False)
    return sock


def stop_listening(sock: socket.socket, address: Address) -> None:
    """Close the socket, and remove its file if it has one."""
    sock.close()
    if isinstance(address, UnixAddress):
        Path(address.path).unlink(missing_ok=True)


def tune(sock: socket.socket) -> None:
    """Settings of an accepted connection: send small frames at once, and notice in time that a host has gone."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _listen_unix(path: Path) -> socket.socket:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX)
    # The file must never be open to others, not even between bind and a chmod.
    mask = os.umask(0o177)
    try:
        sock.bind(str(path))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


def _remove_stale(path: Path) -> None:
    """A worker that was killed left its socket behind; a live one, or a file of another kind, stays."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ListenError(f"cannot listen on unix:{path}: it is a file of another kind")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
        raise ListenError(f"cannot listen on unix:{path}: another process does")


def _listen_tcp(address: TcpAddress) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
