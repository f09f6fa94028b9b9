"""A dispatcher that says exactly what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gateway.dispatch import GenerationRequest, Readiness, SequenceRequest, TokenLogprob, Tokens
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


@dataclass
class FakeStream:
    """Items put into it come out; it records the cancels that it is sent."""

    request: GenerationRequest
    sequence: SequenceRequest
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0
    items: asyncio.Queue[Tokens | BaseException] = field(default_factory=asyncio.Queue)
    cancels: list[str] = field(default_factory=list)
    num_taken: int = 0

    def put(self, *items: Tokens | BaseException) -> None:
        for item in items:
            self.items.put_nowait(item)

    async def _iterate(self) -> AsyncIterator[Tokens]:
        while True:
            item = await self.items.get()
            if isinstance(item, BaseException):
                raise item
            self.num_taken += 1
            yield item
            if item.finish is not None or item.error is not None:
                return

    def __aiter__(self) -> AsyncIterator[Tokens]:
        return self._iterate()

    def complete(self) -> None:
        self.cancel("the answer is complete")

    def cancel(self, reason: str) -> None:
        self.cancels.append(reason)


@dataclass
class FakeDispatcher:
    """``script`` makes the items of each sequence; an empty list leaves the stream to the test."""

    files: TokenizerFiles = field(default_factory=tokenizer_files)
    cards: tuple[ModelCard, ...] | None = None
    script: Callable[[SequenceRequest], Sequence[Tokens | BaseException]] = lambda _: says("Hello", " world")
    refusal: BaseException | None = None
    hold_submit: asyncio.Event | None = None
    ready: Readiness = field(default_factory=lambda: Readiness(ready=True))
    streams: list[FakeStream] = field(default_factory=list)

    async def submit(self, request: GenerationRequest) -> list[FakeStream]:
        if self.hold_submit is not None:
            await self.hold_submit.wait()
        if self.refusal is not None:
            raise self.refusal
        streams = [FakeStream(request, sequence) for sequence in request.sequences]
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
