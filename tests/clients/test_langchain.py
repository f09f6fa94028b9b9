"""LangChain's ``ChatOpenAI``, with a changed address and nothing else."""

from __future__ import annotations

import asyncio

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

from tests.system.cluster import Cluster

IN_ONE_LOOP = pytest.mark.asyncio(loop_scope="session")  # it keeps its connections from test to test

pytestmark = pytest.mark.system

CONVERSATION = [SystemMessage("Be brief."), HumanMessage("Hello"), AIMessage("Hi."), HumanMessage("say this")]


def model(cluster: Cluster, **options: object) -> ChatOpenAI:
    return ChatOpenAI(model="fake", base_url=cluster.base_url, api_key="none", timeout=30, **options)  # type: ignore[arg-type]


def test_a_conversation_is_answered_with_its_usage(echo: Cluster) -> None:
    """All roles that it writes, and the counts that it reads."""
    answer = model(echo, max_retries=0).invoke(CONVERSATION)
    assert answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 16
    assert answer.response_metadata["finish_reason"] == "stop"


def test_a_stream_adds_up_to_the_whole_answer(echo: Cluster) -> None:
    """Chunk by chunk, with the usage at the end, which it asks for by itself."""
    chat = model(echo, max_retries=0, stream_usage=True)
    chunks = list(chat.stream(CONVERSATION))
    assert "".join(chunk.text for chunk in chunks) == chat.invoke(CONVERSATION).text
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 16


@IN_ONE_LOOP
async def test_many_at_once(echo: Cluster) -> None:
    """Its async side and its batches."""
    chat = model(echo, max_retries=0)
    answers = await chat.abatch([f"number {number}" for number in range(16)])
    assert all(answer.text for answer in answers)
    texts = ["".join([chunk.text async for chunk in chat.astream(CONVERSATION)]) for _ in range(2)]
    assert texts[0] == texts[1] != ""


@IN_ONE_LOOP
async def test_its_parameters_arrive_or_are_refused_by_name(echo: Cluster) -> None:
    """What it can be given, it sends in its own way."""
    chat = model(echo, max_retries=0, temperature=0, seed=1, max_tokens=4, stop_sequences=["zzz"], top_p=0.5)
    answer = await chat.ainvoke(CONVERSATION)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 4
    with pytest.raises(openai.BadRequestError, match="tools"):
        await chat.bind(tools=[{"type": "function", "function": {"name": "f"}}]).ainvoke(CONVERSATION)


@IN_ONE_LOOP
async def test_a_crowd_is_served_by_its_retries(crowded: Cluster) -> None:
    """One slot and one place to wait: the rest comes back when it was told to."""
    chat = model(crowded, max_retries=10, max_tokens=4)
    answers = await asyncio.gather(*(chat.ainvoke(f"number {number}") for number in range(5)))
    assert [answer.usage_metadata["output_tokens"] for answer in answers if answer.usage_metadata] == [4] * 5
