"""The parameters that both endpoints share, and what they mean to a worker.

No value that passes here, and the checks against the model's card, makes a worker fail: the bounds are the worker's own
or lie within them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from gateway.deadlines import MOST_DEADLINE_MS
from gateway.schema import Neutral, StrictModel, invalid
from gateway.schema_lists import TokenIds, at_most
from gateway.schema_refused import RefusedOfSglang, RefusedOfVllm
from workers.wire import MAX_TOP_LOGPROBS, Sampling

MAX_SEQUENCES = 128
"""Most sequences of one request, choices times prompts: each takes a place in the queue and a slot of a worker."""
MAX_STOPS = 4
"""As many as OpenAI takes."""
MAX_STOP_CHARS = 256
"""Text is withheld while it could begin a stop string, so this bounds what a stream holds back."""
MAX_STOP_IDS = 64
"""Token ids that end an output; each output token is compared with them."""
MAX_METADATA = 16
"""As many as OpenAI takes."""
MAX_BIASES = 1024
"""Tokens with a bias; each costs the worker a little at every token."""
LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY = 0.01, 100.0
"""Beyond these a float32 logit could overflow, and a penalty has long become a ban."""
SEED_MASK = (1 << 63) - 1
"""The random number generator's seed has 63 bits: the low ones of a client's 64-bit seed."""


def _stops_kind(value: object) -> str | None:
    return ":text" if isinstance(value, str) else ":texts" if isinstance(value, list | tuple) else None


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stops = Annotated[
    Annotated[StopString, Tag(":text")]
    | Annotated[tuple[StopString, ...], Field(max_length=MAX_STOPS, strict=False, fail_fast=True), Tag(":texts")],
    Discriminator(
        _stops_kind,
        custom_error_type="wrong_type",
        custom_error_message="should be a string or an array of strings",
    ),
]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Width = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
StopIds = Annotated[tuple[int, ...], TokenIds(max_length=MAX_STOP_IDS)]
TokenIdText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
Biases = Annotated[
    dict[TokenIdText, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIASES, json_schema_extra={"additionalProperties": False}),
    at_most(MAX_BIASES),  # no other keys
]
Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]
Label = Annotated[str, Field(max_length=512)]


class StreamOptions(StrictModel):
    """What a stream says beside text."""

    include_usage: bool | None = Field(
        None,
        description="End with a chunk that has the usage and no choice; `usage` is null in the chunks before it.",
    )
    continuous_usage_stats: bool | None = Field(
        None, description="With `include_usage`: every chunk has the usage so far. (vLLM, SGLang)"
    )
    include_obfuscation: Annotated[None, Neutral(False)] = None


class GenerationBody(RefusedOfVllm, RefusedOfSglang):
    """What both endpoints take."""

    model: str = Field(description="The name of a served model, as `/v1/models` lists it.")
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Most tokens of an output. Not given: all that fits in the context after the prompt."
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="The newer name of `max_tokens`, of chats in OpenAI's API; both may be given when they agree.",
    )
    min_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="So many tokens come before anything ends the output; stop strings are looked for in the text after"
        " them. At most `max_tokens`. (vLLM, SGLang)",
    )
    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = Field(
        None, description=f"Choices for each prompt. Choices times prompts are at most {MAX_SEQUENCES}."
    )

    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="Divides the logits; 0 takes the most likely token. Not given: 1."
    )
    top_p: Share | None = Field(
        None, description="Only the most likely tokens that have this much probability together; 0 keeps one."
    )
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(
        None, description="Only so many of the most likely tokens; 0 and -1: all. (vLLM, SGLang)"
    )
    min_p: Share | None = Field(
        None, description="Only tokens at least this probable, as a share of the most likely one. (vLLM, SGLang)"
    )
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = Field(
        None,
        description="The same seed, parameters and model give the same answer. The low 63 bits count. Choices of one"
        " prompt differ; equal prompts of one request are answered equally. Not given: a random one for each prompt.",
    )
    presence_penalty: Penalty | None = Field(None, description="Taken from the logits of tokens that the output has.")
    frequency_penalty: Penalty | None = Field(
        None, description="Taken from the logits of tokens for each time that the output has them."
    )
    repetition_penalty: Annotated[float, Field(ge=LEAST_REPETITION_PENALTY, le=MOST_REPETITION_PENALTY)] | None = Field(
        None,
        description="Divides positive logits, and multiplies negative ones, of tokens that prompt or output have."
        " (vLLM, SGLang)",
    )
    logit_bias: Biases | None = Field(None, description="By token id, as a string: what is added to its logit.")

    stop: Stops | None = Field(
        None,
        description="The output ends before the leftmost place where one of these occurs, however tokens cut the text.",
    )
    stop_token_ids: StopIds | None = Field(
        None, description="Tokens that end the output, as an eos does. (vLLM, SGLang)"
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="The text ends behind the stop string rather than before it. (vLLM)"
    )
    no_stop_trim: bool | None = Field(None, description="Another name of `include_stop_str_in_output`. (SGLang)")
    ignore_eos: bool | None = Field(None, description="Go on past an eos. (vLLM, SGLang)")
    skip_special_tokens: bool | None = Field(
        None, description="Not given or true: special tokens make no text. (vLLM, SGLang)"
    )
    prompt_logprobs: Width | None = Field(
        None,
        description="Log-probabilities of the prompt's tokens, and of so many of the likeliest beside each. Not in a"
        " stream. (vLLM)",
    )

    stream: bool | None = Field(None, description="Send the answer in server-sent events, as it is made.")
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")

    deadline_ms: Annotated[int, Field(ge=1, le=MOST_DEADLINE_MS)] | None = Field(
        None, description="The answer is of no use so long after the receipt of the request. (Sluicegate)"
    )
    priority: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] | None = Field(
        None, description="Selects the class: lower is more urgent. (vLLM, SGLang)"
    )
    service_tier: Literal["auto", "default", "standard", "priority", "flex"] | None = Field(
        None, description="Selects the class, when `priority` does not."
    )

    user: Label | None = Field(None, description="A label of the client's own, without influence.")
    metadata: Annotated[Metadata, Field(max_length=MAX_METADATA), at_most(MAX_METADATA)] | None = Field(
        None, description="Labels of the client's own, without influence."
    )
    session_id: Label | None = Field(None, description="A label of the client's own, without influence. (vLLM)")

    @property
    def prompt_chars(self) -> tuple[int, ...]:
        """How long each prompt is that goes to the tokenizer as it is; a template may leave out what it likes."""
        return ()

    @property
    def num_choices(self) -> int:
        """For each prompt."""
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> tuple[str, ...]:
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def shows_stop(self) -> bool:
        return bool(self.include_stop_str_in_output or self.no_stop_trim)

    @property
    def output_limit(self) -> int | None:
        """The most output tokens the client asked for, None when it did not say."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        """How many of the likeliest tokens are named beside each output token; None: no log-probabilities at all."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for the tokens of the prompt, whatever they are wanted for."""
        return self.prompt_logprobs

    @property
    def tells_eos(self) -> bool:
        """Whether an eos is told as a token: it is where one token is wanted for its log-probability, whichever it is.

        Evaluation harnesses count on that token.
        """
        return self.output_limit == 1 and self.num_top_logprobs is not None

    def check(self) -> None:
        """Raise ``Refused`` when parameters contradict each other."""
        if self.stream_options is not None:
            if not self.stream:
                raise invalid("stream_options", "is only allowed when 'stream' is true")
            if self.stream_options.continuous_usage_stats and not self.stream_options.include_usage:
                raise invalid("stream_options.continuous_usage_stats", "needs 'include_usage'")
        if self.prompt_logprobs is not None and self.stream:
            raise invalid("prompt_logprobs", "is not available in a stream")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise invalid("max_completion_tokens", "and 'max_tokens' are two names of one limit and differ")
        limit = self.output_limit
        if limit is not None and self.min_tokens is not None and self.min_tokens > limit:
            raise invalid("min_tokens", f"should be at most the {limit} tokens that are to come")

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise ``Refused`` when a parameter names a token that the model does not have."""
        for param, token_ids in (("logit_bias", self._biased()), ("stop_token_ids", self.stop_token_ids or ())):
            if any(token_id >= vocab_size for token_id in token_ids):
                raise invalid(param, f"has a token id beyond the model's {vocab_size}")

    def sampling(self, *, fresh_seed: int, choice: int = 0) -> Sampling:
        """How to choose the tokens of one choice; ``fresh_seed`` is used when the client brings none."""
        return Sampling(
            temperature=_or(self.temperature, 1.0),
            top_p=_or(self.top_p, 1.0),
            top_k=self.top_k if self.top_k is not None and self.top_k > 0 else None,
            min_p=_or(self.min_p, 0.0),
            seed=fresh_seed if self.seed is None else self.seed & SEED_MASK,
            choice=choice,
            presence_penalty=_or(self.presence_penalty, 0.0),
            frequency_penalty=_or(self.frequency_penalty, 0.0),
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            logit_bias=tuple((int(token_id), float(bias)) for token_id, bias in (self.logit_bias or {}).items()),
            ignore_eos=bool(self.ignore_eos) or self.tells_eos,
            min_tokens=self.min_tokens or 0,
            stop_token_ids=self.stop_token_ids or (),
            top_logprobs=self.num_top_logprobs,
            prompt_logprobs=self.num_prompt_logprobs,
        )

    def _biased(self) -> Iterable[int]:
        return map(int, self.logit_bias or ())


def _or(value: float | None, default: float) -> float:
    """Whole numbers are numbers in JSON, but not floats."""
    return default if value is None else float(value)
