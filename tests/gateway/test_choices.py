"""Several choices of a prompt, and several prompts: one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.dispatch import SequenceRequest, Tokens
from gateway.errors import Reason
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import FakeDispatcher, says
from tests.gateway.talk import PATHS, body_for, texts_of
from tests.gateway.tiny_tokenizer import ids_of_text
from tests.support import wait_until


def by_choice(sequence: SequenceRequest) -> Sequence[Tokens]:
    """Each choice says its number, and one word more than the one before it."""
    choice = sequence.sampling.choice
    return says(f"choice {choice}", *[" more"] * choice, finish="length" if choice % 2 else "stop")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_has_its_index_its_text_and_its_end(serve: ServeGateway, path: str, stream: bool) -> None:
    """B07: a client puts chunks together by their index."""
    gateway = await serve(FakeDispatcher(script=by_choice))
    reply = await gateway.post(path, body_for(path, stream=stream, n=3))
    assert texts_of(reply) == ["choice 0", "choice 1 more", "choice 2 more more"]
    chunks = reply.chunks if stream else [reply.json]
    ends = [
        (choice["index"], choice["finish_reason"])
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"] is not None
    ]
    assert sorted(ends) == [(0, "stop"), (1, "length"), (2, "stop")]
    assert gateway.outcome("completed") == gateway.num_requests == 1


async def test_each_choice_of_a_chat_stream_has_its_role_first(serve: ServeGateway) -> None:
    """B07: every choice is a message of its own."""
    gateway = await serve(FakeDispatcher(script=by_choice))
    first: dict[int, object] = {}
    for chunk in (await gateway.chat(stream=True, n=3)).chunks:
        (choice,) = chunk["choices"]
        first.setdefault(choice["index"], choice["delta"])
    assert first == {index: {"role": "assistant", "content": ""} for index in range(3)}


async def test_choices_share_a_seed_and_differ_in_their_number(gateway: Gateway) -> None:
    """The random numbers of a token follow from both."""
    await gateway.chat(n=3, seed=5)
    samplings = [sequence.sampling for sequence in gateway.dispatcher.last.request.sequences]
    assert [(sampling.seed, sampling.choice) for sampling in samplings] == [(5, 0), (5, 1), (5, 2)]


async def test_equal_prompts_without_a_seed_are_answered_differently(gateway: Gateway) -> None:
    """Whoever sends the same prompt twice wants two answers."""
    await gateway.complete(["Hi", "Hi"], n=2)
    samplings = [sequence.sampling for sequence in gateway.dispatcher.last.request.sequences]
    assert [sampling.choice for sampling in samplings] == [0, 1, 0, 1]
    assert samplings[0].seed == samplings[1].seed != samplings[2].seed == samplings[3].seed


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_are_answered_in_their_order(serve: ServeGateway, stream: bool) -> None:
    """Choice ``i`` belongs to prompt ``i // n``."""

    def script(sequence: SequenceRequest) -> Sequence[Tokens]:
        return [Tokens(token_ids=sequence.prompt_ids), *says(f" {sequence.sampling.choice}")]

    gateway = await serve(FakeDispatcher(script=script))
    for prompts in (["one", "two"], [list(ids_of_text("one")), list(ids_of_text("two"))]):
        reply = await gateway.complete(prompts, n=2, stream=stream)
        assert texts_of(reply) == ["one 0", "one 1", "two 0", "two 1"]


