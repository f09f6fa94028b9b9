"""One HTTP connection: aiohttp's protocol with the bounds it lacks, and with our error bodies.

aiohttp bounds the size of a request's head but not the time it takes, keeps a silent peer for as long as the kernel
does (two hours), and answers malformed HTTP with a page of text. Here the head has a deadline, dead peers are found by
TCP keep-alive and the user time-out, and every answer has OpenAI's shape.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from gateway.errors import Reason, Refused
from gateway.http_errors import error_response, http_exception_response, internal_error
from gateway.http_settings import HttpSettings

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 * 1024
"""Of one header or of the request line. Bearer tokens take a few KiB; nothing of ours needs more."""
KEEP_ALIVE_PROBES = 3


class Connection(web.RequestHandler):
    """The handler of one connection. The head's timer runs while a request is on its way and not yet whole."""

    __slots__ = ("_head_timer", "_settings")

    def __init__(self, server: web.Server, settings: HttpSettings, **bounds: Any) -> None:
        super().__init__(server, **bounds)
        self._settings = settings
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        _find_dead_peers(transport, self._settings.peer_timeout_s)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages or self._request_in_progress:
            self._stop_head_timer()
        elif data and self._head_timer is None:
            self._start_head_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer malformed HTTP, or a fault of ours that nothing above caught. The connection closes."""
        if status == 400:
            log.info("malformed_http", error=type(exc).__name__)
            refused = _malformed(exc)
        else:
            log.error("handler_failed", exc_info=exc, detail=message)
            refused = internal_error()
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; it cannot become an error")
        response = error_response(refused)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """An unknown ``Expect`` is answered by aiohttp before any middleware runs; it gets our shape here."""
        if isinstance(resp, web.HTTPException):
            resp = http_exception_response(resp)
        return await super().finish_response(request, resp, start_time)

    def _start_head_timer(self) -> None:
        self._head_timer = self._loop.call_later(self._settings.header_read_s, self._head_too_slow)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_slow(self) -> None:
        # Without an answer: there is no request to answer yet.
        self._head_timer = None
        self.force_close()


class _Server(web.Server):
    """Makes our connections."""

    def __init__(self, inner: web.Server, settings: HttpSettings) -> None:
        super().__init__(
            inner.request_handler,
            request_factory=inner.request_factory,
            handler_cancellation=True,  # a client that leaves cancels its handler, wherever that waits
        )
        self._settings = settings

    def __call__(self) -> web.RequestHandler:
        return Connection(
            self,
            self._settings,
            loop=self._loop,
            keepalive_timeout=self._settings.keep_alive_s,
            lingering_time=self._settings.linger_s,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            auto_decompress=False,  # compressed bodies are refused, and never inflated on the way to that
            access_log=None,  # one line per request is written by the request's own record
        )


class GatewayRunner(web.AppRunner):
    """An application on our connections."""

    __slots__ = ("_settings",)

    def __init__(self, app: web.Application, settings: HttpSettings) -> None:
        super().__init__(app, shutdown_timeout=settings.shutdown_s)
        self._settings = settings

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._settings)


def _malformed(error: BaseException | None) -> Refused:
    if isinstance(error, LineTooLong) or "headers" in str(error).lower():
        return Refused(Reason.HEADERS_TOO_LARGE, "The request line or the headers are too large.")
    return Refused(Reason.INVALID_VALUE, "The request is not well-formed HTTP.")


def _find_dead_peers(transport: asyncio.BaseTransport, timeout_s: int) -> None:
    """Probe an idle peer, and give up on one that acknowledges nothing, within ``timeout_s``."""
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    interval_s = max(1, timeout_s // (KEEP_ALIVE_PROBES + 1))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval_s)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE_PROBES)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_s * 1000)
