"""The shapes of what is answered, as the API's description shows them and the tests hold every answer against.

Answers are not made through these models: a chunk is put together from bytes that hardly change (``gateway.chunks``).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Exactly these fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


# --- counts -----------------------------------------------------------------------------------------------------------


class PromptTokensDetails(Answer):
    """Of the prompt's tokens."""

    cached_tokens: int = Field(description="Not computed, as their KV was there.")


class CompletionTokensDetails(Answer):
    """Of the output's tokens."""

    reasoning_tokens: int = Field(description="Always 0: reasoning is not told apart from other text.")


class UsageAnswer(Answer):
    """Tokens of a request. A prompt counts once, whatever the number of its choices."""

    prompt_tokens: int
    completion_tokens: int = Field(
        description="Of all choices; the token that completes a stop string included, an eos or a stop id not."
    )
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


# --- log-probabilities ------------------------------------------------------------------------------------------------


class TopLogprob(Answer):
    """One of the likeliest tokens at a place."""

    token: str = Field(description="Its text; `bytes:\\xe4\\xbb` where its bytes are no whole characters.")
    logprob: float = Field(description="-9999.0 stands for no probability at all.")
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    """A token of the output."""

    top_logprobs: list[TopLogprob] = Field(description="Best first.")


class ChatLogprobs(Answer):
    """One entry for each token counted, in order."""

    content: list[ChatTokenLogprob]
    refusal: None


class CompletionLogprobs(Answer):
    """One member of each list for each token counted, in order; with `echo` those of the prompt come first."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(description="null for the first token of a prompt.")
    top_logprobs: list[dict[str, float] | None] = Field(description="By token; the token itself is among them.")
    text_offset: list[int] = Field(description="Where the token's text begins, in characters of `text`.")


class PromptLogprob(Answer):
    """One of the likeliest tokens at a place of the prompt, or the token that is there."""

    logprob: float
    rank: int | None = Field(description="1 for the likeliest; null where the token is not among those asked for.")
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""By place and token id; null for the first token."""


# --- chat -------------------------------------------------------------------------------------------------------------

FinishReason = Literal["stop", "length"]


class Ended(Answer):
    """How a choice ended."""

    finish_reason: FinishReason
    stop_reason: str | int | None = Field(
        description="The stop string or the stop id; null where an eos or the limit ended it."
    )


class ChatMessageAnswer(Answer):
    """What the model said."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Ended):
    """One answer."""

    index: int
    message: ChatMessageAnswer
    logprobs: ChatLogprobs | None


class AnswerHead(Answer):
    """What every answer begins with."""

    id: str
    created: int = Field(description="Unix time in seconds.")
    model: str
    service_tier: str = Field(description="That of the class that was used.")
    system_fingerprint: None = Field(description="Always null: a request may move between workers while it runs.")


class ChatCompletionAnswer(AnswerHead):
    """The answer of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageAnswer
    prompt_logprobs: PromptLogprobs | None = Field(None, description="Only where they are asked for.")


class ChatDelta(Answer):
    """What is new of a choice."""

    role: Literal["assistant"] | None = Field(None, description="In the first chunk of each choice, and only there.")
    content: str | None = None


class ChatChunkChoice(Answer):
    """A choice goes on, or ends."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = Field(None, description="Beside `finish_reason`.")


class ChatCompletionChunk(AnswerHead):
    """An event of a stream of `/v1/chat/completions`."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice] = Field(description="One, or none in the last chunk with the usage.")
    usage: UsageAnswer | None = Field(None, description="Only with `include_usage`.")


# --- completions ------------------------------------------------------------------------------------------------------


class CompletionChoice(Ended):
    """One answer. Those of a prompt stand together, prompts in their order."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    prompt_logprobs: PromptLogprobs | None = Field(None, description="Only where they are asked for.")


class CompletionAnswer(AnswerHead):
    """The answer of `/v1/completions`."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: UsageAnswer


class CompletionChunkChoice(Answer):
    """A choice goes on, or ends."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = Field(None, description="Beside `finish_reason`.")


class CompletionChunk(AnswerHead):
    """An event of a stream of `/v1/completions`."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice] = Field(description="One, or none in the last chunk with the usage.")
    usage: UsageAnswer | None = Field(None, description="Only with `include_usage`.")


# --- the others -------------------------------------------------------------------------------------------------------


class TokenizeAnswer(Answer):
    """The answer of `/tokenize`."""

    max_model_len: int = Field(description="The context of the model.")
    count: int
    tokens: list[int]
    token_strs: list[str] | None = Field(description="As the vocabulary writes them; null where not asked for.")


class DetokenizeAnswer(Answer):
    """The answer of `/detokenize`."""

    prompt: str


class ModelAnswer(Answer):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int = Field(description="Most tokens of prompt and output together.")


class ModelsAnswer(Answer):
    """All served models."""

    object: Literal["list"]
    data: list[ModelAnswer]


class AliveAnswer(Answer):
    """The answer of `/livez`."""

    alive: Literal[True]


class ReadyAnswer(Answer):
    """The answer of `/readyz`, when there is a worker to serve with."""

    ready: Literal[True]


class UnreadyAnswer(Answer):
    """The answer of `/readyz` otherwise."""

    ready: Literal[False]
    reason: str


class ErrorDetail(Answer):
    """What went wrong."""

    message: str
    type: str
    param: str | None = Field(description="The parameter or header at fault, where there is one.")
    code: str = Field(description="The reason, as in the header `x-sluicegate-reason`.")


class ErrorAnswer(Answer):
    """The body of every error, and the last event of a stream that failed."""

    error: ErrorDetail
