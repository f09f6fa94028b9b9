"""The routes: two that generate, and those that tell."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gateway.api import API, Api
from gateway.chat import ChatEndpoint
from gateway.completions import CompletionEndpoint
from gateway.generation import Body, Endpoint, answer
from workers.wire import ModelCard


def routes() -> list[web.RouteDef]:
    """Every route of the gateway. ``/livez``, ``/readyz`` and ``/metrics`` never touch the queue."""
    return [
        _generating(ChatEndpoint()),
        _generating(CompletionEndpoint()),
        web.get("/v1/models", _list_models),
        web.get("/v1/models/{model:.+}", _show_model),
        web.get("/livez", _live),
        web.get("/readyz", _ready),
        web.get("/metrics", _metrics),
    ]


def _generating(endpoint: Endpoint[Body]) -> web.RouteDef:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await answer(request, endpoint)

    return web.post(endpoint.path, handle)


async def _list_models(request: web.Request) -> web.Response:
    api = request.app[API]
    return _json({"object": "list", "data": [_model_json(api, card) for card in api.dispatcher.models()]})


async def _show_model(request: web.Request) -> web.Response:
    api = request.app[API]
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


async def _metrics(request: web.Request) -> web.Response:
    page = generate_latest(request.app[API].metrics.registry)
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")
