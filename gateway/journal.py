"""What a driver has made for one remote origin, kept until the origin surely has it or wants it no more.

TCP tells a sender nothing about what a broken connection still delivered. So the link to an origin keeps the output of
its sequences, and after each reconnect sends all of it once more; the origin drops what it has. While the link is down
the journal is the queue: output goes nowhere else.

An unfinished sequence is kept until it finishes or is released. A finished one is kept for ``KEEP_FINISHED_US`` more,
and of those the latest ``MOST_FINISHED`` (fewer of those with log-probabilities): a link that breaks later than that
lost nothing of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.clock import Clock
from gateway.scores import between, joined, values_of
from workers.wire import Delivery, PromptNews, Scores

KEEP_FINISHED_US = 30_000_000
MOST_FINISHED = 1024

MOST_FINISHED_VALUES = 1 << 20
"""Log-probabilities in what is finished: some 70 MB."""

SCORED_AT_ONCE = 1024
"""Tokens of one delivery that is sent again with log-probabilities: at most 254 kB."""


@dataclass(slots=True, kw_only=True)
class _Output:
    """``scores`` has those of all ``token_ids``, in runs as they came, or is empty."""

    sequence_id: str
    driver_id: str
    position: int
    token_ids: list[int] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    prompt: list[PromptNews] = field(default_factory=list)
    num_values: int = 0
    finish: str = ""
    stop_id: int | None = None
    error: str = ""
    finished_us: int = 0

    def add(self, delivery: Delivery) -> None:
        self.token_ids.extend(delivery.token_ids)
        self.finish, self.stop_id, self.error = delivery.finish, delivery.stop_id, delivery.error
        if delivery.scores is not None:
            self.scores.append(delivery.scores)
        if delivery.prompt is not None:
            self.prompt.append(delivery.prompt)
        self.num_values += values_of(delivery)

    def replay(self) -> Iterator[Delivery]:
        """All of it once more, in as few deliveries as may be. What is told of the prompt comes first."""
        for news in self.prompt:
            yield self._part(0, 0, prompt=news)
        length = len(self.token_ids)
        if not self.scores:
            yield self._part(0, length)
            return
        scores = joined(self.scores)
        for start in range(0, length, SCORED_AT_ONCE):
            stop = min(start + SCORED_AT_ONCE, length)
            yield self._part(start, stop, scores=between(scores, start, stop))

    def _part(
        self, start: int, stop: int, *, scores: Scores | None = None, prompt: PromptNews | None = None
    ) -> Delivery:
        """Tokens ``start`` to ``stop``. How it ended comes with the last of them."""
        is_last = prompt is None and stop == len(self.token_ids)
        return Delivery(
            sequence_id=self.sequence_id,
            position=self.position + start,
            token_ids=tuple(self.token_ids[start:stop]),
            finish=self.finish if is_last else "",
            stop_id=self.stop_id if is_last else None,
            error=self.error if is_last else "",
            scores=scores,
            prompt=prompt,
        )


class Journal:
    """Output of sequences by id. Positions follow one another without a gap, as the driver makes them."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._unfinished: dict[str, _Output] = {}
        self._finished: OrderedDict[str, _Output] = OrderedDict()
        self._finished_values = 0

    def is_empty(self) -> bool:
        """Whether there is nothing that the origin may lack."""
        self._forget_old()
        return not (self._unfinished or self._finished)

    def add(self, driver_id: str, delivery: Delivery) -> None:
        output = self._unfinished.get(delivery.sequence_id)
        if output is None or output.position + len(output.token_ids) != delivery.position:
            output = _Output(sequence_id=delivery.sequence_id, driver_id=driver_id, position=delivery.position)
            self._unfinished[delivery.sequence_id] = output
        output.add(delivery)
        if delivery.finish or delivery.error:
            self._finish(output)

    def release(self, sequence_id: str) -> None:
        """The origin wants no more of it, or another driver continues it."""
        self._unfinished.pop(sequence_id, None)

    def replay(self) -> Iterator[tuple[str, Delivery]]:
        """Everything kept, with the driver that made it. More may be added meanwhile: it may be in it or not."""
        self._forget_old()
        for output in (*self._finished.values(), *self._unfinished.values()):
            for delivery in output.replay():
                yield output.driver_id, delivery

    def _finish(self, output: _Output) -> None:
        del self._unfinished[output.sequence_id]
        self._forget(self._finished.pop(output.sequence_id, None))
        output.finished_us = self._clock()
        self._finished[output.sequence_id] = output
        self._finished_values += output.num_values
        self._forget_old()

    def _forget_old(self) -> None:
        oldest_us = self._clock() - KEEP_FINISHED_US
        while self._finished:
            is_old = next(iter(self._finished.values())).finished_us < oldest_us
            if not is_old and len(self._finished) <= MOST_FINISHED and self._finished_values <= MOST_FINISHED_VALUES:
                return
            self._forget(self._finished.popitem(last=False)[1])

    def _forget(self, output: _Output | None) -> None:
        self._finished_values -= 0 if output is None else output.num_values
