"""What a driver has made for one remote origin, kept until the origin surely has it or wants it no more.

TCP tells a sender nothing about what a broken connection still delivered. So the link to an origin keeps the output of
its sequences, and after each reconnect sends all of it once more; the origin drops what it has. While the link is down
the journal is the queue: output goes nowhere else.

An unfinished sequence is kept until it finishes or is released. A finished one is kept for ``KEEP_FINISHED_US`` more,
and of those the latest ``MOST_FINISHED``: a link that breaks later than that lost nothing of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.clock import Clock
from workers.wire import Delivery

KEEP_FINISHED_US = 30_000_000
MOST_FINISHED = 1024


@dataclass(slots=True, kw_only=True)
class _Output:
    driver_id: str
    position: int
    token_ids: list[int] = field(default_factory=list)


class Journal:
    """Output of sequences by id. Positions follow one another without a gap, as the driver makes them."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._unfinished: dict[str, _Output] = {}
        self._finished: OrderedDict[str, tuple[int, str, Delivery]] = OrderedDict()

    def is_empty(self) -> bool:
        """Whether there is nothing that the origin may lack."""
        self._forget_old()
        return not (self._unfinished or self._finished)

    def add(self, driver_id: str, delivery: Delivery) -> None:
        output = self._unfinished.get(delivery.sequence_id)
        if output is None or output.position + len(output.token_ids) != delivery.position:
            output = _Output(driver_id=driver_id, position=delivery.position)
            self._unfinished[delivery.sequence_id] = output
        output.token_ids.extend(delivery.token_ids)
        if delivery.finish or delivery.error:
            self._finish(driver_id, delivery, output)

    def release(self, sequence_id: str) -> None:
        """The origin wants no more of it, or another driver continues it."""
        self._unfinished.pop(sequence_id, None)

    def replay(self) -> Iterator[tuple[str, Delivery]]:
        """Everything kept, with the driver that made it."""
        self._forget_old()
        for _, driver_id, delivery in self._finished.values():
            yield driver_id, delivery
        for sequence_id, output in self._unfinished.items():
            yield (
                output.driver_id,
                Delivery(
                    sequence_id=sequence_id,
                    position=output.position,
                    token_ids=tuple(output.token_ids),
                    finish="",
                    error="",
                ),
            )

    def _finish(self, driver_id: str, delivery: Delivery, output: _Output) -> None:
        del self._unfinished[delivery.sequence_id]
        whole = Delivery(
            sequence_id=delivery.sequence_id,
            position=output.position,
            token_ids=tuple(output.token_ids),
            finish=delivery.finish,
            error=delivery.error,
        )
        self._finished[delivery.sequence_id] = (self._clock(), driver_id, whole)
        self._forget_old()

    def _forget_old(self) -> None:
        oldest_us = self._clock() - KEEP_FINISHED_US
        while self._finished:
            finished_us = next(iter(self._finished.values()))[0]
            if finished_us >= oldest_us and len(self._finished) <= MOST_FINISHED:
                return
            self._finished.popitem(last=False)
