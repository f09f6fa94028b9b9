"""The routes: two that generate, two that tokenise, and those that tell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson
from aiohttp import hdrs, web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gateway.answers import (
    AliveAnswer,
    ChatCompletionAnswer,
    ChatCompletionChunk,
    CompletionAnswer,
    CompletionChunk,
    DetokenizeAnswer,
    ModelAnswer,
    ModelsAnswer,
    ReadyAnswer,
    TokenizeAnswer,
    UnreadyAnswer,
)
from gateway.api import API, Api
from gateway.chat import ChatEndpoint
from gateway.class_table import CLASS_CHOICE_HEADER
from gateway.completions import CompletionEndpoint
from gateway.deadlines import DEADLINE_HEADER, MOST_DEADLINE_MS
from gateway.early import EARLY_HEADER
from gateway.endpoint import Body, Endpoint
from gateway.generation import answer
from gateway.metrics import Metrics
from gateway.openapi import describe
from gateway.request_ids import ID_HEADER
from gateway.route import OF_A_MODEL, OF_A_TOKENIZER, OF_GENERATION, Access, RequestHeader, Route
from gateway.schema_chat import ChatCompletionRequest
from gateway.schema_completions import CompletionRequest
from gateway.schema_tokenize import DetokenizeRequest, TokenizeMessagesRequest, TokenizePromptRequest
from gateway.tokenizing import detokenize, tokenize
from workers.wire import ModelCard

HEALTH_PATHS = frozenset({"/livez", "/readyz"})
"""What balancers ask. Everything else needs a key, where there are keys."""

GENERATION_HEADERS = (
    RequestHeader(name=ID_HEADER, description="An id, repeated in the answer.", schema={"type": "string"}),
    RequestHeader(name=CLASS_CHOICE_HEADER, description="The name of a priority class.", schema={"type": "string"}),
    RequestHeader(
        name=EARLY_HEADER,
        description="With `stream`: answer 200 at once, and tell in comments how the request waits.",
        schema={"enum": ["true", "false"]},
    ),
    RequestHeader(
        name=DEADLINE_HEADER,
        description="The answer is of no use so long after the receipt of the request, in milliseconds.",
        schema={"type": "integer", "minimum": 1, "maximum": MOST_DEADLINE_MS},
    ),
)


def api_routes() -> list[Route]:
    """The routes of the API. ``/livez`` and ``/readyz`` never touch the queue, and need no key."""
    return [
        _generating(
            ChatEndpoint(),
            summary="Continue a conversation.",
            takes=(ChatCompletionRequest,),
            answers=ChatCompletionAnswer,
            events=ChatCompletionChunk,
        ),
        _generating(
            CompletionEndpoint(),
            summary="Continue a text, or several.",
            takes=(CompletionRequest,),
            answers=CompletionAnswer,
            events=CompletionChunk,
        ),
        Route(
            method=hdrs.METH_POST,
            path="/tokenize",
            handler=tokenize,
            summary="The tokens of a prompt, or of a conversation, as the endpoints that generate would make them.",
            takes=(TokenizePromptRequest, TokenizeMessagesRequest),
            answers=TokenizeAnswer,
            reasons=(*OF_A_MODEL, *OF_A_TOKENIZER),
        ),
        Route(
            method=hdrs.METH_POST,
            path="/detokenize",
            handler=detokenize,
            summary="The text of tokens, special ones included.",
            takes=(DetokenizeRequest,),
            answers=DetokenizeAnswer,
            reasons=(*OF_A_MODEL, *OF_A_TOKENIZER),
        ),
        Route(
            method=hdrs.METH_GET,
            path="/v1/models",
            handler=_list_models,
            summary="All models that are served.",
            answers=ModelsAnswer,
        ),
        Route(
            method=hdrs.METH_GET,
            path="/v1/models/{model:.+}",
            handler=_show_model,
            summary="One model; its name may have slashes.",
            answers=ModelAnswer,
            reasons=OF_A_MODEL,
        ),
        Route(
            method=hdrs.METH_GET,
            path="/livez",
            handler=_live,
            summary="Whether the process answers.",
            access=Access.EVERYBODY,
            answers=AliveAnswer,
        ),
        Route(
            method=hdrs.METH_GET,
            path="/readyz",
            handler=_ready,
            summary="Whether requests would be served: by a worker, through a queue that can be reached.",
            access=Access.EVERYBODY,
            answers=ReadyAnswer,
            unready=UnreadyAnswer,
        ),
    ]


def metrics_route() -> Route:
    """``/metrics`` beside the API: it tells how busy everybody is, so it needs a key like the rest of it."""

    async def tell(request: web.Request) -> web.Response:
        api = _known_caller(request)
        return _metrics_page(api.metrics)

    return Route(
        method=hdrs.METH_GET,
        path="/metrics",
        handler=tell,
        summary="What is counted, in the text format of Prometheus.",
        media_type="text/plain",
    )


def description_route(routes: Sequence[Route]) -> Route:
    """The description of ``routes``, which is made when it is first asked for."""

    @cache
    def page() -> bytes:
        return orjson.dumps(describe(routes))

    async def tell(request: web.Request) -> web.Response:
        _known_caller(request)
        return web.Response(body=page(), content_type="application/json")

    return Route(method=hdrs.METH_GET, path="/openapi.json", handler=tell, summary="This description.")


def admin_routes(metrics: Metrics) -> list[web.RouteDef]:
    """What operators ask at an address that clients cannot reach."""

    async def tell(_: web.Request) -> web.Response:
        return _metrics_page(metrics)

    return [web.get("/metrics", tell), web.get("/livez", _live)]


def _generating(endpoint: Endpoint[Body], **description: Any) -> Route:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await answer(request, endpoint)

    return Route(
        method=hdrs.METH_POST,
        path=endpoint.path,
        handler=handle,
        headers=GENERATION_HEADERS,
        reasons=(*OF_A_MODEL, *OF_A_TOKENIZER, *OF_GENERATION),
        **description,
    )


def _known_caller(request: web.Request) -> Api:
    """What a handler is given, once the caller is known. Raises ``Refused``."""
    api = request.app[API]
    api.keys.identify(*request.headers.getall(hdrs.AUTHORIZATION, ()))
    return api


async def _list_models(request: web.Request) -> web.Response:
    api = _known_caller(request)
    return _json({"object": "list", "data": [_model_json(api, card) for card in api.dispatcher.models()]})


async def _show_model(request: web.Request) -> web.Response:
    api = _known_caller(request)
    return _json(_model_json(api, api.model(request.match_info["model"])))


def _model_json(api: Api, card: ModelCard) -> dict[str, Any]:
    """OpenAI's fields, and ``max_model_len`` as vLLM names the context's length."""
    return {
        "id": card.name,
        "object": "model",
        "created": api.started_at,
        "owned_by": "sluicegate",
        "max_model_len": card.context_length,
    }


async def _live(_: web.Request) -> web.Response:
    return _json({"alive": True})


async def _ready(request: web.Request) -> web.Response:
    readiness = request.app[API].dispatcher.readiness()
    if readiness.ready:
        return _json({"ready": True})
    return _json({"ready": False, "reason": readiness.reason}, status=503)


def _metrics_page(metrics: Metrics) -> web.Response:
    page = generate_latest(metrics.registry)
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")
