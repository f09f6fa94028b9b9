"""One HTTP connection: aiohttp's protocol with the bounds it lacks, and with our error bodies.

aiohttp bounds each line of a request's head but neither the whole of it nor the time it takes, waits without end for a
client to take its answer, keeps a silent peer for as long as the kernel does (two hours), accepts any number of
connections, and answers malformed HTTP with a page of text. Here the head has a size and a deadline, an answer must
make progress, dead peers are found by TCP keep-alive and the user time-out, connections are counted, and every answer
has OpenAI's shape.

Beyond ``max_connections`` a connection is *spare*: only health checks are answered on it, anything else gets a 503 that
costs next to nothing (``gateway.app``). So a balancer can still tell a crowded gateway from a dead one. When the spare
ones are taken as well, a connection is dropped as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import HttpVersion, HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import ERROR

from gateway.errors import Reason, Refused
from gateway.http_errors import SERVER, bare_answer, error_response, http_exception_response, internal_error
from gateway.http_settings import HttpSettings
from gateway.peers import find_dead_peers, has_hung_up
from gateway.request_ids import ID_HEADER, ids_of

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

SPOKEN = (HttpVersion10, HttpVersion11)
OFFERED_VERSION = web.RequestKey("offered_version", HttpVersion)
"""The version in a request's first line; ``request.version`` is the one of its answer."""

MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 * 1024
"""Of all headers of a request together, and what else was read with them."""
MAX_HEADER_BYTES = 16 * 1024
"""Of one header or of the request line. Bearer tokens take a few KiB; nothing of ours needs more."""
HANGUP_EVERY_S = 1.0
"""How often a peer is looked for from which nothing is read, as it sends more than is being answered."""
SPARE_CONNECTIONS = 64
"""Beyond ``max_connections``: room for health checks of several balancers, and to say no to others."""


@dataclass(slots=True)
class Crowd:
    """How many connections there are at one server."""

    num_open: int = 0


class Connection(web.RequestHandler):
    """The handler of one connection. The head's timer runs while a request is on its way and not yet whole."""

    __slots__ = ("_crowd", "_hangup_timer", "_head_bytes", "_head_timer", "_progress_timer", "_settings", "is_spare")

    def __init__(self, server: web.Server, settings: HttpSettings, crowd: Crowd, **bounds: Any) -> None:
        super().__init__(server, **bounds)
        self._settings = settings
        self._crowd = crowd
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._hangup_timer: asyncio.TimerHandle | None = None
        self._progress_timer: asyncio.TimerHandle | None = None
        self.is_spare = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._crowd.num_open += 1
        num_over = self._crowd.num_open - self._settings.max_connections
        self.is_spare = num_over > 0
        if num_over > SPARE_CONNECTIONS:
            self.force_close()
            return
        find_dead_peers(transport, self._settings.peer_timeout_s)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages or self._is_handling:
            self._stop_head_timer()
            self._head_bytes = 0
        elif data:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
            elif self._head_timer is None:
                self._start_head_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._crowd.num_open -= 1
        self._stop_head_timer()
        self._stop_hangup_timer()
        self._stop_progress_timer()
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
        sign(request, response)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer to a client that takes it, or cut the client.

        An unknown ``Expect`` is answered by aiohttp before any middleware runs; it gets our shape here.
        """
        if isinstance(resp, web.HTTPException):
            resp = http_exception_response(resp)
            sign(request, resp)
        self._check_progress(None)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._stop_progress_timer()

    @property
    def _is_handling(self) -> bool:
        """Whether a request was parsed and is not yet answered: then nobody waits for the next one.

        ``_request_in_progress`` becomes true only an iteration of the event loop after a request was taken up; a body
        that comes in between is no head.
        """
        return self._request_count > 0 and self._waiter is None

    def _refuse_head(self) -> None:
        if self.transport is not None:
            self.transport.write(bare_answer(_head_too_large()))
        self.force_close()

    def _check_progress(self, unsent_before: int | None) -> None:
        """Look again and again whether the client takes its answer, and cut it when it took nothing."""
        transport = self.transport
        if transport is None:
            return
        unsent = transport.get_write_buffer_size()
        if unsent_before is not None and unsent >= unsent_before > 0:
            log.info("slow_client", unsent=unsent)
            transport.abort()
            return
        self._progress_timer = self._loop.call_later(self._settings.slow_client_s, self._check_progress, unsent)

    def _stop_progress_timer(self) -> None:
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None

    def _pause_transport_reading(self) -> None:
        """Who reads nothing is told of no end either, so the peer is looked for now and then."""
        super()._pause_transport_reading()
        if self._hangup_timer is None:
            self._hangup_timer = self._loop.call_later(HANGUP_EVERY_S, self._look_for_hangup)

    def _resume_transport_reading(self) -> None:
        super()._resume_transport_reading()
        self._stop_hangup_timer()

    def _look_for_hangup(self) -> None:
        self._hangup_timer = None
        if self.transport is None:
            return
        if has_hung_up(self.transport):
            self.transport.abort()
        else:
            self._hangup_timer = self._loop.call_later(HANGUP_EVERY_S, self._look_for_hangup)

    def _stop_hangup_timer(self) -> None:
        if self._hangup_timer is not None:
            self._hangup_timer.cancel()
            self._hangup_timer = None

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


def sign(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """The headers of every answer."""
    response.headers[ID_HEADER] = ids_of(request).shown
    response.headers[hdrs.SERVER] = SERVER


def _answering_in_ours(make_request: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """``make_request`` for requests that are answered in a version which is spoken here.

    aiohttp answers in the request's own, whatever that is, and in HTTP/1.0 where no request could be read.
    """

    def make(message: RawRequestMessage, *others: Any) -> web.BaseRequest:
        is_ours = message is not ERROR and message.version in SPOKEN
        request = make_request(message if is_ours else message._replace(version=HttpVersion11), *others)
        request[OFFERED_VERSION] = message.version
        return request

    return make


class _Server(web.Server):
    """Makes our connections."""

    def __init__(self, inner: web.Server, settings: HttpSettings, crowd: Crowd) -> None:
        super().__init__(
            inner.request_handler,
            request_factory=_answering_in_ours(inner.request_factory),
            handler_cancellation=True,  # a client that leaves cancels its handler, wherever that waits
        )
        self._settings = settings
        self._crowd = crowd

    def __call__(self) -> web.RequestHandler:
        return Connection(
            self,
            self._settings,
            self._crowd,
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

    __slots__ = ("_crowd", "_settings")

    def __init__(self, app: web.Application, settings: HttpSettings, crowd: Crowd) -> None:
        super().__init__(app, shutdown_timeout=settings.shutdown_s)
        self._settings = settings
        self._crowd = crowd

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._settings, self._crowd)


def _head_too_large() -> Refused:
    return Refused(Reason.HEADERS_TOO_LARGE, "The request line or the headers are too large.")


def _malformed(error: BaseException | None) -> Refused:
    if isinstance(error, LineTooLong) or "headers" in str(error).lower():
        return _head_too_large()
    return Refused(Reason.INVALID_VALUE, "The request is not well-formed HTTP.")
