"""Whether the other end of a connection is still there, as the kernel knows it."""

from __future__ import annotations

import asyncio
import select
import socket

KEEP_ALIVE_PROBES = 3


def find_dead_peers(transport: asyncio.BaseTransport, timeout_s: int) -> None:
    """Probe an idle peer, and give up on one that acknowledges nothing, within ``timeout_s``."""
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    interval_s = max(1, timeout_s // (KEEP_ALIVE_PROBES + 1))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval_s)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE_PROBES)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_s * 1000)


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Whether the peer has closed or reset, also when what it sent before lies unread.

    An end that is still on its way behind data for which there is no room here is not known; the peer's kernel gives
    such a connection up, with a reset, after a minute or two.
    """
    peer = transport.get_extra_info("socket")
    if peer is None or peer.fileno() < 0:
        return False
    watch = select.poll()
    watch.register(peer.fileno(), select.POLLRDHUP)  # errors and resets are always told
    return bool(watch.poll(0))
