"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from gateway.schema import GenerationBody, neutral


def _single_prompt(value: object) -> object:
    """A prompt is a string or an array of token ids. An array of one prompt is that prompt."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise PydanticCustomError("not_supported", "with several prompts is not supported yet")
        return value[0]
    return value


def _prompt_kind(value: object) -> str | None:
    return ":text" if isinstance(value, str) else ":ids" if isinstance(value, list) else None


TokenId = Annotated[int, Field(ge=0)]
Prompt = Annotated[
    Annotated[str, Field(min_length=1), Tag(":text")]
    | Annotated[tuple[TokenId, ...], Field(min_length=1, strict=False), Tag(":ids")],
    Discriminator(
        _prompt_kind,
        custom_error_type="wrong_type",
        custom_error_message="should be a string or an array of token ids",
    ),
    BeforeValidator(_single_prompt),
]


class CompletionRequest(GenerationBody):
    """An empty prompt is refused. The prompt is raw: control tokens written in its text are control tokens.

    (``/v1/chat/completions`` is the endpoint for text of people who must not write control tokens.)
    """

    prompt: Prompt

    # OpenAI's, not implemented yet.
    echo: Annotated[None, neutral(False)] = None
    suffix: Annotated[None, neutral()] = None
    logprobs: Annotated[None, neutral()] = None

    # vLLM's and SGLang's, not implemented yet.
    add_special_tokens: Annotated[None, neutral(True)] = None
    response_format: Annotated[None, neutral({"type": "text"})] = None
