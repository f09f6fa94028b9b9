"""The HTTP application: routes, error answers, request ids. Built around a ``Dispatcher``, run by ``make_runner``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from enum import Enum, auto

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.api import API, Api
from gateway.api_keys import ApiKeys
from gateway.body_room import BodyRoom
from gateway.class_table import ClassTable
from gateway.connection import OFFERED_VERSION, SPOKEN, Connection, Crowd, GatewayRunner, sign
from gateway.dispatch import Dispatcher
from gateway.door_log import DoorLog
from gateway.errors import Reason, Refused
from gateway.http_errors import error_response, http_exception_response, internal_error
from gateway.http_settings import HttpSettings
from gateway.metrics import NO_CLASS, Metrics
from gateway.request_ids import ids_of
from gateway.routes import HEALTH_PATHS, admin_routes, api_routes, description_route, metrics_route
from gateway.tokenizer_pool import TokenizerPool

__all__ = ["HttpSettings", "MetricsAt", "build_admin_app", "build_app", "make_runner"]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

CROWD = web.AppKey("crowd", Crowd)
"""The connections of an application."""


class MetricsAt(Enum):
    """Where ``/metrics`` is: beside the API, for whoever may ask there, or at an address of its own, for everybody."""

    API = auto()
    ADMIN = auto()


def build_app(
    *,
    dispatcher: Dispatcher,
    metrics: Metrics,
    settings: HttpSettings,
    classes: ClassTable,
    keys: ApiKeys,
    metrics_at: MetricsAt = MetricsAt.API,
    door: DoorLog | None = None,
) -> web.Application:
    """The application over this machinery. It owns the tokenizing threads and ends them at its clean-up."""
    app = _new_app(_turn_away_spare)
    metrics.requests.connections_open.set_function(lambda: app[CROWD].num_open)
    tokenizers = TokenizerPool(fetch=dispatcher.tokenizer_files, num_threads=settings.tokenizer_threads)
    app[API] = Api(
        dispatcher=dispatcher,
        metrics=metrics,
        settings=settings,
        tokenizers=tokenizers,
        bodies=BodyRoom(settings.max_bodies_bytes),
        classes=classes,
        keys=keys,
        started_at=int(time.time()),
        door=door,
    )

    async def end_threads(_: web.Application) -> AsyncIterator[None]:
        yield
        tokenizers.close()

    app.cleanup_ctx.append(end_threads)
    routes = api_routes() if metrics_at is MetricsAt.ADMIN else [*api_routes(), metrics_route()]
    app.add_routes([route.definition for route in [*routes, description_route(routes)]])
    return app


def build_admin_app(metrics: Metrics) -> web.Application:
    """What an operator's own address serves: ``/metrics`` and ``/livez``, for whoever reaches it."""
    app = _new_app()
    app.add_routes(admin_routes(metrics))
    return app


def _new_app(*inner: Middleware) -> web.Application:
    # Bodies are bounded where they are read, not by aiohttp, which counts only what its own readers read.
    app = web.Application(middlewares=[_answer_errors, *inner])
    app[CROWD] = Crowd()
    app.on_response_prepare.append(_name_response)
    return app


def make_runner(app: web.Application, settings: HttpSettings) -> web.AppRunner:
    """A runner whose connections have our bounds; add sites to it as to any ``AppRunner``."""
    return GatewayRunner(app, settings, app[CROWD])


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors of the routes that do not generate, and of those that do not exist, in our shape."""
    try:
        if request[OFFERED_VERSION] not in SPOKEN:
            return _other_http()
        return await handler(request)
    except Refused as refused:
        return error_response(refused)
    except web.HTTPException as error:
        return http_exception_response(error)
    except Exception as error:
        log.error("handler_failed", exc_info=error, request_id=ids_of(request).own)
        return error_response(internal_error())


@web.middleware
async def _turn_away_spare(request: web.Request, handler: Handler) -> web.StreamResponse:
    """On a connection beyond the bound nothing is read, tokenised or asked of anybody, and health is still told."""
    protocol = request.protocol
    if not (isinstance(protocol, Connection) and protocol.is_spare) or request.path in HEALTH_PATHS:
        return await handler(request)
    reason = Reason.TOO_MANY_CONNECTIONS
    request.app[API].metrics.requests.ended.labels(reason.value, NO_CLASS).inc()
    response = error_response(Refused(reason, "This gateway has as many connections as it may."))
    response.force_close()
    return response


def _other_http() -> web.Response:
    response = error_response(Refused(Reason.HTTP_VERSION, "HTTP/1.1 and HTTP/1.0 are spoken here, no others."))
    response.force_close()  # what follows may be framed otherwise
    return response


async def _name_response(request: web.Request, response: web.StreamResponse) -> None:
    sign(request, response)
