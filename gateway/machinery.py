"""What stands behind the HTTP side: a request becomes queued jobs and open streams, or a reason why not.

The order of a submission matters. The streams are opened before the offer, so that not even a driver that starts at
once delivers into nothing. And whatever interrupts the offer (the client, a silent store), its outcome is unknown: the
entries are withdrawn in the background, and what a driver makes of them meanwhile finds no stream and is cancelled
there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from admission.classes import PriorityClass
from admission.queue import MAX_GROUP, ClassRule, Entry, Offered, StoreUnavailable
from admission.standing import WaitingOrderName, standing
from gateway.clock import Clock
from gateway.cluster_view import ClusterView
from gateway.deadlines import exceeded
from gateway.directory import Directory
from gateway.dispatch import MOST_PROMPT_LOGPROBS, GenerationRequest, Readiness, SequenceRequest
from gateway.errors import Reason, Refused
from gateway.estimates import Estimates
from gateway.forecast import Forecast, Outlook, WaitForecast, retry_after_s
from gateway.moves import Moves
from gateway.queues import Queues
from gateway.relay import Relay
from gateway.stream import Stream
from gateway.streams import Streams
from workers.wire import Delivery, Job, ModelCard, TokenizerFiles, encode

_FULL = {
    Offered.QUEUE_FULL: (Reason.QUEUE_FULL, "The queue is full."),
    Offered.QUEUE_TOKENS_FULL: (Reason.QUEUE_TOKENS_FULL, "The queue holds as many tokens as it may."),
    Offered.CLASS_FULL: (Reason.CLASS_FULL, "As much waits of this class as may."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineryParts:
    """What the machinery is put together from."""

    queues: Queues
    streams: Streams
    relay: Relay
    moves: Moves
    view: ClusterView
    directory: Directory
    forecast: Forecast
    estimates: Estimates
    classes: Mapping[str, PriorityClass]
    clock: Clock
    waiting_order: WaitingOrderName


class Machinery:
    """Implements ``gateway.dispatch.Dispatcher``."""

    def __init__(self, parts: MachineryParts) -> None:
        self._parts = parts
        self._is_draining = False

    def drain(self) -> None:
        """Accept nothing more. What was accepted goes on."""
        self._is_draining = True

    async def submit(self, request: GenerationRequest) -> tuple[Stream, ...]:
        """Put the request into the cluster's queue, all of it. Raises ``Refused`` when it is not accepted."""
        self._check(request)
        parts = self._parts
        queue = parts.queues.of(request.model)
        entries = self._entries(request)
        wait_s = self._predict(request, entries[0].rank)

        streams = tuple(
            parts.streams.open(
                entry,
                model=request.model,
                on_cancel=parts.moves.stop,
                on_lost=parts.moves.take_started,
                deadline_us=request.deadline_us,
            )
            for entry in entries
        )
        offered_us = parts.clock()
        try:
            result = await queue.offer_group(entries, ClassRule.of(parts.classes[request.class_name]))
        except StoreUnavailable:
            _cancel(streams, "the store did not answer the offer")
            raise _store_unavailable() from None
        except BaseException:
            _cancel(streams, "the offer was interrupted")
            raise
        for shed in result.shed:
            parts.relay.deliver(parts.relay.door_id, shed.origin, (_shed(shed.entry_id),))
        if result.refusal is not None:
            for stream in streams:
                parts.streams.discard(stream)
            raise self._full(result.refusal, result.waiting_tokens, request.model)
        num_ahead = result.position
        for stream, outcome in zip(streams, result.outcomes, strict=True):
            stream.is_placed = True
            if outcome is Offered.QUEUED:
                parts.forecast.queued(request.model, stream.entry.rank, stream.entry.tokens)
                if wait_s is not None:
                    stream.forecast = WaitForecast(made_us=offered_us, wait_s=wait_s)
                stream.outlook = Outlook(
                    parts.forecast,
                    model=request.model,
                    rank=stream.entry.rank,
                    num_ahead=num_ahead,
                    made=stream.forecast,
                )
                num_ahead += 1
        return streams

    def models(self) -> tuple[ModelCard, ...]:
        """Cards of all models that were seen; one that nobody serves now is refused as ``no_worker``, not unknown."""
        return self._parts.view.cards()

    async def tokenizer_files(self, digest: str) -> TokenizerFiles:
        """The tokenizer that a worker announced, by digest. Raises ``Refused`` when nobody has it now."""
        try:
            files = await self._parts.directory.tokenizer_files(digest)
        except StoreUnavailable:
            raise _store_unavailable() from None
        if files is None:
            raise Refused(Reason.NO_WORKER, "The model's tokenizer is not available now.")
        return files

    def readiness(self) -> Readiness:
        view = self._parts.view
        if self._is_draining:
            return Readiness(ready=False, reason="draining")
        if not view.store_reachable:
            return Readiness(ready=False, reason="the store is unreachable")
        if not view.serves_any():
            return Readiness(ready=False, reason="no worker")
        return Readiness(ready=True)

    def _check(self, request: GenerationRequest) -> None:
        view = self._parts.view
        if self._is_draining:
            raise Refused(Reason.DRAINING, "This gateway is shutting down.")
        card = view.card(request.model)
        if card is None:
            raise Refused(Reason.UNKNOWN_MODEL, f"The model {request.model!r} does not exist.", param="model")
        num_tokens = max(len(sequence.prompt_ids) + sequence.max_tokens for sequence in request.sequences)
        if num_tokens > card.context_length:
            raise Refused(
                Reason.CONTEXT_LENGTH_EXCEEDED,
                f"The context holds {card.context_length} tokens; prompt and output would take {num_tokens}.",
            )
        self._check_size(request)
        if not view.store_reachable:
            raise _store_unavailable()
        if not view.serves(request.model):
            raise Refused(Reason.NO_WORKER, f"No worker serves {request.model!r} now.")
        left_us = self._left_us(request)
        if left_us is not None and left_us <= 0:
            raise exceeded()

    def _check_size(self, request: GenerationRequest) -> None:
        """Whether it can be accepted at all must not depend on how many slots are free now."""
        most = min(MAX_GROUP, max(1, self._parts.queues.bounds.max_requests))
        if len(request.sequences) > most:
            raise Refused(
                Reason.INVALID_VALUE,
                f"Prompts times 'n' make {len(request.sequences)} sequences; here a request may ask for at most {most},"
                f" as many as the queue may hold (--queue-requests), one at least and {MAX_GROUP} at most.",
                param="n" if any(sequence.sampling.choice > 0 for sequence in request.sequences) else "prompt",
            )
        num_logprobs = sum(_num_prompt_logprobs(sequence) for sequence in request.sequences)
        if num_logprobs > MOST_PROMPT_LOGPROBS:
            raise Refused(
                Reason.INVALID_VALUE,
                f"A request may ask for {MOST_PROMPT_LOGPROBS} log-probabilities of prompt tokens, not {num_logprobs}.",
                param="prompt_logprobs",
            )

    def _left_us(self, request: GenerationRequest) -> int | None:
        """Time until the request's deadline."""
        return None if request.deadline_us is None else request.deadline_us - self._parts.clock()

    def _entries(self, request: GenerationRequest) -> tuple[Entry, ...]:
        """One for each sequence, in their order: what is equal else goes by it."""
        left_us = self._left_us(request)  # once: they stand alike
        return tuple(self._entry(request, sequence, left_us) for sequence in request.sequences)

    def _entry(self, request: GenerationRequest, sequence: SequenceRequest, left_us: int | None) -> Entry:
        """Ids are our own: what a client sends is never a key."""
        sequence_id = uuid.uuid4().hex
        parts = self._parts
        cls = parts.classes[request.class_name]
        job = Job(
            sequence_id=sequence_id,
            origin=parts.relay.address,
            class_name=cls.name,
            rank=cls.rank,
            prompt_ids=sequence.prompt_ids,
            emitted_ids=(),
            max_tokens=sequence.max_tokens,
            expected_tokens=parts.estimates.expected(request.model, cls.name, sequence.max_tokens),
            sampling=sequence.sampling,
            deadline_us=None,
            request_id=request.request_id,
        )
        tokens = len(sequence.prompt_ids) + job.expected_tokens
        return Entry(
            entry_id=sequence_id,
            class_name=cls.name,
            rank=cls.rank,
            standing=standing(
                parts.waiting_order, cls=cls, tenant=request.tenant, tokens=tokens, deadline_in_us=left_us
            ),
            tokens=tokens,
            payload=encode(job),
            tenant=request.tenant,
            origin=job.origin,
        )

    def _predict(self, request: GenerationRequest, rank: int) -> float | None:
        """How long the request will wait, if known. Raises ``Refused`` when that is beyond its deadline."""
        wait_s = self._parts.forecast.wait_s(request.model, rank)
        left_us = self._left_us(request)
        if wait_s is not None and left_us is not None and wait_s * 1_000_000 > left_us:
            raise Refused(
                Reason.DEADLINE_UNREACHABLE,
                f"The wait would be about {wait_s:.1f} s, longer than the deadline allows.",
                retry_after_s=retry_after_s(wait_s),
            )
        return wait_s

    def _full(self, refusal: Offered, waiting_tokens: int, model: str) -> Refused:
        reason, message = _FULL[refusal]
        wait_s = self._parts.forecast.drain_s(model, waiting_tokens)
        return Refused(reason, message, retry_after_s=retry_after_s(wait_s))


def _cancel(streams: Iterable[Stream], reason: str) -> None:
    for stream in streams:
        stream.cancel(reason)


def _num_prompt_logprobs(sequence: SequenceRequest) -> int:
    """Those of its tokens and of the likeliest beside them."""
    width = sequence.sampling.prompt_logprobs
    return 0 if width is None else (1 + width) * len(sequence.prompt_ids)


def _shed(entry_id: str) -> Delivery:
    """What the origin of an entry is told that was displaced in the queue. It was never started."""
    return Delivery(sequence_id=entry_id, position=0, token_ids=(), finish="", error=Reason.SHED.value)


def _store_unavailable() -> Refused:
    return Refused(Reason.STORE_UNAVAILABLE, "The queue cannot be reached from here now.")
