"""Log-probabilities as each endpoint tells them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dispatch import SequenceRequest, TokenLogprob, Tokens
from gateway.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from gateway.token_scores import Score
from gateway.tokens import ChatTokenizer
from tests.gateway.conftest import Reply, ServeGateway
from tests.gateway.fakes import FakeDispatcher, score, speaks
from tests.gateway.talk import PATHS, body_for, texts_of
from tests.gateway.tiny_tokenizer import ids_of_bytes, ids_of_text, tokenizer_files
from workers.wire import LOWEST_LOGPROB

CHAT, COMPLETIONS = PATHS
NAMES = ChatTokenizer(tokenizer_files()).names
HELLO, *_ = ids_of_text("Hello")
HALF = ids_of_bytes("今".encode())[0]
END = 2  # <|im_end|>


def asked(path: str) -> dict[str, object]:
    return {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}


def told(reply: Reply) -> list[dict[str, Any]]:
    """All parts of the log-probabilities of the only choice."""
    chunks = [reply.json] if reply.headers["Content-Type"] == "application/json" else reply.chunks
    parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    return [part for part in parts if part is not None]


def tokens_told(reply: Reply) -> list[str]:
    parts = told(reply)
    if parts and "tokens" in parts[0]:
        return [token for part in parts for token in part["tokens"]]
    return [entry["token"] for part in parts for entry in part["content"]]


def test_a_chat_token_is_told_with_its_bytes() -> None:
    """B01: half a character is its bytes; a replacement character would say nothing."""
    logprob = TokenLogprob(own=-0.5, top=((HELLO, -0.1), (END, LOWEST_LOGPROB)))
    (entry,) = chat_logprobs([Score(HALF, 0, logprob)], NAMES, 2)["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("bytes:\\xe4", -0.5, [0xE4])
    assert [top["token"] for top in entry["top_logprobs"]] == [NAMES.text_of(HELLO), "<|im_end|>"]
    assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.1, LOWEST_LOGPROB]
    (fewer,) = chat_logprobs([Score(HALF, 0, logprob)], NAMES, 1)["content"]
    assert len(fewer["top_logprobs"]) == 1


def test_a_completion_token_is_always_among_the_likeliest() -> None:
    """OpenAI tells up to one more than was asked for; harnesses look the token up there."""
    logprob = TokenLogprob(own=-3.0, top=((HELLO, -0.1),))
    part = completion_logprobs([Score(END, 4, None), Score(END, 5, logprob), Score(HELLO, 6, logprob)], NAMES, 1)
    hello = NAMES.text_of(HELLO)
    assert part["tokens"] == ["<|im_end|>", "<|im_end|>", hello]
    assert part["token_logprobs"] == [None, -3.0, -3.0]
    assert part["top_logprobs"] == [None, {hello: -0.1, "<|im_end|>": -3.0}, {hello: -0.1}]
    assert part["text_offset"] == [4, 5, 6]


def test_a_prompt_is_told_by_token_id_with_ranks() -> None:
    """As vLLM does; the first token has nothing before it."""
    logprob = TokenLogprob(own=-3.0, top=((HELLO, -0.1), (END, -0.2)))
    first, second, third = prompt_logprobs([5, END, HALF], [logprob, logprob], NAMES, 2)
    assert first is None
    assert second is not None
    assert third is not None
    assert list(second) == [str(END), str(HELLO)]
    assert second[str(END)] == {"logprob": -0.2, "rank": 2, "decoded_token": "<|im_end|>"}
    assert third[str(HALF)] == {"logprob": -3.0, "rank": None, "decoded_token": "bytes:\\xe4"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_every_token_is_told_once_beside_its_text(serve: ServeGateway, path: str, stream: bool) -> None:
    """B01, B06: also where characters are split, and however items come together."""
    text = "a 今天 🌶️ z"
    token_ids = ids_of_bytes(text.encode())
    steps = [token_ids[:2], token_ids[2:3], token_ids[3:9], *[[token_id] for token_id in token_ids[9:]]]
    gateway = await serve(FakeDispatcher(script=lambda _: speaks(steps, finish="length")))
    reply = await gateway.post(path, body_for(path, stream=stream, **asked(path)))
    assert texts_of(reply) == [text]
    assert "\ufffd" not in reply.body.decode()
    assert tokens_told(reply) == [NAMES.text_of(token_id) for token_id in token_ids]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_withheld_text_wait_for_it_and_none_is_lost(
    serve: ServeGateway, path: str, stream: bool
) -> None:
    """B06: there are as many as tokens are counted, those of the stop string included."""
    steps = [ids_of_text(part) for part in ("the E", "N", "emy E", "ND", " later")]
    gateway = await serve(FakeDispatcher(script=lambda _: speaks(steps)))
    reply = await gateway.post(path, body_for(path, stream=stream, stop="END", **asked(path)))
    assert texts_of(reply) == ["the ENemy "]
    counted = [token_id for step in steps[:4] for token_id in step]
    assert tokens_told(reply) == [NAMES.text_of(token_id) for token_id in counted]
    if stream and path == COMPLETIONS:
        for chunk in reply.chunks[:-2]:
            (choice,) = chunk["choices"]
            assert len("".join((choice["logprobs"] or {"tokens": []})["tokens"])) <= len(choice["text"]) + len("EN")


async def test_offsets_are_places_in_the_text(serve: ServeGateway) -> None:
    """In characters; tokens of one character begin at the same place."""
    text = "a今z"
    gateway = await serve(FakeDispatcher(script=lambda _: speaks([ids_of_bytes(text.encode())])))
    (part,) = told(await gateway.complete(logprobs=0))
    assert part["text_offset"] == [0, 1, 1, 1, 2]


async def test_the_likeliest_are_as_many_as_were_asked_for(serve: ServeGateway) -> None:
    """None at all when only the tokens' own are wanted."""
    gateway = await serve(FakeDispatcher(script=lambda _: speaks([[HELLO]])))
    for count in (0, 1, 20):
        (part,) = told(await gateway.chat(logprobs=True, top_logprobs=count))
        (entry,) = part["content"]
        assert len(entry["top_logprobs"]) == count
        assert entry["logprob"] == score(HELLO, 0).own
    assert told(await gateway.chat()) == []


