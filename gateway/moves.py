"""Requests that go on elsewhere: the origin offers again what a driver, a worker or the store has lost.

The origin has everything that another driver needs: the prompt, the sampling with its seed, and the tokens so far. The
random number of a token depends on seed and position alone, so the next driver goes on with the very token that was
due, and its client notices a pause and nothing else.

**Each offer has an id of its own.** So the store, whose acts are idempotent by id, never takes a second offer for a
repetition of the first; and the old claim is fenced off: its id is unknown here from then on, so what still comes of it
is dropped and answered with a cancel. It is also withdrawn, so that it goes back into no line.

What had started may pass the bounds of the queue: it was within them once, and there is no more of it than there were
slots. What only waited obeys them. Both keep their age.

A request may move ``most_moves`` times, lest one that kills workers takes them all with it. A store that does not
answer is asked again for ``MOST_OFFER_S``; deadlines are kept meanwhile as ever.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from admission.queue import ClassRule, Entry, Offered, OfferResult, StoreUnavailable
from admission.standing import older
from gateway.backoff import Backoff
from gateway.clock import Clock
from gateway.errors import Reason
from gateway.metrics import Metrics
from gateway.queues import Queues
from gateway.relay import Relay
from gateway.store_acts import StoreActs
from gateway.stream import Stream
from gateway.streams import Streams
from workers.wire import Job, decode, encode

MOST_OFFER_S = 30.0
"""How long a store may be away before its clients are told: as long as they wait for a worker that nobody replaces."""

_FULL = frozenset({Offered.QUEUE_FULL, Offered.QUEUE_TOKENS_FULL, Offered.CLASS_FULL})

_Offer = Callable[[Entry, ClassRule], Awaitable[OfferResult]]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    stream: Stream
    entry: Entry
    offer: _Offer
    since_us: int


class Moves:
    """What is to be offered again, oldest first. ``run`` does it."""

    def __init__(
        self,
        *,
        queues: Queues,
        streams: Streams,
        relay: Relay,
        acts: StoreActs,
        metrics: Metrics,
        clock: Clock,
        most_moves: int,
        rules: Mapping[str, ClassRule],
    ) -> None:
        self._queues = queues
        self._streams = streams
        self._relay = relay
        self._acts = acts
        self._metrics = metrics.requests
        self._clock = clock
        self._most_moves = most_moves
        self._rules = rules
        self._pending: deque[_Move] = deque()
        self._stirred = asyncio.Event()

    def stop(self, stream: Stream) -> None:
        """Nobody wants the current claim of ``stream`` any more: tell its driver, if known, and the store."""
        if stream.driver_id is not None:
            self._relay.cancel(stream.driver_id, (stream.sequence_id,))
        self._acts.withdraw(
            self._queues.of(stream.model),
            stream.sequence_id,
            lambda entry_id, driver_id: self._relay.cancel(driver_id, (entry_id,)),
        )

    def take_started(self, stream: Stream) -> None:
        """What ran ``stream`` is gone: let another driver go on, or end it when it has moved too often."""
        if stream.num_moves >= self._most_moves:
            message = f"The worker was lost, after the request had been moved {stream.num_moves} times."
            self._streams.cut(stream, Reason.WORKER_LOST, message)
        else:
            self._move(stream, self._queues.of(stream.model).offer_past_bounds)

    def take_forgotten(self, stream: Stream) -> None:
        """The store no longer knows ``stream``, and nobody runs it."""
        if stream.output:
            self.take_started(stream)
        elif stream.num_moves >= self._most_moves:
            self._streams.cut(stream, Reason.STORE_UNAVAILABLE, "The queue lost this request while it waited.")
        else:
            self._move(stream, self._queues.of(stream.model).offer)

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._pending:
                try:
                    await self._offer(self._pending[0])
                except StoreUnavailable:
                    self._give_up_late()
                    await backoff.pause()
                    continue
                backoff.reset()
                self._pending.popleft()

    def _move(self, stream: Stream, offer: _Offer) -> None:
        self.stop(stream)
        entry = _entry_again(stream, self._clock())
        self._streams.continue_as(stream, entry)
        self._metrics.moves.inc()
        self._pending.append(_Move(stream=stream, entry=entry, offer=offer, since_us=self._clock()))
        self._stirred.set()

    async def _offer(self, move: _Move) -> None:
        if not move.stream.is_open or move.entry is not move.stream.entry:
            return
        # It was in the queue once, and displaces nobody.
        rule = replace(self._rules[move.entry.class_name], sheds=False)
        outcome = (await move.offer(move.entry, rule)).outcome
        move.stream.is_placed = move.entry is move.stream.entry
        _log.info("offered again", sequence=move.entry.entry_id, tokens=len(move.stream.output), outcome=outcome.value)
        if outcome in _FULL:
            self._streams.cut(
                move.stream, Reason.STORE_UNAVAILABLE, "The queue lost this request while it waited, and is full now."
            )

    def _give_up_late(self) -> None:
        oldest_us = self._clock() - int(MOST_OFFER_S * 1_000_000)
        for move in [move for move in self._pending if move.since_us < oldest_us]:
            self._streams.cut(move.stream, Reason.STORE_UNAVAILABLE, "The queue cannot be reached from here now.")


def _entry_again(stream: Stream, now_us: int) -> Entry:
    """The same request under a new id, with its tokens so far, and with the age that it has."""
    job = decode(stream.entry.payload)
    if not isinstance(job, Job):
        raise TypeError("an entry of ours holds a job")
    sequence_id = uuid.uuid4().hex
    again = replace(job, sequence_id=sequence_id, emitted_ids=tuple(stream.output))
    return replace(
        stream.entry,
        entry_id=sequence_id,
        standing=older(stream.entry.standing, now_us - stream.offered_us),
        tokens=max(stream.entry.tokens, len(job.prompt_ids) + len(stream.output)),
        payload=encode(again),
    )
