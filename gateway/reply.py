"""A request that is being answered: its choices, and what has come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from gateway.chunks import ReplyHead, Usage
from gateway.dispatch import Tokens, TokenStream
from gateway.endpoint import Body, Endpoint
from gateway.errors import Refused
from gateway.output import Output
from gateway.prompts import Prompt
from gateway.record import RequestRecord
from gateway.token_names import TokenNames
from gateway.token_scores import Score, prompt_scores
from gateway.tokenizer_pool import TokenizerPool

MOST_SCORES_INLINE = 64
"""Log-probabilities that are written on the event loop, a few microseconds each; more of them are a thread's work."""


class Delta(NamedTuple):
    """What is new of a choice."""

    text: str
    scores: Sequence[Score]


class Choice:
    """One choice: the stream of its sequence, and its text, which begins with the prompt where that is echoed."""

    def __init__(self, *, prompt: Prompt, stream: TokenStream, output: Output, tells_logprobs: bool) -> None:
        self.prompt = prompt
        self.stream = stream
        self.output = output
        self.has_begun = False
        self._tells_logprobs = tells_logprobs

    @property
    def has_ended(self) -> bool:
        return self.output.finish is not None

    def take(self, item: Tokens) -> Delta:
        """What can be shown with this item."""
        delta = Delta(self.output.take(item), self.output.take_scores())
        if not self.has_begun and (item.token_ids or self.has_ended):
            self.has_begun = True
            delta = self._echoed(delta)
        return delta

    def _echoed(self, delta: Delta) -> Delta:
        echo = self.prompt.echo
        if echo is None:
            return delta
        scores: list[Score] = []
        if self._tells_logprobs:
            scores += prompt_scores(self.prompt.ids, echo.offsets, self.stream.prompt_logprobs)
        return Delta(echo.text + delta.text, [*scores, *delta.scores])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Generic[Body]):
    """``choices`` are those of the first prompt, then those of the next one, and so on."""

    endpoint: Endpoint[Body]
    body: Body
    head: ReplyHead
    headers: dict[str, str]
    choices: Sequence[Choice]
    record: RequestRecord
    names: TokenNames
    pool: TokenizerPool
    is_early: bool

    @property
    def streams(self) -> Sequence[TokenStream]:
        return [choice.stream for choice in self.choices]

    @property
    def usage(self) -> Usage:
        """So far. A prompt counts once; what was cached of it is what even its first choice need not compute."""
        per_prompt = self.body.num_choices
        by_prompt = [self.choices[start : start + per_prompt] for start in range(0, len(self.choices), per_prompt)]
        return Usage(
            prompt_tokens=sum([len(choices[0].prompt.ids) for choices in by_prompt]),
            completion_tokens=sum([choice.output.num_tokens for choice in self.choices]),
            cached_tokens=sum([min(choice.stream.cached_tokens for choice in choices) for choices in by_prompt]),
        )

    def take(self, index: int, item: Tokens) -> Delta:
        """What is new of a choice, accounted for. Its stream is told when the choice has ended."""
        choice = self.choices[index]
        before = choice.output.num_tokens
        delta = choice.take(item)
        self.record.completion_tokens += choice.output.num_tokens - before
        if choice.has_ended:
            choice.stream.complete()
        return delta

    def cancel(self) -> None:
        """Nobody wants what has not ended."""
        for choice in self.choices:
            if not choice.has_ended:
                choice.stream.cancel("the answer was given up")

    async def logprobs(self, scores: Sequence[Score]) -> dict[str, Any]:
        """The scores as this endpoint writes them."""
        num_top = self.body.num_top_logprobs or 0
        if len(scores) <= MOST_SCORES_INLINE:
            return self.endpoint.logprobs(scores, self.names, num_top)
        return await self.pool.run(self.endpoint.logprobs, scores, self.names, num_top)


def check_failures(arrived: Sequence[tuple[int, Tokens]]) -> None:
    """Raise ``Refused`` when one of the sequences failed: its request fails with it."""
    for _, item in arrived:
        if item.error is not None:
            raise Refused(
                item.error,
                item.message or "The answer could not be completed.",
                retry_after_s=item.retry_after_s,
            )
