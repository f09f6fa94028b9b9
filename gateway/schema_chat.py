"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from gateway.chat_template import OWN_NAMES, Rendering, Turn
from gateway.schema import Neutral, StrictModel, invalid
from gateway.schema_generation import GenerationBody, Label, Width
from gateway.schema_lists import at_most
from gateway.schema_refused import RefusedInChat

MAX_MESSAGES = 4096
"""Far above any conversation that fits a context; each message costs a turn of the template's loop."""
MAX_PARTS = 4096
"""Of all messages together; each costs as much as a message, and clients make one or two of a text."""
MAX_VARIABLES = 16
"""Templates look at two or three."""
MOST_OF_A_VARIABLE = 1_000_000
"""A template may repeat something so often."""
VARIABLE_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"


class TextPart(StrictModel):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


def _content_kind(value: object) -> str | None:
    return ":text" if isinstance(value, str) else ":parts" if isinstance(value, list) else None


def _variable_kind(value: object) -> str | None:
    if isinstance(value, bool):
        return ":flag"
    return ":whole" if isinstance(value, int) else ":number" if isinstance(value, float) else None


Parts = Annotated[tuple[TextPart, ...], Field(min_length=1, strict=False, fail_fast=True)]
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


def _count_parts(messages: object) -> object:
    if isinstance(messages, list):
        contents = [message.get("content") for message in messages if isinstance(message, dict)]
        if sum([len(content) for content in contents if isinstance(content, list)]) > MAX_PARTS:
            raise PydanticCustomError("too_many", "should have at most {count} parts in all", {"count": MAX_PARTS})
    return messages


VariableName = Annotated[str, Field(pattern=VARIABLE_NAME)]
Whole = Annotated[int, Field(ge=-MOST_OF_A_VARIABLE, le=MOST_OF_A_VARIABLE)]
Variable = Annotated[
    Annotated[bool, Tag(":flag")] | Annotated[Whole, Tag(":whole")] | Annotated[float, Tag(":number")],
    Discriminator(
        _variable_kind,
        custom_error_type="wrong_type",
        custom_error_message="should be a boolean, a number or null",
    ),
]
Variables = Annotated[dict[VariableName, Variable | None], Field(max_length=MAX_VARIABLES), at_most(MAX_VARIABLES)]
Messages = Annotated[
    tuple[Message, ...],
    Field(min_length=1, max_length=MAX_MESSAGES, strict=False, fail_fast=True),
    BeforeValidator(_count_parts),
]


class Conversation(StrictModel):
    """What becomes a prompt through the model's chat template."""

    messages: Messages = Field(description="The conversation so far. Control tokens written in it are plain text.")
    add_generation_prompt: bool | None = Field(
        None, description="Not given or true: the template opens the assistant's turn. (vLLM)"
    )
    chat_template_kwargs: Variables | None = Field(
        None,
        description="Variables for the template, such as `enable_thinking`: booleans, numbers or null. (vLLM, SGLang)",
    )

    @field_validator("chat_template_kwargs")
    @classmethod
    def _leave_the_templates_own(cls, variables: Mapping[str, object] | None) -> Mapping[str, object] | None:
        if not OWN_NAMES.isdisjoint(variables or ()):
            raise PydanticCustomError("reserved", "should have none of the names that every template is given")
        return variables

    def for_template(self) -> list[dict[str, str]]:
        """The messages as a template gets to see them."""
        return [message.for_template() for message in self.messages]

    @property
    def rendering(self) -> Rendering:
        turn = Turn.CLOSED if self.add_generation_prompt is False else Turn.OPEN
        return Rendering(turn=turn, variables=self.chat_template_kwargs or {})


class ChatCompletionRequest(GenerationBody, Conversation, RefusedInChat):
    """A conversation."""

    logprobs: bool | None = Field(None, description="Whether the log-probabilities of the output's tokens are told.")
    top_logprobs: Width | None = Field(
        None, description="With `logprobs`: so many of the likeliest tokens beside each are told too."
    )

    prompt_cache_key: Label | None = Field(None, description="A label of the client's own, without influence.")
    prompt_cache_retention: Literal["in_memory", "24h"] | None = Field(None, description="Without influence.")
    safety_identifier: Label | None = Field(None, description="A label of the client's own, without influence.")
    parallel_tool_calls: bool | None = Field(None, description="Without influence, as there are no tools.")

    @property
    def num_top_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "is only allowed when 'logprobs' is true")
