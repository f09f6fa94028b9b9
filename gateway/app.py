"""The HTTP application: routes, error answers, request ids. Built around a ``Dispatcher``, run by ``make_runner``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum, auto

import structlog
from aiohttp import web

from gateway.api import API, Api
from gateway.api_keys import ApiKeys
from gateway.class_table import ClassTable
from gateway.connection import GatewayRunner
from gateway.dispatch import Dispatcher
from gateway.errors import Refused
from gateway.http_errors import error_response, http_exception_response, internal_error
from gateway.http_settings import HttpSettings
from gateway.metrics import Metrics
from gateway.request_ids import ids_of
from gateway.routes import admin_routes, api_routes, metrics_route
from gateway.tokenizer_pool import TokenizerPool

__all__ = ["HttpSettings", "MetricsAt", "build_admin_app", "build_app", "make_runner"]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


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
) -> web.Application:
    """The application over this machinery. It owns the tokenizing threads and ends them at its clean-up."""
    app = _new_app()
    tokenizers = TokenizerPool(fetch=dispatcher.tokenizer_files, num_threads=settings.tokenizer_threads)
    app[API] = Api(
        dispatcher=dispatcher,
        metrics=metrics,
        settings=settings,
        tokenizers=tokenizers,
        classes=classes,
        keys=keys,
        started_at=int(time.time()),
    )

    async def end_threads(_: web.Application) -> AsyncIterator[None]:
        yield
        tokenizers.close()

    app.cleanup_ctx.append(end_threads)
    app.add_routes(api_routes())
    if metrics_at is MetricsAt.API:
        app.add_routes(metrics_route())
    return app


def build_admin_app(metrics: Metrics) -> web.Application:
    """What an operator's own address serves: ``/metrics`` and ``/livez``, for whoever reaches it."""
    app = _new_app()
    app.add_routes(admin_routes(metrics))
    return app


def _new_app() -> web.Application:
    # Bodies are bounded where they are read, not by aiohttp, which counts only what its own readers read.
    app = web.Application(middlewares=[_answer_errors])
    app.on_response_prepare.append(_name_response)
    return app


def make_runner(app: web.Application, settings: HttpSettings) -> web.AppRunner:
    """A runner whose connections have our bounds; add sites to it as to any ``AppRunner``."""
    return GatewayRunner(app, settings)


@web.middleware
async def _answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Errors of the routes that do not generate, and of those that do not exist, in our shape."""
    try:
        return await handler(request)
    except Refused as refused:
        return error_response(refused)
    except web.HTTPException as error:
        return http_exception_response(error)
    except Exception as error:
        log.error("handler_failed", exc_info=error, request_id=ids_of(request).own)
        return error_response(internal_error())


async def _name_response(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["x-request-id"] = ids_of(request).shown
