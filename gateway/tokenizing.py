"""``POST /tokenize`` and ``POST /detokenize``: what a model's tokenizer makes of a prompt, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import orjson
from aiohttp import hdrs, web

from gateway.api import API, Api
from gateway.json_body import read_object
from gateway.schema import invalid
from gateway.schema_tokenize import DetokenizeRequest, TokenizeMessagesRequest, TokenizePromptRequest
from gateway.tokens import ChatTokenizer

TokenizeRequest: TypeAlias = TokenizePromptRequest | TokenizeMessagesRequest


async def tokenize(request: web.Request) -> web.Response:
    """The ids of a raw prompt, or of a conversation: the same that the endpoints that generate would make."""
    async with _admitted(request) as (api, fields):
        body = _parse(fields)
        card = api.model(body.model)
        tokenizer = await api.tokenizers.get(card.tokenizer_digest)
        tokens = await api.tokenizers.run(_tokens, tokenizer, body)
        return _json({"max_model_len": card.context_length, **tokens})


async def detokenize(request: web.Request) -> web.Response:
    """The text of token ids, special tokens included."""
    async with _admitted(request) as (api, fields):
        body = DetokenizeRequest.parse(fields)
        card = api.model(body.model)
        if max(body.tokens, default=0) >= card.vocab_size:
            raise invalid("tokens", f"has a token id beyond the model's {card.vocab_size}")
        tokenizer = await api.tokenizers.get(card.tokenizer_digest)
        text, _ = await api.tokenizers.run(tokenizer.decode, body.tokens)
        return _json({"prompt": text})


@asynccontextmanager
async def _admitted(request: web.Request) -> AsyncIterator[tuple[Api, dict[str, Any]]]:
    """The body of a known caller's request, which counts among those that it may have at once."""
    api = request.app[API]
    caller = api.keys.identify(*request.headers.getall(hdrs.AUTHORIZATION, ()))
    with api.keys.admitted(caller):
        settings = api.settings
        with api.bodies.share() as share:
            yield (
                api,
                await read_object(request, share, max_bytes=settings.max_body_bytes, timeout_s=settings.body_read_s),
            )


def _parse(fields: dict[str, Any]) -> TokenizeRequest:
    if fields.get("messages") is not None:
        return TokenizeMessagesRequest.parse(fields)
    return TokenizePromptRequest.parse(fields)


def _tokens(tokenizer: ChatTokenizer, body: TokenizeRequest) -> dict[str, Any]:
    """What is answered of the tokens, made in a thread."""
    token_ids = _encode(tokenizer, body)
    pieces = [tokenizer.names.piece_of(token_id) for token_id in token_ids] if body.return_token_strs else None
    return {"count": len(token_ids), "tokens": token_ids, "token_strs": pieces}


def _encode(tokenizer: ChatTokenizer, body: TokenizeRequest) -> tuple[int, ...]:
    if isinstance(body, TokenizeMessagesRequest):
        return tokenizer.encode_chat(body.for_template(), body.rendering)
    if body.add_special_tokens is False:
        return tokenizer.encode_bare_text(body.prompt)
    return tokenizer.encode_text(body.prompt)


def _json(answer: Mapping[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(answer), content_type="application/json")
