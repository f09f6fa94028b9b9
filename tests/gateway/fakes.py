"""A dispatcher that says exactly what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gateway.dispatch import GenerationRequest, Place, Readiness, SequenceRequest, TokenLogprob, Tokens
from gateway.errors import Reason, Refused
from tests.gateway.tiny_tokenizer import ids_of_text, tokenizer_files
from workers.wire import ModelCard, TokenizerFiles

MODEL = "tiny"


def tiny_card(files: TokenizerFiles, *, name: str = MODEL, context_length: int = 256) -> ModelCard:
    return ModelCard(
        name=name,
        context_length=context_length,
        vocab_size=331,
        eos_ids=(2,),
        tokenizer_digest=files.digest,
        dtype="float32",
        device="cpu",
    )


def says(*texts: str, finish: str = "stop") -> list[Tokens]:
    """One item per text, the last of them the end."""
    return speaks([ids_of_text(text) for text in texts], finish=finish)


def speaks(steps: Iterable[Sequence[int]], *, finish: str = "stop") -> list[Tokens]:
    """One item per group of ids, the last of them the end."""
    items = [Tokens(token_ids=tuple(step)) for step in steps]
    return [*items, Tokens(token_ids=(), finish=finish)]


def score(token_id: int, width: int) -> TokenLogprob:
    """The log-probability that fakes give a token: of its id alone. The likeliest beside it are ids from 20 on."""
    top = tuple((20 + rank, -0.25 * (rank + 1)) for rank in range(width))
    return TokenLogprob(own=-1.0 - token_id / 64, top=top)


def scored(item: Tokens | BaseException, width: int | None) -> Tokens | BaseException:
    """The item with log-probabilities, when they are asked for and the test has given it none."""
    if width is None or isinstance(item, BaseException) or item.logprobs:
        return item
    return replace(item, logprobs=tuple(score(token_id, width) for token_id in item.token_ids))


@dataclass
class FakeStream:
    """Items put into it come out; it records the cancels that it is sent."""

    request: GenerationRequest
    sequence: SequenceRequest
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0
    place: Place | None = None
    items: asyncio.Queue[Tokens | BaseException] = field(default_factory=asyncio.Queue)
    cancels: list[str] = field(default_factory=list)
    num_taken: int = 0
    num_taken_at_once: int = 0
    is_awaited: bool = False
    take_at_once: Callable[[Sequence[int]], bool] | None = None

    def put(self, *items: Tokens | BaseException) -> None:
        """By the short cut, as far as it is offered and takes them, while the reader waits."""
        for item in items:
            if self._goes_at_once(item):
                self.num_taken_at_once += 1
            else:
                self.is_awaited = False
                self.items.put_nowait(scored(item, self.sequence.sampling.top_logprobs))

    def _goes_at_once(self, item: Tokens | BaseException) -> bool:
        if not self.is_awaited or self.take_at_once is None or not isinstance(item, Tokens):
            return False
        return item == Tokens(token_ids=item.token_ids) and self.take_at_once(item.token_ids)

    async def _iterate(self) -> AsyncIterator[Tokens]:
        while True:
            self.is_awaited = self.items.empty()
            item = await self.items.get()
            if isinstance(item, BaseException):
                raise item
            self.num_taken += 1
            yield item
            if item.finish is not None or item.error is not None:
                return

    def __aiter__(self) -> AsyncIterator[Tokens]:
        return self._iterate()

    def shorten(self, take: Callable[[Sequence[int]], bool]) -> None:
        self.take_at_once = take

    def complete(self) -> None:
        self.cancel("the answer is complete")

    def cancel(self, reason: str) -> None:
        self.cancels.append(reason)


@dataclass
class FakeDispatcher:
    """``script`` makes the items of each sequence; an empty list leaves the stream to the test.

    Log-probabilities are added to them where they are asked for.
    """

    files: TokenizerFiles = field(default_factory=tokenizer_files)
    cards: tuple[ModelCard, ...] | None = None
    script: Callable[[SequenceRequest], Sequence[Tokens | BaseException]] = lambda _: says("Hello", " world")
    refusal: BaseException | None = None
    hold_submit: asyncio.Event | None = None
    ready: Readiness = field(default_factory=lambda: Readiness(ready=True))
    cached_tokens: int = 0
    streams: list[FakeStream] = field(default_factory=list)

    async def submit(self, request: GenerationRequest) -> list[FakeStream]:
        if self.hold_submit is not None:
            await self.hold_submit.wait()
        if self.refusal is not None:
            raise self.refusal
        streams = [
            FakeStream(request, sequence, _prompt_scores(sequence), self.cached_tokens)
            for sequence in request.sequences
        ]
        for stream in streams:
            stream.put(*self.script(stream.sequence))
        self.streams.extend(streams)
        return streams

    def models(self) -> tuple[ModelCard, ...]:
        return (tiny_card(self.files),) if self.cards is None else self.cards

    async def tokenizer_files(self, digest: str) -> TokenizerFiles:
        if digest != self.files.digest:
            raise Refused(Reason.NO_WORKER, "Nobody has this tokenizer now.")
        return self.files

    def readiness(self) -> Readiness:
        return self.ready

    @property
    def last(self) -> FakeStream:
        return self.streams[-1]


def _prompt_scores(sequence: SequenceRequest) -> tuple[TokenLogprob, ...]:
    width = sequence.sampling.prompt_logprobs
    return () if width is None else tuple(score(token_id, width) for token_id in sequence.prompt_ids[1:])
