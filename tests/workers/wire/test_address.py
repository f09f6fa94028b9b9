"""Addresses are read as they are written, and secrets are proved without being sent."""

from __future__ import annotations

import pytest

from workers.wire import TcpAddress, UnixAddress, auth_digest, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/w0.sock", UnixAddress("/run/w0.sock")),
        ("unix:relative.sock", UnixAddress("relative.sock")),
        ("tcp:127.0.0.1:9000", TcpAddress("127.0.0.1", 9000)),
        ("tcp:worker-0.workers:9000", TcpAddress("worker-0.workers", 9000)),
        ("tcp:[::1]:9000", TcpAddress("::1", 9000)),
    ],
)
def test_an_address_is_read_and_written_the_same(text: str, address: UnixAddress | TcpAddress) -> None:
    """The directory stores the text; a round trip must not make two workers of one."""
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "/run/w0.sock", "http://x", "unix:", "unix:a\0b", "unix:/" + "x" * 120, "tcp:", "tcp:host", "tcp::9", "tcp:h:",
     "tcp:h:65536", "tcp:h:-1", "tcp:h:²", "tcp:::1:90"],
)  # fmt: skip
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    """An operator mends a sentence, not a traceback."""
    with pytest.raises(ValueError, match=r"address|path"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("worker.example", False)],
)  # fmt: skip
def test_only_this_machine_counts_as_loopback(host: str, is_loopback: bool) -> None:
    """Beyond loopback a secret is demanded, so a name that may resolve to anything is beyond."""
    assert TcpAddress(host, 1).is_loopback is is_loopback


def test_the_digest_is_hmac_sha256() -> None:
    """A fixed value of RFC 4231, test case 2: both ends must agree across versions."""
    expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert auth_digest(b"Jefe", b"what do ya want for nothing?").hex() == expected