async def test_a_prompt_counts_once_and_every_choice_counts(serve: ServeGateway) -> None:
    """B09: as OpenAI bills it; the last chunk of a stream says the same."""
    gateway = await serve(FakeDispatcher(script=by_choice, cached_tokens=1))
    prompts = ["one", "two three"]
    usage = (await gateway.complete(prompts, n=3)).json["usage"]
    told = (await gateway.complete(prompts, n=3, stream=True, stream_options={"include_usage": True})).chunks[-1]
    assert told["choices"] == []
    assert told["usage"] == usage
    outputs = [len(ids_of_text(f"choice {i}")) + i * len(ids_of_text(" more")) for i in range(3)]
    assert usage["prompt_tokens"] == sum(len(ids_of_text(prompt)) for prompt in prompts)
    assert usage["completion_tokens"] == 2 * sum(outputs)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_what_comes_of_one_iteration_is_one_write(serve: ServeGateway) -> None:
    """B11: every choice's token at once, none held back for another's."""
    gateway = await serve(FakeDispatcher(script=lambda _: []))
    async with asyncio.timeout(5):
        task = asyncio.create_task(gateway.http.post(PATHS[1], json=body_for(PATHS[1], stream=True, n=3)))
        await wait_until(lambda: len(gateway.dispatcher.streams) == 3, "submitted")
        for word in ("one", "two"):
            for stream in gateway.dispatcher.streams:
                stream.put(Tokens(token_ids=ids_of_text(word)))
            response = await task
            written = await response.content.readany()
            assert written.count(b'"text":"%s"' % word.encode()) == 3
        response.close()


@pytest.mark.parametrize("path", PATHS)
async def test_one_choice_that_fails_fails_the_request(serve: ServeGateway, path: str) -> None:
    """The others must not look like a whole answer."""

    def script(sequence: SequenceRequest) -> Sequence[Tokens]:
        if sequence.sampling.choice == 1:
            return [Tokens(token_ids=ids_of_text("Some")), Tokens(token_ids=(), error=Reason.WORKER_LOST)]
        return [Tokens(token_ids=ids_of_text("Some"))]

    gateway = await serve(FakeDispatcher(script=script))
    streamed = await gateway.post(path, body_for(path, stream=True, n=3))
    assert streamed.events[-1]["error"]["code"] == "worker_lost"
    assert b"[DONE]" not in streamed.body
    whole = await gateway.post(path, body_for(path, n=3))
    assert (whole.status, whole.error["code"]) == (500, "worker_lost")
    assert all("the answer was given up" in stream.cancels for stream in gateway.dispatcher.streams)
    assert gateway.outcome("worker_lost") == gateway.num_requests == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_that_fails_before_the_first_token_is_a_status(serve: ServeGateway, stream: bool) -> None:
    """No header has been sent yet."""

    def script(sequence: SequenceRequest) -> Sequence[Tokens]:
        return [Tokens(token_ids=(), error=Reason.SHED, message="No.")] if sequence.sampling.choice == 2 else []

    gateway = await serve(FakeDispatcher(script=script))
    reply = await gateway.chat(n=3, stream=stream)
    assert (reply.status, reply.error["code"]) == (429, "shed")


async def test_a_choice_that_ends_early_leaves_the_others_running(serve: ServeGateway) -> None:
    """Its sequence is stopped at once, theirs are not."""
    gateway = await serve(FakeDispatcher(script=lambda _: []))
    task = asyncio.create_task(gateway.complete("Hi", n=2, stop="END"))
    await wait_until(lambda: len(gateway.dispatcher.streams) == 2, "submitted")
    first, second = gateway.dispatcher.streams
    first.put(Tokens(token_ids=ids_of_text("one END")))
    await wait_until(lambda: bool(first.cancels), "the first has ended")
    assert second.cancels == []
    second.put(*says("two", finish="length"))
    choices = (await task).json["choices"]
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [("one ", "stop"), ("two", "length")]
    assert first.cancels == second.cancels == ["the answer is complete"]


async def test_a_client_that_leaves_cancels_every_choice(serve: ServeGateway) -> None:
    """Nothing is generated for nobody."""
    gateway = await serve(FakeDispatcher(script=lambda _: [Tokens(token_ids=ids_of_text("Some"))]))
    stream = await gateway.sdk.completions.create(model="tiny", prompt="Hi", n=3, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await wait_until(lambda: all(stream.cancels for stream in gateway.dispatcher.streams), "all are cancelled")
    assert len(gateway.dispatcher.streams) == 3
