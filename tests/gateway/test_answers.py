"""Every form of answer is what the description says, field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.answers import (
    Answer,
    ChatCompletionAnswer,
    ChatCompletionChunk,
    CompletionAnswer,
    CompletionChunk,
    DetokenizeAnswer,
    ErrorAnswer,
    ModelAnswer,
    ModelsAnswer,
    TokenizeAnswer,
)
from gateway.dispatch import Tokens
from gateway.errors import Reason
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import MODEL
from tests.gateway.talk import PATHS, body_for, scripted
from tests.gateway.tiny_tokenizer import ids_of_bytes, ids_of_text

CHAT, COMPLETIONS = PATHS
FORMS: list[tuple[str, dict[str, object]]] = [
    (CHAT, {}),
    (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2, "stop": "wor"}),
    (CHAT, {"logprobs": True}),
    (COMPLETIONS, {}),
    (COMPLETIONS, {"n": 2, "prompt": ["a", "b"], "logprobs": 2, "echo": True}),
    (COMPLETIONS, {"logprobs": 0, "stop": ["wor"]}),
    (COMPLETIONS, {"max_tokens": 0, "echo": True, "logprobs": 1}),
]
WHOLE: dict[str, type[Answer]] = {CHAT: ChatCompletionAnswer, COMPLETIONS: CompletionAnswer}
CHUNK: dict[str, type[Answer]] = {CHAT: ChatCompletionChunk, COMPLETIONS: CompletionChunk}


def check(model: type[Answer], value: object) -> Any:
    """Exactly the model's fields, and nothing that is no JSON, such as NaN."""
    return model.model_validate_json(json.dumps(value, allow_nan=False))


@pytest.mark.parametrize(("path", "fields"), FORMS)
async def test_a_whole_answer_has_the_shape_that_is_described(
    gateway: Gateway, path: str, fields: dict[str, object]
) -> None:
    """Clients are made from the description."""
    for extra in ({}, {"prompt_logprobs": 1}):
        reply = await gateway.post(path, body_for(path, **fields, **extra))
        assert reply.status == 200, reply.body
        check(WHOLE[path], reply.json)


@pytest.mark.parametrize(("path", "fields"), FORMS)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": True}, {"include_usage": None}])
async def test_every_chunk_has_the_shape_that_is_described(
    gateway: Gateway, path: str, fields: dict[str, object], options: object
) -> None:
    """B07, B09: one finish reason for each choice, and a chunk without a choice only where usage was asked for."""
    reply = await gateway.post(path, body_for(path, stream=True, stream_options=options, **fields))
    chunks = [check(CHUNK[path], chunk) for chunk in reply.chunks]
    ends = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason is not None]
    assert sorted(ends) == sorted({choice.index for chunk in chunks for choice in chunk.choices})
    wants_usage = options == {"include_usage": True}
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - wants_usage) + [False] * wants_usage
    assert [chunk.usage is not None for chunk in chunks] == [not chunk.choices for chunk in chunks]


@pytest.mark.parametrize("path", PATHS)
async def test_usage_so_far_is_in_every_chunk_when_it_is_asked_for(gateway: Gateway, path: str) -> None:
    """B09: as vLLM and SGLang tell it; the last is the whole."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = await gateway.post(path, body_for(path, stream=True, n=2, stream_options=options))
    counts = [check(CHUNK[path], chunk).usage.completion_tokens for chunk in reply.chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 2 * (len(ids_of_text("Hello")) + len(ids_of_text(" world")))


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_that_is_cut_inside_a_character_is_still_text(serve: ServeGateway, path: str) -> None:
    """The length may end it anywhere; what is left of the character is one replacement."""
    cut = Tokens(token_ids=(*ids_of_text("ok "), *ids_of_bytes("今".encode()[:2])))
    gateway = await serve(scripted(cut, Tokens(token_ids=(), finish="length")))
    fields = {"logprobs": True} if path == CHAT else {"logprobs": 0}
    reply = await gateway.post(path, body_for(path, **fields))
    answer = check(WHOLE[path], reply.json)
    choice = answer.choices[0]
    assert (choice.message.content if path == CHAT else choice.text) == "ok \ufffd"
    assert choice.finish_reason == "length"
    scores = choice.logprobs.content if path == CHAT else choice.logprobs.tokens
    assert len(scores) == len(cut.token_ids)


async def test_the_others_have_the_shape_that_is_described(gateway: Gateway) -> None:
    """Lists of models, tokens, and errors of every kind."""
    async with gateway.http.get("/v1/models") as response:
        check(ModelsAnswer, await response.json())
    async with gateway.http.get(f"/v1/models/{MODEL}") as response:
        check(ModelAnswer, await response.json())
    tokens = await gateway.post("/tokenize", {"model": MODEL, "prompt": "Hi"})
    check(TokenizeAnswer, tokens.json)
    text = await gateway.post("/detokenize", {"model": MODEL, "tokens": tokens.json["tokens"]})
    check(DetokenizeAnswer, text.json)
    check(ErrorAnswer, (await gateway.chat(temperature=9)).json)
    gateway.dispatcher.script = lambda _: [
        Tokens(token_ids=ids_of_text("Some")),
        Tokens(token_ids=(), error=Reason.WORKER_LOST),
    ]
    check(ErrorAnswer, (await gateway.chat(stream=True)).events[-1])
