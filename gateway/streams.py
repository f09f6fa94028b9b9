"""The origin's side of a request: the open token streams of this gateway, by sequence id.

Deliveries come from whichever driver runs a sequence, perhaps twice (after a lost link), perhaps from the start (after
a move to another driver). A stream takes token *i* only if *i* is the next one; what it has is dropped and counted, and
what lies beyond a gap is dropped too: the driver's journal brings it again, from the gap on. So a stream has every
token exactly once, whatever happens on the way.

The *current claim* of a sequence is the driver that last carried it on. Another driver takes its place by delivering
the next token; an error counts only from the current one (or when nothing has come from anybody yet). When that one is
lost, the request goes on under another sequence id (``gateway.moves``), and what comes for the old one is unwanted.

A stream ends by itself when its deadline passes, on this gateway's clock alone: drivers know of none.

A delivery for a stream that is not open here is answered with the sequence's id: nobody wants it, and the caller tells
the driver so. That ends what a crashed gateway or a lost cancel left running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from admission.queue import Entry
from gateway.clock import Clock
from gateway.deadlines import exceeded
from gateway.dispatch import Tokens
from gateway.errors import Reason
from gateway.estimates import Estimates
from gateway.forecast import retry_after_s
from gateway.metrics import Metrics
from gateway.scores import since
from gateway.stream import Stream, StreamBounds
from workers.wire import Delivery


class Streams:
    """The registry: what is open, and where deliveries go."""

    def __init__(
        self,
        *,
        clock: Clock,
        metrics: Metrics,
        estimates: Estimates,
        bounds: StreamBounds | None = None,
    ) -> None:
        self._clock = clock
        self._metrics = metrics.requests
        self._estimates = estimates
        self._bounds = bounds or StreamBounds()
        self._open: dict[str, Stream] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._none_open = asyncio.Event()
        self._none_open.set()

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self,
        entry: Entry,
        *,
        model: str,
        on_cancel: Callable[[Stream], None],
        on_lost: Callable[[Stream], None],
        deadline_us: int | None = None,
    ) -> Stream:
        """Begin to take deliveries for ``entry``, until ``deadline_us`` on the clock of this registry.

        ``on_cancel`` is called once if the stream is cancelled or cut while it is open: the sequence must be stopped.
        ``on_lost`` is called each time that what ran it is gone: it must go on elsewhere, or be cut.
        """

        def cancelled(stream: Stream) -> None:
            self._remove(stream)
            on_cancel(stream)

        stream = Stream(
            entry,
            model=model,
            clock=self._clock,
            on_complete=self._learn,
            on_cancel=cancelled,
            on_lost=on_lost,
        )
        self._open[stream.sequence_id] = stream
        self._none_open.clear()
        if deadline_us is not None:
            left_s = max(0, deadline_us - self._clock()) / 1_000_000
            self._timers[stream.sequence_id] = asyncio.get_running_loop().call_later(left_s, self._expire, stream)
        return stream

    def deliver(self, driver_id: str, deliveries: Iterable[Delivery]) -> tuple[str, ...]:
        """Take what ``driver_id`` has made. The result names the sequences that nobody here wants."""
        now_us = self._clock()
        unwanted: list[str] = []
        for delivery in deliveries:
            stream = self._open.get(delivery.sequence_id)
            if stream is not None:
                if not stream.pass_at_once(driver_id, delivery):
                    self._deliver_one(driver_id, stream, delivery, now_us)
            elif not (delivery.finish or delivery.error):
                unwanted.append(delivery.sequence_id)
        return tuple(unwanted)

    def cut(self, stream: Stream, reason: Reason, message: str) -> None:
        """End ``stream`` with an error, and stop its sequence."""
        stream.cut(Tokens(token_ids=(), error=reason, message=message))

    def continue_as(self, stream: Stream, entry: Entry) -> None:
        """``stream`` is offered again as ``entry``: from now on nothing counts that comes of an earlier claim."""
        del self._open[stream.sequence_id]
        timer = self._timers.pop(stream.sequence_id, None)
        stream.entry, stream.offered_us, stream.driver_id = entry, self._clock(), None
        stream.is_placed = False
        stream.num_moves += 1
        self._open[stream.sequence_id] = stream
        if timer is not None:
            self._timers[stream.sequence_id] = timer

    def discard(self, stream: Stream) -> None:
        """Take no deliveries for ``stream``: it was refused."""
        self._remove(stream)

    def waiting(self) -> tuple[Stream, ...]:
        """Open streams of which nothing has come yet."""
        return tuple(stream for stream in self._open.values() if stream.driver_id is None)

    def driven_by(self, gateway_id: str) -> tuple[Stream, ...]:
        """Open streams whose current claim is a driver of ``gateway_id``."""
        prefix = f"{gateway_id}/"
        return tuple(s for s in self._open.values() if s.driver_id is not None and s.driver_id.startswith(prefix))

    async def all_ended(self) -> None:
        """Wait until no stream is open."""
        await self._none_open.wait()

    def all_open(self) -> tuple[Stream, ...]:
        return tuple(self._open.values())

    def _deliver_one(self, driver_id: str, stream: Stream, delivery: Delivery, now_us: int) -> None:
        if delivery.prompt is not None and stream.learn(delivery.prompt):
            stream.driver_id = driver_id
        fresh = self._fresh(stream, delivery)
        if fresh:
            if stream.next_position == 0:
                self._score(stream, now_us)
            stream.driver_id = driver_id
            scores = delivery.scores
            if scores is not None:
                scores = since(scores, len(delivery.token_ids) - len(fresh))
            stream.put(fresh, now_us, scores)
        if delivery.error:
            if stream.driver_id in {None, driver_id}:
                self._fail(stream, _reason(delivery.error))
        elif delivery.finish and delivery.position + len(delivery.token_ids) == stream.next_position:
            self._learn(stream)
            self._close(stream, Tokens(token_ids=(), finish=delivery.finish, stop_id=delivery.stop_id))
        elif stream.lags_beyond(self._bounds, now_us):
            self.cut(stream, Reason.SLOW_CLIENT, "The client read its tokens too slowly.")

    def _fail(self, stream: Stream, reason: Reason) -> None:
        if reason is Reason.WORKER_LOST:
            stream.lose()
        else:
            self._close(stream, _failed(stream, reason))

    def _fresh(self, stream: Stream, delivery: Delivery) -> tuple[int, ...]:
        """The tokens of ``delivery`` that are the next ones of ``stream``; the others are counted."""
        known = stream.next_position - delivery.position
        fresh = delivery.token_ids[known:] if known >= 0 else ()
        if len(fresh) < len(delivery.token_ids):
            self._metrics.stale_tokens.inc(len(delivery.token_ids) - len(fresh))
        return fresh

    def _score(self, stream: Stream, now_us: int) -> None:
        """Hold what was predicted against what came."""
        ratio = None if stream.forecast is None else stream.forecast.observed_ratio(now_us)
        if ratio is not None:
            self._metrics.wait_ratio.observe(ratio)

    def _learn(self, stream: Stream) -> None:
        self._estimates.note(stream.model, stream.entry.class_name, stream.next_position)

    def _expire(self, stream: Stream) -> None:
        over = exceeded()
        self.cut(stream, over.reason, over.message)

    def _close(self, stream: Stream, end: Tokens) -> None:
        self._remove(stream)
        stream.end(end)

    def _remove(self, stream: Stream) -> None:
        self._open.pop(stream.sequence_id, None)
        timer = self._timers.pop(stream.sequence_id, None)
        if timer is not None:
            timer.cancel()
        if not self._open:
            self._none_open.set()


def _failed(stream: Stream, reason: Reason) -> Tokens:
    if reason is not Reason.SHED:
        return Tokens(token_ids=(), error=reason)
    wait_s = None if stream.forecast is None else stream.forecast.wait_s
    message = "The queue was full, and a request of a better class took its place."
    return Tokens(token_ids=(), error=reason, message=message, retry_after_s=retry_after_s(wait_s))


def _reason(code: str) -> Reason:
    """A peer of another version may know reasons that this gateway does not."""
    try:
        return Reason(code)
    except ValueError:
        return Reason.INTERNAL_ERROR
