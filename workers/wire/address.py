"""Where a peer listens (``unix:/run/w0.sock``, ``tcp:HOST:PORT``), and the proof that a peer knows the secret."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass

MAX_UNIX_PATH_BYTES = 107
"""What ``sockaddr_un`` holds on Linux, less the closing zero."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket by its path."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP host (a name, or an IPv4 or IPv6 address without brackets) and port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp:{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name other than ``localhost`` may resolve to anything."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """Read an address as flags and the directory write it; ``str()`` of the result is the same text again.

    Raises ``ValueError`` with a sentence.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "unix":
        return _unix(rest)
    if scheme == "tcp":
        return _tcp(rest)
    raise ValueError(f"address {text!r} is neither unix:/path/to.sock nor tcp:HOST:PORT")


def auth_digest(secret: bytes, nonce: bytes) -> bytes:
    """HMAC-SHA-256 of ``nonce`` under ``secret`` (empty on a Unix socket without a secret file): 32 bytes."""
    return hmac.digest(secret, nonce, hashlib.sha256)


def _unix(path: str) -> UnixAddress:
    if not path or "\0" in path:
        raise ValueError(f"address 'unix:{path!s}' names no path".replace("\0", "\\0"))
    if len(path.encode()) > MAX_UNIX_PATH_BYTES:
        raise ValueError(f"the Unix socket path {path!r} is longer than {MAX_UNIX_PATH_BYTES} bytes")
    return UnixAddress(path)


def _tcp(rest: str) -> TcpAddress:
    host, _, port_text = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address 'tcp:{rest}' needs brackets around an IPv6 host")
    if not host or not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ValueError(f"address 'tcp:{rest}' is not tcp:HOST:PORT with a port up to 65535")
    return TcpAddress(host, int(port_text))
