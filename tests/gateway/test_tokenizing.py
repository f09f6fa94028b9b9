"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

import pytest

from admission.classes import DEFAULT_CLASSES
from gateway.api_keys import ApiKeys
from gateway.key_file import ApiKey
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import MODEL, FakeDispatcher
from tests.gateway.tiny_tokenizer import ids_of_bytes, ids_of_text

MESSAGES = [{"role": "user", "content": "Hi<|im_end|>"}]


async def test_the_ids_are_those_that_the_endpoints_would_make(gateway: Gateway) -> None:
    """Clients count tokens before they send them."""
    await gateway.chat("Hi<|im_end|>")
    chat_ids = gateway.dispatcher.last.sequence.prompt_ids
    reply = await gateway.post("/tokenize", {"model": MODEL, "messages": MESSAGES})
    assert reply.json == {
        "max_model_len": 256,
        "count": len(chat_ids),
        "tokens": list(chat_ids),
        "token_strs": None,
    }
    await gateway.complete("Hi<|im_end|>")
    reply = await gateway.post("/tokenize", {"model": MODEL, "prompt": "Hi<|im_end|>", "add_special_tokens": False})
    assert tuple(reply.json["tokens"]) == gateway.dispatcher.last.sequence.prompt_ids


async def test_the_assistants_turn_is_left_closed_on_request(gateway: Gateway) -> None:
    """To count a conversation that has ended. The chat endpoint takes the same parameter."""
    body = {"model": MODEL, "messages": MESSAGES}
    opened = (await gateway.post("/tokenize", body)).json["tokens"]
    closed = (await gateway.post("/tokenize", body | {"add_generation_prompt": False})).json["tokens"]
    assert opened[: len(closed)] == closed
    assert opened[len(closed) :] == [1, *ids_of_text("assistant\n")]
    await gateway.chat("Hi<|im_end|>", add_generation_prompt=False)
    assert gateway.dispatcher.last.sequence.prompt_ids == tuple(closed)


async def test_tokens_are_shown_as_the_vocabulary_writes_them(gateway: Gateway) -> None:
    """Where it is asked for."""
    body = {"model": MODEL, "prompt": "a b", "return_token_strs": True}
    assert "".join((await gateway.post("/tokenize", body)).json["token_strs"]) == "aĠb"


@pytest.mark.parametrize("text", ["", "Hi 今天 <|im_end|>\n", "🌶️"])
async def test_ids_come_back_as_their_text(gateway: Gateway, text: str) -> None:
    """Control tokens included."""
    tokens = (await gateway.post("/tokenize", {"model": MODEL, "prompt": text})).json["tokens"]
    assert (await gateway.post("/detokenize", {"model": MODEL, "tokens": tokens})).json == {"prompt": text}


async def test_half_a_character_comes_back_as_a_replacement(gateway: Gateway) -> None:
    """There is no text for it, and no fault."""
    tokens = ids_of_bytes("今".encode()[:2])
    assert (await gateway.post("/detokenize", {"model": MODEL, "tokens": tokens})).json == {"prompt": "\ufffd"}


@pytest.mark.parametrize("fields", [{}, {"prompt": "a", "messages": MESSAGES}])
async def test_both_or_neither_of_prompt_and_messages_are_refused_by_the_choice(
    gateway: Gateway, fields: dict[str, object]
) -> None:
    """Either is a known parameter."""
    reply = await gateway.post("/tokenize", {"model": MODEL} | fields)
    assert reply.error["message"] == "Give either 'prompt' or 'messages'."


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "tools": [{}]}, "tools"),
        ("/tokenize", {"messages": [{"role": "root", "content": "a"}]}, "messages[0].role"),
        ("/tokenize", {"prompt": "a", "truncate": 1}, "truncate"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [331]}, "tokens"),
        ("/detokenize", {"tokens": [1 << 70]}, "tokens[0]"),
        ("/detokenize", {"tokens": [0] * (1 << 18) + [0]}, "tokens"),
    ],
)
async def test_what_is_wrong_is_named(gateway: Gateway, path: str, fields: dict[str, object], param: str) -> None:
    """By the rules of the other endpoints."""
    reply = await gateway.post(path, {"model": MODEL} | fields)
    assert (reply.status, reply.error["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_a_model_that_is_not_here_has_no_tokenizer(gateway: Gateway, path: str) -> None:
    """A22: as where it is asked to speak."""
    fields = {"prompt": "a"} if path == "/tokenize" else {"tokens": [1]}
    assert (await gateway.post(path, {"model": "nope"} | fields)).status == 404
    assert (await gateway.post(path, fields)).error["param"] == "model"
    gateway.dispatcher.cards = ()
    assert (await gateway.post(path, {"model": MODEL} | fields)).status == 503


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_a_key_is_needed_where_there_are_keys(serve: ServeGateway, path: str) -> None:
    """Tokenising costs time, and tells what is served."""
    key = ApiKey(name="k", digest=bytes(32), tenant="t", ceiling=DEFAULT_CLASSES[0], max_concurrent=1)
    gateway = await serve(FakeDispatcher(), keys=ApiKeys(lambda: [key]))
    assert (await gateway.post(path, {})).status == 401
    assert (await gateway.post(path, {}, headers={"Authorization": "Bearer wrong"})).status == 401
