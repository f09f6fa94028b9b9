"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from gateway.errors import Reason, Refused
from gateway.schema import GenerationBody, StrictModel, neutral

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

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content
    name: Annotated[str, Field(max_length=64)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None

    # What the official SDK writes when an answer is sent back as history.
    tool_calls: Annotated[None, neutral([])] = None
    function_call: Annotated[None, neutral()] = None
    refusal: Annotated[None, neutral()] = None
    audio: Annotated[None, neutral()] = None
    annotations: Annotated[None, neutral([])] = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)

    def for_template(self) -> dict[str, str]:
        """What a chat template gets to see: no field that the client did not give."""
        given = {"role": self.role, "content": self.text, "name": self.name, "tool_call_id": self.tool_call_id}
        return {field: text for field, text in given.items() if text is not None}


class ChatCompletionRequest(GenerationBody):
    """``max_tokens`` is the older name of ``max_completion_tokens``; both may be given when they agree."""

    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=MAX_MESSAGES, strict=False)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    # Without influence on the answer.
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    parallel_tool_calls: bool | None = None

    # OpenAI's, not implemented yet.
    logprobs: Annotated[None, neutral(False)] = None
    top_logprobs: Annotated[None, neutral(0)] = None
    response_format: Annotated[None, neutral({"type": "text"})] = None
    tools: Annotated[None, neutral([])] = None
    tool_choice: Annotated[None, neutral("none", "auto")] = None
    functions: Annotated[None, neutral([])] = None
    function_call: Annotated[None, neutral("none", "auto")] = None
    store: Annotated[None, neutral(False)] = None
    modalities: Annotated[None, neutral(["text"])] = None
    audio: Annotated[None, neutral()] = None
    prediction: Annotated[None, neutral()] = None
    reasoning_effort: Annotated[None, neutral()] = None
    verbosity: Annotated[None, neutral()] = None
    web_search_options: Annotated[None, neutral()] = None

    # vLLM's and SGLang's, not implemented yet.
    echo: Annotated[None, neutral(False)] = None
    add_generation_prompt: Annotated[None, neutral(True)] = None
    continue_final_message: Annotated[None, neutral(False)] = None
    add_special_tokens: Annotated[None, neutral(False)] = None
    chat_template: Annotated[None, neutral()] = None
    chat_template_kwargs: Annotated[None, neutral({})] = None
    documents: Annotated[None, neutral([])] = None

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check(self) -> None:
        super().check()
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise Refused(
                Reason.INVALID_VALUE,
                "'max_tokens' and 'max_completion_tokens' are two names of one limit and differ.",
                param="max_completion_tokens",
            )
