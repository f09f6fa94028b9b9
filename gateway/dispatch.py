"""The seam between the HTTP side and the machinery behind it.

The HTTP side turns a request into a ``GenerationRequest``, submits it, and reads a stream of ``Tokens``; it knows no
queue, no driver and no worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import Reason
from workers.wire import ModelCard, Sampling, TokenizerFiles

MOST_PROMPT_LOGPROBS = 1 << 19
"""Log-probabilities of prompt tokens, those beside them included, that one request may ask for: some 35 MB here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    """One sequence to generate, tokenised and validated. ``max_tokens`` bounds the output, prompt not counted."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What one client request wants generated: its sequences are accepted all or none.

    They are the choices of one prompt (numbered by ``sampling.choice``, of one seed), or several prompts, or both:
    prompt after prompt, the choices of each beside each other.

    ``deadline_us`` is absolute, on the gateway's monotonic clock; whoever streams the answer keeps it. ``tenant`` names
    on whose account it is, empty for nobody's.
    """

    request_id: str
    model: str
    class_name: str
    sequences: tuple[SequenceRequest, ...]
    deadline_us: int | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """The log-probability of a token, and the likeliest ones beside it (id, log-probability), best first."""

    own: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Output tokens of one sequence, in order, none missing. The last one has ``finish`` or ``error``, never both.

    ``finish`` is ``"stop"`` (an eos token or a stop id, not included in ``token_ids``) or ``"length"``. ``stop_id`` is
    the one of the sampling's stop ids that ended it. ``logprobs`` has one for each of ``token_ids`` where the sampling
    asks for them, else none.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None
    stop_id: int | None = None
    error: Reason | None = None
    message: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a sequence waits: at most so many go before it. ``left_s`` is the predicted wait, None where unknown."""

    num_ahead: int
    left_s: float | None


class TokenStream(Protocol):
    """The output of one sequence. Iteration ends after the item with ``finish`` or ``error``.

    ``prompt_logprobs`` has those of every prompt token but the first, complete when the first item has come, empty
    where the sampling asks for none. ``cached_tokens`` of the prompt were not computed, as their KV was there: known
    with the first item, too.
    """

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]: ...

    @property
    def cached_tokens(self) -> int: ...

    @property
    def place(self) -> Place | None:
        """Where it waits, as far as is known; None once it has begun, or when it never had to wait."""
        ...

    def __aiter__(self) -> AsyncIterator[Tokens]: ...

    def shorten(self, take: Callable[[Sequence[int]], bool]) -> None:
        """Offer tokens to ``take`` in the call that brings them, while the reader waits for the next item.

        What it takes (true) is not read any more; what it does not is read as an item, and so is all that has more to
        it than tokens: ends, errors, log-probabilities. ``take`` neither blocks nor raises.
        """
        ...

    def complete(self) -> None:
        """Say that the answer is whole, although the sequence may go on (stop string found). Else as ``cancel``."""
        ...

    def cancel(self, reason: str) -> None:
        """Say that nobody wants the rest (client gone). Idempotent, returns at once; after the end it means nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether this gateway can serve, and why not. Never asks the queue."""

    ready: bool
    reason: str = ""


class Dispatcher(Protocol):
    """The machinery as the HTTP side sees it."""

    async def submit(self, request: GenerationRequest) -> Sequence[TokenStream]:
        """Put the request into the cluster's queue, all of it or nothing. A stream for each of its sequences, in order.

        Raises ``Refused`` when it is not accepted. From then on each sequence goes its own way: it waits, runs, ends
        and is cancelled by itself, and may fail alone (shed while it waits, or its worker lost too often). What that
        means to the others is the caller's to say: an answer that lacks one is not whole.
        """
        ...

    def models(self) -> tuple[ModelCard, ...]:
        """Cards of the models that are known now (served by a worker of any gateway)."""
        ...

    async def tokenizer_files(self, digest: str) -> TokenizerFiles:
        """The tokenizer that a worker announced, by digest. Raises ``Refused`` (no worker) when nobody has it now."""
        ...

    def readiness(self) -> Readiness: ...
