"""The official SDK: sync and async, whole and streamed, raw responses, and its own retries."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from tests.support import wait_until
from tests.system.cluster import Cluster
from workers.engine_settings import DEFAULT_MODEL

pytestmark = pytest.mark.system

MESSAGES: Any = [{"role": "user", "content": "say this"}]


@pytest.fixture
def client(echo: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=echo.base_url, api_key="none", max_retries=0, timeout=30)


def test_sync_chat_whole_and_streamed_say_the_same(client: openai.OpenAI) -> None:
    """The two shapes of one answer, as the SDK's models read them."""
    whole = client.chat.completions.create(model="fake", messages=MESSAGES, seed=1)
    chunks = list(
        client.chat.completions.create(
            model="fake", messages=MESSAGES, seed=1, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (whole.usage.prompt_tokens, 16)


def test_the_stream_helper_gathers_the_same_answer(client: openai.OpenAI) -> None:
    """It checks more than the plain iterator: indices, roles, one finish reason for each choice."""
    with client.chat.completions.stream(model="fake", messages=MESSAGES) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_completions_take_text_and_ids(client: openai.OpenAI) -> None:
    """And tell how much of each there was."""
    text = client.completions.create(model="fake", prompt="say this again", max_tokens=4)
    assert text.usage is not None
    assert text.usage.completion_tokens == 4
    assert text.choices[0].finish_reason == "length"
    ids = client.completions.create(model="fake", prompt=[10, 11, 12], max_tokens=3)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 3


async def test_the_async_client_does_all_that_at_once(echo: Cluster) -> None:
    """Sixteen conversations on one connection pool, each with its own answer."""
    async with openai.AsyncOpenAI(base_url=echo.base_url, api_key="none", max_retries=0, timeout=30) as client:

        async def ask(number: int) -> str:
            prompt = f"number {number} says {'x' * number}"
            stream = await client.completions.create(
                model="fake", prompt=prompt, stream=True, max_tokens=64, extra_body={"ignore_eos": True}
            )
            text = "".join([chunk.choices[0].text async for chunk in stream])
            assert text.startswith(prompt[: len(text)])
            return text

        assert len(set(await asyncio.gather(*map(ask, range(16))))) == 16
        assert [model.id async for model in client.models.list()] == ["fake"]


def test_raw_responses_show_headers(client: openai.OpenAI) -> None:
    """What is not in the body: which request it was, and which class it was given."""
    raw = client.chat.completions.with_raw_response.create(
        model="fake", messages=MESSAGES, extra_headers={"x-request-id": "mine-1"}, service_tier="flex"
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["x-sluicegate-class"] == "batch"
    parsed = raw.parse()
    assert parsed.choices[0].message.content
    assert parsed.service_tier == "flex"
    with client.completions.with_streaming_response.create(model="fake", prompt="say", stream=True) as response:
        assert response.headers["content-type"] == "text/event-stream"
        lines = list(response.iter_lines())
    assert lines[-2:] == ["data: [DONE]", ""]


def test_each_refusal_is_the_exception_that_its_users_catch(client: openai.OpenAI) -> None:
    """With a message, the field and our reason."""
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="fake", messages=MESSAGES, temperature=3)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nope", messages=MESSAGES)
    assert unknown.value.code == "unknown_model"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="fake", prompt="x " * 5000)
    assert too_long.value.code == "context_length_exceeded"


# --- retries ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Wire:
    """What the SDK's transport saw: when it sent, and when it was to come back, in seconds."""

    sent_s: list[float] = field(default_factory=list)
    not_before_s: list[float] = field(default_factory=list)

    async def request(self, _: object) -> None:
        self.sent_s.append(time.monotonic())

    async def response(self, response: Any) -> None:
        if response.status_code == 429:
            self.not_before_s.append(time.monotonic() + int(response.headers["retry-after-ms"]) / 1000)

    def client(self, cluster: Cluster, *, max_retries: int) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=cluster.base_url,
            api_key="none",
            max_retries=max_retries,
            timeout=60,
            http_client=openai.DefaultAsyncHttpxClient(
                event_hooks={"request": [self.request], "response": [self.response]}
            ),
        )


async def test_a_full_queue_is_tried_again_when_it_was_told_and_served_in_the_end(crowded: Cluster) -> None:
    """The retries that every application has without knowing: not before the time that the refusal named."""
    filler = openai.AsyncOpenAI(base_url=crowded.base_url, api_key="none", max_retries=0, timeout=60)
    wire = Wire()

    async def is_full() -> bool:
        return await crowded.metric("sluicegate_queue_requests") == 1

    async with filler, wire.client(crowded, max_retries=5) as client, asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(filler.completions.create(model="fake", prompt="hold", max_tokens=100))
        await wait_until(is_full, "slot and queue are taken")
        answer = await client.completions.create(model="fake", prompt="at last", max_tokens=2)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
    assert len(wire.not_before_s) >= 1
    for sent_s, not_before_s in zip(wire.sent_s[1:], wire.not_before_s, strict=True):
        assert sent_s >= not_before_s - 0.01
    assert await crowded.metric("sluicegate_requests_total", outcome="queue_full") == len(wire.not_before_s)


async def test_what_must_not_be_tried_again_is_sent_once(crowded: Cluster) -> None:
    """A deadline passes once; a body that is wrong stays wrong."""
    wire = Wire()
    async with wire.client(crowded, max_retries=3) as client:
        with pytest.raises(openai.InternalServerError) as late:
            await client.completions.create(
                model="fake", prompt="slow", max_tokens=2000, extra_body={"deadline_ms": 100}
            )
        assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="fake", prompt="x", max_tokens=-1)
    assert len(wire.sent_s) == 2


# --- the real model ---------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.timeout(400)
async def test_a_real_model_answers_a_real_question(real: Cluster) -> None:
    """As the first screen of the README does."""
    async with openai.AsyncOpenAI(base_url=real.base_url, api_key="none", timeout=120) as client:
        answer = await client.chat.completions.create(
            model=DEFAULT_MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=24,
        )
    assert "Paris" in (answer.choices[0].message.content or "")
