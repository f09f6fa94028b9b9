"""What a body asks for, as sequences for the machinery, and the choices that their streams become."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from gateway.dispatch import SequenceRequest, TokenStream
from gateway.errors import Reason, Refused
from gateway.output import NoOutput, Output, OutputText
from gateway.prompts import Prompt
from gateway.reply import Choice
from gateway.schema import invalid
from gateway.schema_generation import GenerationBody
from gateway.stops import StopMatcher, StopText
from gateway.token_scores import ScoreQueue
from gateway.tokens import ChatTokenizer, SpecialTokens
from workers.wire import ModelCard


def check_chars(num_chars: Sequence[int], card: ModelCard, tokenizer: ChatTokenizer, prompt_param: str) -> None:
    """Refuse a prompt that is too long whatever its tokens are, before seconds go into finding out which they are."""
    most = tokenizer.most_chars(card.context_length)
    if most is not None and max(num_chars, default=0) > most:
        message = f"The context has {card.context_length} tokens; the prompt alone takes more."
        raise Refused(Reason.CONTEXT_LENGTH_EXCEEDED, message, param=prompt_param)


def sequences_of(
    body: GenerationBody, prompts: Sequence[Prompt], card: ModelCard, prompt_param: str
) -> tuple[SequenceRequest, ...]:
    """One for each choice of each prompt. Raises ``Refused`` when a prompt cannot be served."""
    return tuple(
        sequence
        for index, prompt in enumerate(prompts)
        for sequence in _sequences(
            body, prompt, card, prompt_param if len(prompts) == 1 else f"{prompt_param}[{index}]"
        )
    )


def choices_of(
    body: GenerationBody,
    prompts: Sequence[Prompt],
    streams: Sequence[TokenStream],
    card: ModelCard,
    tokenizer: ChatTokenizer,
) -> list[Choice]:
    """The choices of these streams, which come in the order of ``sequences_of``."""
    prompt_of_each = [prompt for prompt in prompts for _ in range(body.num_choices)]
    return [
        Choice(
            prompt=prompt,
            stream=stream,
            output=_output(body, prompt, card, tokenizer),
            tells_logprobs=body.num_top_logprobs is not None,
        )
        for prompt, stream in zip(prompt_of_each, streams, strict=True)
    ]


def _sequences(body: GenerationBody, prompt: Prompt, card: ModelCard, param: str) -> Iterator[SequenceRequest]:
    _check_ids(prompt, card, param)
    max_tokens = _output_bound(body, card, len(prompt.ids), param)
    # Without a seed of the client's, equal prompts of one request are answered differently.
    fresh_seed = secrets.randbits(63)
    for choice in range(body.num_choices):
        sampling = body.sampling(fresh_seed=fresh_seed, choice=choice)
        yield SequenceRequest(prompt_ids=prompt.ids, max_tokens=max_tokens, sampling=sampling)


def _output(body: GenerationBody, prompt: Prompt, card: ModelCard, tokenizer: ChatTokenizer) -> Output:
    if body.output_limit == 0:
        return NoOutput()
    special = SpecialTokens.SHOWN if body.skip_special_tokens is False else SpecialTokens.HIDDEN
    begins_at = 0 if prompt.echo is None else len(prompt.echo.text)
    return OutputText(
        tokenizer.detokenizer(prompt.ids, special),
        StopMatcher(body.stops, StopText.INCLUDED if body.shows_stop else StopText.LEFT_OUT),
        min_tokens=body.min_tokens or 0,
        scores=None if body.num_top_logprobs is None else ScoreQueue(begins_at),
        eos_ids=card.eos_ids if body.tells_eos and not body.ignore_eos else (),
    )


def _check_ids(prompt: Prompt, card: ModelCard, param: str) -> None:
    if not prompt.ids:
        raise invalid(param, "has no token")
    if max(prompt.ids) >= card.vocab_size:
        raise invalid(param, f"has a token id beyond the model's {card.vocab_size}")


def _output_bound(body: GenerationBody, card: ModelCard, prompt_tokens: int, param: str) -> int:
    """The most tokens to generate: what the client asks for, else all that fits. Refuses what does not fit.

    A prompt that is only scored needs one, too: a sequence without output is none.
    """
    room = card.context_length - prompt_tokens
    limit = "min_tokens" if body.output_limit is None else "max_tokens"
    wanted = max(1, (body.min_tokens if body.output_limit is None else body.output_limit) or 0)
    if wanted > room:
        to_come = "one is made to score it" if body.output_limit == 0 else f"{wanted} are to come"
        message = f"The context has {card.context_length} tokens; the prompt has {prompt_tokens}, and {to_come}."
        raise Refused(Reason.CONTEXT_LENGTH_EXCEEDED, message, param=param if room < 1 else limit)
    return room if body.output_limit is None else wanted
