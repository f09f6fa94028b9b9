"""Several choices of one prompt, through the official SDK, over two gateways and a real scripted worker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from tests.support import wait_until
from tests.system.cluster import Cluster, script, start_cluster

pytestmark = pytest.mark.system

PROMPT = "Tell me four different stories that begin in the same way, please. " * 4
SLOW_WORDS = script(output={"kind": "words"}, slots=4, block_size=4, delays={"base_us": 5_000})


def client_of(cluster: Cluster, gateway: int) -> openai.AsyncOpenAI:
    """The SDK, but for its retries, which would hide refusals."""
    return openai.AsyncOpenAI(base_url=f"{cluster.addresses[gateway]}/v1", api_key="none", max_retries=0, timeout=60)


async def four_choices(client: openai.AsyncOpenAI) -> openai.types.Completion:
    return await client.completions.create(model="fake", prompt=PROMPT, n=4, max_tokens=40, seed=7, logprobs=2)


async def test_four_choices_are_whole_different_and_the_same_from_either_gateway(tmp_path: Path) -> None:
    """One of the two gateways drives the worker: the other's tokens and log-probabilities come over the relay."""
    flags = ("--fake-worker", SLOW_WORDS, "--workers", "1")
    async with start_cluster(tmp_path, *flags, gateways=2) as cluster:
        async with client_of(cluster, 0) as first, client_of(cluster, 1) as second:
            answers = await asyncio.gather(four_choices(first), four_choices(second))
        for answer in answers:
            assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
            assert len({choice.text for choice in answer.choices}) == 4
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 160
            for choice in answer.choices:
                logprobs = choice.logprobs
                assert logprobs is not None
                assert logprobs.tokens is not None
                assert logprobs.token_logprobs is not None
                assert len(logprobs.tokens) == len(logprobs.token_logprobs) == 40
                assert "".join(logprobs.tokens) == choice.text
        assert [choice.model_dump() for choice in answers[0].choices] == [c.model_dump() for c in answers[1].choices]
        computed = await cluster.metric("sluicegate_prompt_tokens_total")
        usage = answers[0].usage
        assert usage is not None
        assert computed < 2 * usage.prompt_tokens, "eight sequences have computed the prompt hardly more than once"
        await wait_until(cluster.is_idle, "everything is given back")


async def test_more_choices_than_there_is_room_for_are_refused_together(tmp_path: Path) -> None:
    """Half of the choices would look like an answer; and the place that is left serves others."""
    flags = ("--fake-worker", SLOW_WORDS, "--workers", "1", "--queue-requests", "8")
    async with start_cluster(tmp_path, *flags, gateways=2) as cluster:
        async with client_of(cluster, 0) as first, client_of(cluster, 1) as second:

            async def ask(client: openai.AsyncOpenAI, number: int) -> int | str | None:
                try:
                    answer = await client.completions.create(model="fake", prompt=PROMPT, n=number, max_tokens=200)
                except openai.APIStatusError as refusal:
                    return refusal.code
                return len([choice for choice in answer.choices if choice.finish_reason == "length"])

            outcomes = await asyncio.gather(*(ask(client, 4) for client in (first, second) for _ in range(4)))
            assert set(outcomes) == {4, "queue_full"}
            assert 2 <= outcomes.count(4) <= 4, "four sequences have slots, eight may wait"
            assert await ask(second, 9) == "invalid_value", "they could never all wait"
        await wait_until(cluster.is_idle, "everything is given back")
