"""The official SDK, unchanged, against both endpoints."""

from __future__ import annotations

import openai
import pytest

from gateway.dispatch import Tokens
from gateway.errors import Reason, Refused
from tests.gateway.conftest import Gateway
from tests.gateway.fakes import MODEL, says
from tests.gateway.tiny_tokenizer import ids_of_text

MESSAGES = [{"role": "user", "content": "Hi"}]


async def test_whole_answers_are_read(gateway: Gateway) -> None:
    """The shapes of both endpoints, as its models parse them."""
    chat = await gateway.sdk.chat.completions.create(model=MODEL, messages=MESSAGES)  # type: ignore[arg-type]
    assert (chat.choices[0].message.content, chat.choices[0].message.role) == ("Hello world", "assistant")
    assert (chat.choices[0].finish_reason, chat.object) == ("stop", "chat.completion")
    text = await gateway.sdk.completions.create(model=MODEL, prompt="Hi", max_tokens=5)
    assert (text.choices[0].text, text.object) == ("Hello world", "text_completion")
    assert text.usage is not None
    assert text.usage.total_tokens == text.usage.prompt_tokens + text.usage.completion_tokens


async def test_streams_are_read(gateway: Gateway) -> None:
    """Chunk by chunk."""
    stream = await gateway.sdk.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,  # type: ignore[arg-type]
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world"
    assert chunks[-1].usage is not None
    texts = await gateway.sdk.completions.create(model=MODEL, prompt="Hi", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in texts]) == "Hello world"


async def test_several_choices_and_their_log_probabilities_are_read(gateway: Gateway) -> None:
    """Its models parse them, streamed or not."""
    chat = await gateway.sdk.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,  # type: ignore[arg-type]
        n=2,
        logprobs=True,
        top_logprobs=2,
    )
    assert [choice.index for choice in chat.choices] == [0, 1]
    for choice in chat.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    text = await gateway.sdk.completions.create(model=MODEL, prompt=["a", "b"], logprobs=1, echo=True)
    assert [choice.text for choice in text.choices] == ["aHello world", "bHello world"]
    assert text.choices[0].logprobs is not None
    assert "".join(text.choices[0].logprobs.tokens or ()) == text.choices[0].text
    stream = await gateway.sdk.completions.create(model=MODEL, prompt="a", n=2, logprobs=0, stream=True)
    parts = [choice.logprobs.tokens async for chunk in stream for choice in chunk.choices if choice.logprobs]
    assert "".join("".join(part or ()) for part in parts).count("Hello") == 2


async def test_a_bad_request_raises_with_its_parameter(gateway: Gateway) -> None:
    """What its users catch."""
    with pytest.raises(openai.BadRequestError) as raised:
        await gateway.sdk.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=3)  # type: ignore[arg-type]
    assert (raised.value.param, raised.value.code) == ("temperature", "invalid_value")
    assert "temperature" in raised.value.message


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (Reason.QUEUE_FULL, openai.RateLimitError),
        (Reason.NO_WORKER, openai.InternalServerError),
        (Reason.DEADLINE_EXCEEDED, openai.InternalServerError),
        (Reason.INVALID_API_KEY, openai.AuthenticationError),
    ],
)
async def test_each_refusal_raises_what_its_status_means(
    gateway: Gateway, reason: Reason, error: type[openai.APIStatusError]
) -> None:
    """And carries our reason as its code."""
    gateway.dispatcher.refusal = Refused(reason, "No.")
    with pytest.raises(error) as raised:
        await gateway.sdk.completions.create(model=MODEL, prompt="Hi")
    assert raised.value.code == reason


async def test_a_full_queue_is_tried_again_after_the_time_it_was_told(gateway: Gateway) -> None:
    """The SDK's own retries honour ``retry-after-ms``."""
    gateway.dispatcher.refusal = Refused(Reason.QUEUE_FULL, "Full.", retry_after_s=0.01)
    with pytest.raises(openai.RateLimitError):
        await gateway.sdk.with_options(max_retries=2).completions.create(model=MODEL, prompt="Hi")
    assert gateway.outcome("queue_full") == 3


async def test_what_must_not_be_tried_again_is_not(gateway: Gateway) -> None:
    """Left alone the SDK repeats every 5xx; a deadline passes only once."""
    gateway.dispatcher.refusal = Refused(Reason.DEADLINE_EXCEEDED, "Too late.")
    with pytest.raises(openai.InternalServerError):
        await gateway.sdk.with_options(max_retries=2).completions.create(model=MODEL, prompt="Hi")
    assert gateway.outcome("deadline_exceeded") == 1


async def test_an_error_within_a_stream_raises(gateway: Gateway) -> None:
    """An event with ``error`` and without ``event:`` is what the SDK raises on."""
    gateway.dispatcher.script = lambda _: [
        Tokens(token_ids=ids_of_text("Some")),
        Tokens(token_ids=(), error=Reason.WORKER_LOST, message="The worker is gone."),
    ]
    stream = await gateway.sdk.completions.create(model=MODEL, prompt="Hi", stream=True)
    with pytest.raises(openai.APIError, match="The worker is gone"):
        _ = [chunk async for chunk in stream]


async def test_closing_a_stream_cancels_the_sequence(gateway: Gateway) -> None:
    """Leaving an ``async for`` early is how applications stop an answer."""
    gateway.dispatcher.script = lambda _: says("a", "b")[:-1]
    stream = await gateway.sdk.completions.create(model=MODEL, prompt="Hi", stream=True)
    await anext(aiter(stream))
    await stream.close()
    assert (await gateway.sdk.models.list()).data
