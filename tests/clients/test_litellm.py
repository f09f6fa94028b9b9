"""LiteLLM as a client: it speaks to many servers, and this must look like OpenAI's to it."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
import pytest

from tests.system.cluster import Cluster

IN_ONE_LOOP = pytest.mark.asyncio(loop_scope="session")  # it keeps its connections from test to test

pytestmark = [
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore"),  # its own, about its own models
]

MESSAGES = [{"role": "user", "content": "say this"}]


def options(cluster: Cluster, **more: Any) -> dict[str, Any]:
    at = {"api_base": cluster.base_url, "api_key": "none", "num_retries": 0, "max_retries": 0, "timeout": 30}
    return {"model": "openai/fake", "messages": MESSAGES} | at | more


def test_whole_and_streamed_answers(echo: Cluster) -> None:
    """Sync, as scripts use it."""
    whole = litellm.completion(**options(echo))
    stream = litellm.completion(**options(echo, stream=True, stream_options={"include_usage": True}))
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content != ""
    assert whole.usage.completion_tokens == 16
    assert whole.choices[0].finish_reason == "stop"


@IN_ONE_LOOP
async def test_its_async_side(echo: Cluster) -> None:
    """As its proxy uses it."""
    whole = await litellm.acompletion(**options(echo, max_tokens=3, temperature=0, seed=2))
    assert whole.usage.completion_tokens == 3
    assert whole.choices[0].finish_reason == "length"
    stream = await litellm.acompletion(**options(echo, stream=True))
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def test_text_completions(echo: Cluster) -> None:
    """The older endpoint."""
    sent = options(echo, model="text-completion-openai/fake", prompt="say this again", max_tokens=4)
    del sent["messages"]
    answer = litellm.text_completion(**sent)
    assert answer.choices[0].text
    assert answer.usage.completion_tokens == 4


@IN_ONE_LOOP
async def test_each_refusal_becomes_its_own_exception(echo: Cluster, crowded: Cluster) -> None:
    """It sorts by status and message; what it routes and retries by."""
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**options(echo, model="openai/nope"))
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**options(echo, temperature=3))
    crowd = [litellm.acompletion(**options(crowded, max_tokens=20)) for _ in range(6)]
    outcomes = await asyncio.gather(*crowd, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, litellm.RateLimitError)]
    assert len(refused) >= 3
    assert len(refused) + sum(isinstance(outcome, litellm.ModelResponse) for outcome in outcomes) == 6
