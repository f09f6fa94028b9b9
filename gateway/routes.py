"""The routes: two that generate, two that tokenise, and those that tell."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import hdrs, web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gateway.api import API, Api
from gateway.chat import ChatEndpoint
from gateway.completions import CompletionEndpoint
from gateway.endpoint import Body, Endpoint
from gateway.generation import answer
from gateway.metrics import Metrics
from gateway.tokenizing import detokenize, tokenize
from workers.wire import ModelCard

HEALTH_PATHS = frozenset({"/livez", "/readyz"})
"""What balancers ask. Everything else needs a key, where there are keys."""


def api_routes() -> list[web.RouteDef]:
    """The routes of the API. ``/livez`` and ``/readyz`` never touch the queue, and need no key."""
    return [
        _generating(ChatEndpoint()),
        _generating(CompletionEndpoint()),
        web.post("/tokenize", tokenize),
        web.post("/detokenize", detokenize),
        web.get("/v1/models", _list_models),
        web.get("/v1/models/{model:.+}", _show_model),
        web.get("/livez", _live),
        web.get("/readyz", _ready),
    ]


def metrics_route() -> list[web.RouteDef]:
    """``/metrics`` beside the API: it tells how busy everybody is, so it needs a key like the rest of it."""

    async def tell(request: web.Request) -> web.Response:
        api = _known_caller(request)
        return _metrics_page(api.metrics)

    return [web.get("/metrics", tell)]


def admin_routes(metrics: Metrics) -> list[web.RouteDef]:
    """What operators ask at an address that clients cannot reach."""

    async def tell(_: web.Request) -> web.Response:
        return _metrics_page(metrics)

    return [web.get("/metrics", tell), web.get("/livez", _live)]


def _generating(endpoint: Endpoint[Body]) -> web.RouteDef:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await answer(request, endpoint)

    return web.post(endpoint.path, handle)


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
