"""Bodies of requests as the schema sees them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.errors import Reason, Refused
from gateway.schema_chat import ChatCompletionRequest
from gateway.schema_completions import CompletionRequest
from gateway.schema_generation import GenerationBody

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": "x"}


def chat(**fields: object) -> ChatCompletionRequest:
    request = ChatCompletionRequest.parse(CHAT | fields)
    request.check()
    return request


def completion(**fields: object) -> CompletionRequest:
    request = CompletionRequest.parse(COMPLETION | fields)
    request.check()
    return request


def refused_param(body: Callable[..., GenerationBody], **fields: object) -> str | None:
    """The parameter that is named when ``body`` is refused."""
    with pytest.raises(Refused) as refused:
        body(**fields)
    assert refused.value.reason is Reason.INVALID_VALUE
    assert refused.value.message.isprintable()
    return refused.value.param
