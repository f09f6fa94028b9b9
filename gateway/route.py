"""A route of the API, with what its description says of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from gateway.errors import Reason

OF_ANY_REQUEST = (
    Reason.INVALID_VALUE,
    Reason.HEADERS_TOO_LARGE,
    Reason.TOO_MANY_CONNECTIONS,
    Reason.INTERNAL_ERROR,
)
OF_A_MODEL = (Reason.UNKNOWN_MODEL, Reason.NO_WORKER)
OF_A_BODY = (Reason.REQUEST_TIMEOUT, Reason.BODY_TOO_LARGE, Reason.UNSUPPORTED_MEDIA_TYPE)
OF_A_CALLER = (Reason.INVALID_API_KEY,)
OF_A_TOKENIZER = (Reason.TENANT_LIMIT, Reason.STORE_UNAVAILABLE)
OF_GENERATION = (
    Reason.CONTEXT_LENGTH_EXCEEDED,
    Reason.QUEUE_FULL,
    Reason.QUEUE_TOKENS_FULL,
    Reason.CLASS_FULL,
    Reason.SHED,
    Reason.DEADLINE_UNREACHABLE,
    Reason.DEADLINE_EXCEEDED,
    Reason.DRAINING,
    Reason.WORKER_LOST,
    Reason.SLOW_CLIENT,
)


class Access(StrEnum):
    """Whom a route answers."""

    KNOWN_CALLERS = "known callers"
    EVERYBODY = "everybody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """``path`` is aiohttp's pattern.

    ``takes``: the models that a body may follow, one of them. ``answers`` is the body of a 200; ``events`` are those of
    a stream, where there is one. ``media_type`` is that of an answer without a model.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    access: Access = Access.KNOWN_CALLERS
    takes: tuple[type[BaseModel], ...] = ()
    answers: type[BaseModel] | None = None
    events: type[BaseModel] | None = None
    media_type: str = "application/json"
    headers: tuple[RequestHeader, ...] = ()
    reasons: tuple[Reason, ...] = ()
    unready: type[BaseModel] | None = None

    @property
    def definition(self) -> web.RouteDef:
        """The route as aiohttp takes it. GET answers HEAD as well."""
        return web.get(self.path, self.handler) if self.method == hdrs.METH_GET else web.post(self.path, self.handler)

    @property
    def template(self) -> str:
        """The path as OpenAPI writes it: ``/v1/models/{model}``."""
        return re.sub(r"\{(\w+):[^}]*\}", r"{\1}", self.path)

    @property
    def variables(self) -> tuple[str, ...]:
        """What varies in the path."""
        return tuple(re.findall(r"\{(\w+)\}", self.template))

    @property
    def all_reasons(self) -> tuple[Reason, ...]:
        """Every way in which the route may say no."""
        by_access = OF_A_CALLER if self.access is Access.KNOWN_CALLERS else ()
        of_crowd = self.access is Access.KNOWN_CALLERS
        common = [reason for reason in OF_ANY_REQUEST if of_crowd or reason is not Reason.TOO_MANY_CONNECTIONS]
        return (*common, *by_access, *(OF_A_BODY if self.takes else ()), *self.reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """A header that a route looks at. ``schema`` is JSON Schema."""

    name: str
    description: str
    schema: dict[str, Any]
