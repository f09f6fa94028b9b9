"""The API's own description, in OpenAPI 3.1: made from the table of routes, the models of bodies and answers, and the
table of errors. Nothing of it is written twice.

JSON Schema knows no rules between fields, so a body may follow its schema and be refused all the same. What is written
here beside the tables is what they cannot say: the key, the headers that every answer has, and how a stream ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from gateway.answers import ErrorAnswer
from gateway.errors import ANSWERS, Reason, Retry
from gateway.request_ids import ID_HEADER
from gateway.route import Access, Route

API_VERSION = "1"
"""As in the paths: it changes when what a client may rely on does."""
_SCHEMAS = "#/components/schemas/"
_KEY = "key"
_STREAM = (
    "server-sent events, each one line `data: JSON` and a blank line. The last is `data: [DONE]`, unless the stream"
    " failed: then it is an `ErrorAnswer`, and no `[DONE]` follows. Lines that begin with a colon are comments."
)
_RETRY_HEADERS = {
    "Retry-After": {"description": "When to come back, in seconds.", "schema": {"type": "string"}},
    "retry-after-ms": {"description": "The same in milliseconds.", "schema": {"type": "string"}},
}
_ANY_HEADERS = {
    ID_HEADER: {"description": "The id that the client sent, or one of ours.", "schema": {"type": "string"}}
}
_ERROR_HEADERS = {
    "x-sluicegate-reason": {"description": "The `code` of the error.", "schema": {"type": "string"}},
    "x-should-retry": {"description": "`false` where it would end the same way again.", "schema": {"type": "string"}},
}


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The description of ``routes``, as JSON."""
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for route in routes:
        paths[route.template][route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluicegate",
            "version": API_VERSION,
            "description": "Language models behind OpenAI's API, with an admission controller before them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        # An empty requirement: a gateway without configured keys looks at none.
        "security": [{_KEY: []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {_KEY: {"type": "http", "scheme": "bearer", "description": "An API key."}},
            "schemas": _schemas(routes),
        },
    }


def _schemas(routes: Iterable[Route]) -> dict[str, Any]:
    """Of every model that a route names, each once."""
    models: dict[type[BaseModel], JsonSchemaMode] = {ErrorAnswer: "serialization"}
    for route in routes:
        models |= dict.fromkeys(route.takes, "validation")
        answers = (route.answers, route.events, route.unready)
        models |= dict.fromkeys([answer for answer in answers if answer is not None], "serialization")
    _, defined = models_json_schema(list(models.items()), ref_template=_SCHEMAS + "{model}")
    return dict(sorted(defined["$defs"].items()))


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{route.template}".replace("/", "_").translate(
            str.maketrans("", "", "{}")
        ),
        "summary": route.summary,
        "parameters": [*map(_path_parameter, route.variables), *_header_parameters(route)],
        "responses": {"200": _success(route)} | _refusals(route),
    }
    if route.access is Access.EVERYBODY:
        operation["security"] = []
    if route.takes:
        content = {"application/json": {"schema": _one_of(route.takes)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": header.name, "in": "header", "description": header.description, "schema": header.schema}
        for header in route.headers
    ]


def _success(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {
        route.media_type: {"schema": {"type": "string"} if route.answers is None else _ref(route.answers)}
    }
    description = "The answer."
    if route.events is not None:
        description = f"The answer; with `stream` as {_STREAM}"
        content["text/event-stream"] = {"schema": {"type": "string"}, "x-event": _ref(route.events)}
    return {"description": description, "headers": _ANY_HEADERS, "content": content}


def _refusals(route: Route) -> dict[str, Any]:
    """By status, with the reasons for it."""
    by_status: dict[int, list[Reason]] = defaultdict(list)
    for reason in route.all_reasons:
        by_status[ANSWERS[reason].status].append(reason)
    responses = {str(status): _refusal(status, reasons) for status, reasons in sorted(by_status.items())}
    if route.unready is not None:
        content = {"application/json": {"schema": _ref(route.unready)}}
        responses["503"] = {"description": "Not now.", "headers": _ANY_HEADERS, "content": content}
    return responses


def _refusal(status: int, reasons: Sequence[Reason]) -> dict[str, Any]:
    codes = ", ".join(f"`{reason.value}`" for reason in reasons)
    comes_back = any(ANSWERS[reason].retry is not Retry.NO for reason in reasons)
    return {
        "description": f"{HTTPStatus(status).phrase}: {codes}.",
        "headers": _ANY_HEADERS | _ERROR_HEADERS | (_RETRY_HEADERS if comes_back else {}),
        "content": {"application/json": {"schema": _ref(ErrorAnswer)}},
    }


def _one_of(models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    return _ref(models[0]) if len(models) == 1 else {"anyOf": [_ref(model) for model in models]}


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": _SCHEMAS + model.__name__}
