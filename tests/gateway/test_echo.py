"""Answers that begin with the prompt."""

from __future__ import annotations

import pytest

from gateway.dispatch import Tokens
from gateway.prompts import echo_of
from gateway.tokens import ChatTokenizer
from tests.gateway.conftest import ServeGateway
from tests.gateway.fakes import FakeDispatcher, says, score
from tests.gateway.talk import scripted, texts_of
from tests.gateway.tiny_tokenizer import ids_of_bytes, ids_of_text, tokenizer_files

TINY = ChatTokenizer(tokenizer_files())


def test_a_text_is_echoed_as_it_was_sent() -> None:
    """Also where the tokenizer puts a token of its own before it: the places are those in what was sent."""
    token_ids = TINY.encode_text("Hi 今")
    assert echo_of(TINY, "Hi 今", token_ids).text == "Hi 今"
    with_bos = echo_of(TINY, "Hi 今", (0, *token_ids))
    assert with_bos.text == "Hi 今"
    assert with_bos.offsets[0] == 0
    assert with_bos.offsets[1:] == echo_of(TINY, "Hi 今", token_ids).offsets


def test_ids_are_echoed_as_the_text_of_all_their_tokens() -> None:
    """Control tokens are part of a raw prompt."""
    echo = echo_of(TINY, (1, 2), (1, *ids_of_text("a"), 2))
    assert echo.text == "<|im_start|>a<|im_end|>"
    assert echo.offsets == (0, 12, 13)


def test_a_text_that_the_tokenizer_writes_in_another_way_has_places_within_it() -> None:
    """A client cuts the text at these places."""
    echo = echo_of(TINY, "Hi", ids_of_text("Hello there"))
    assert echo.text == "Hi"
    assert max(echo.offsets) <= len("Hi")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Hi <|im_end|>", [1, *ids_of_text("Hi")]])
async def test_the_prompt_comes_before_the_output(serve: ServeGateway, stream: bool, prompt: object) -> None:
    """Once for each choice."""
    gateway = await serve(FakeDispatcher())
    reply = await gateway.complete(prompt, echo=True, n=2, stream=stream)
    shown = prompt if isinstance(prompt, str) else "<|im_start|>Hi"
    assert texts_of(reply) == [f"{shown}Hello world"] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prompts_tokens_are_told_first(serve: ServeGateway, stream: bool) -> None:
    """The first without a number; offsets go on from prompt to output."""
    gateway = await serve(scripted(*says("out")))
    reply = await gateway.complete("Hi there", echo=True, logprobs=1, stream=stream)
    prompt_ids, output_ids = ids_of_text("Hi there"), ids_of_text("out")
    chunks = reply.chunks if stream else [reply.json]
    parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    numbers = [number for part in parts for number in part["token_logprobs"]]
    assert numbers == [None, *[score(token_id, 1).own for token_id in (*prompt_ids[1:], *output_ids)]]
    offsets = [offset for part in parts for offset in part["text_offset"]]
    tokens = [token for part in parts for token in part["tokens"]]
    assert [texts_of(reply)[0][offset:][: len(token)] for offset, token in zip(offsets, tokens, strict=True)] == tokens


async def test_a_long_prompt_is_told_too(serve: ServeGateway) -> None:
    """Its numbers are written in a thread."""
    gateway = await serve(FakeDispatcher())
    (choice,) = (await gateway.complete("x " * 100, echo=True, logprobs=5, max_tokens=2)).json["choices"]
    assert len(choice["logprobs"]["tokens"]) == len(ids_of_text("x " * 100)) + len(ids_of_text("Hello world"))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_can_be_scored_without_an_output(serve: ServeGateway, stream: bool) -> None:
    """A11: the one token that the worker makes is not shown and not counted."""
    gateway = await serve(scripted(Tokens(token_ids=ids_of_text("x")[:1], finish="length")))
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    reply = await gateway.complete("Hi there", echo=True, logprobs=1, max_tokens=0, **options)
    assert gateway.dispatcher.last.sequence.max_tokens == 1
    assert texts_of(reply) == ["Hi there"]
    body = reply.chunks if stream else [reply.json]
    assert body[-1]["usage"]["completion_tokens"] == 0
    parts = [choice["logprobs"] for chunk in body for choice in chunk["choices"] if choice["logprobs"]]
    assert [len(part["tokens"]) for part in parts] == [len(ids_of_text("Hi there"))]
    assert b'"finish_reason":"length"' in reply.body


async def test_a_prompt_that_ends_inside_a_character_is_echoed_with_a_replacement(serve: ServeGateway) -> None:
    """B03: there is no other text for it, and the output shows nothing of it."""
    gateway = await serve(scripted(Tokens(token_ids=ids_of_bytes("今".encode()[2:])), *says("next")))
    prompt = [*ids_of_text("a"), *ids_of_bytes("今".encode()[:2])]
    assert texts_of(await gateway.complete(prompt, echo=True)) == ["a\ufffdnext"]
