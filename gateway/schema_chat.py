"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from gateway.schema import Neutral, StrictModel, invalid
from gateway.schema_generation import GenerationBody, Label, Width
from gateway.schema_refused import RefusedInChat

MAX_MESSAGES = 4096
"""Far above any conversation that fits a context; each message costs a turn of the template's loop."""


class TextPart(StrictModel):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


def _content_kind(value: object) -> str | None:
    return ":text" if isinstance(value, str) else ":parts" if isinstance(value, list) else None


Parts = Annotated[tuple[TextPart, ...], Field(min_length=1, strict=False)]
Content = Annotated[
    Annotated[str, Tag(":text")] | Annotated[Parts, Tag(":parts")],
    Discriminator(
        _content_kind,
        custom_error_type="wrong_type",
        custom_error_message="should be a string or an array of text parts",
    ),
]


class Message(StrictModel):
    """One message. Text parts are joined by a line feed: chat templates know one string."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="`developer` is `system` to models that do not know it."
    )
    content: Content = Field(description="A text, or text parts, which are joined by a line feed.")
    name: Annotated[str, Field(max_length=64)] | None = Field(None, description="Given to the chat template.")
    tool_call_id: Annotated[str, Field(max_length=256)] | None = Field(None, description="Given to the chat template.")

    # What the official SDK writes when an answer is sent back as history.
    tool_calls: Annotated[None, Neutral([])] = None
    function_call: Annotated[None, Neutral()] = None
    refusal: Annotated[None, Neutral()] = None
    audio: Annotated[None, Neutral()] = None
    annotations: Annotated[None, Neutral([])] = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)

    def for_template(self) -> dict[str, str]:
        """What a chat template gets to see: no field that the client did not give."""
        given = {"role": self.role, "content": self.text, "name": self.name, "tool_call_id": self.tool_call_id}
        return {field: text for field, text in given.items() if text is not None}


Messages = Annotated[tuple[Message, ...], Field(min_length=1, max_length=MAX_MESSAGES, strict=False)]


class ChatCompletionRequest(GenerationBody, RefusedInChat):
    """A conversation. ``max_tokens`` is the older name of ``max_completion_tokens``."""

    messages: Messages = Field(description="The conversation so far. Control tokens written in it are plain text.")
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The newer name of `max_tokens`; both may be given when they agree."
    )
    logprobs: bool | None = Field(None, description="Whether the log-probabilities of the output's tokens are told.")
    top_logprobs: Width | None = Field(
        None, description="With `logprobs`: so many of the likeliest tokens beside each are told too."
    )
    add_generation_prompt: bool | None = Field(
        None, description="Not given or true: the template opens the assistant's turn. (vLLM)"
    )

    prompt_cache_key: Label | None = Field(None, description="A label of the client's own, without influence.")
    prompt_cache_retention: Literal["in_memory", "24h"] | None = Field(None, description="Without influence.")
    safety_identifier: Label | None = Field(None, description="A label of the client's own, without influence.")
    parallel_tool_calls: bool | None = Field(None, description="Without influence, as there are no tools.")

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise invalid("max_completion_tokens", "and 'max_tokens' are two names of one limit and differ")
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "is only allowed when 'logprobs' is true")