@pytest.mark.parametrize("path", PATHS)
async def test_the_prompt_is_told_where_it_is_asked_for(serve: ServeGateway, path: str) -> None:
    """VLLM's parameter: beside the choices of a chat, in each choice of a completion."""
    gateway = await serve(FakeDispatcher())
    answer = (await gateway.post(path, body_for(path, prompt_logprobs=1, n=2))).json
    prompt_ids = gateway.dispatcher.last.sequence.prompt_ids
    for part in [answer] if path == CHAT else answer["choices"]:
        assert part["prompt_logprobs"][0] is None
        assert len(part["prompt_logprobs"]) == len(prompt_ids)
        assert part["prompt_logprobs"][1][str(prompt_ids[1])]["logprob"] == score(prompt_ids[1], 1).own
    assert "prompt_logprobs" not in str((await gateway.post(path, body_for(path))).json)


async def test_one_token_that_is_wanted_for_its_logprob_is_told_even_if_it_is_an_eos(serve: ServeGateway) -> None:
    """Evaluation harnesses cut it off, and would cut the prompt's last token off instead."""

    def script(sequence: SequenceRequest) -> list[Tokens]:
        # The worker runs on past an eos when it is told to.
        return [Tokens(token_ids=(END,) if sequence.sampling.ignore_eos else (), finish="length")]

    gateway = await serve(FakeDispatcher(script=script))
    (choice,) = (await gateway.complete("Hi", echo=True, logprobs=1, max_tokens=1)).json["choices"]
    assert choice["text"] == "Hi"
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["tokens"][-1] == "<|im_end|>"
    assert len(choice["logprobs"]["tokens"]) == len(ids_of_text("Hi")) + 1
