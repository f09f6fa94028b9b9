"""Deadlines: until when an answer is of use, from the receipt of its request to its last token.

The smallest of three counts: the default of the request's class, the header ``x-request-deadline-ms`` and the body's
``deadline_ms``. It comes as a time span and is a point on this gateway's monotonic clock from then on: no clock of
another machine, and no wall clock, has a part in it.

Until the request is in the queue, ``Deadline.held`` ends it on time; afterwards the stream's own timer does
(``gateway.streams``), wherever the sequence is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from gateway.clock import Clock
from gateway.errors import Reason, Refused

DEADLINE_HEADER = "x-request-deadline-ms"

MOST_DEADLINE_MS = 24 * 3600 * 1000
"""A day: far beyond any answer, and small enough for every timer."""

_NUMBER = re.compile(r"[0-9]{1,8}")


def header_deadline_ms(values: Iterable[str]) -> int | None:
    """The deadline in the header's ``values``; None when there are none. Raises ``Refused`` when it is no good one."""
    values = tuple(values)
    if not values:
        return None
    text = ", ".join(values)
    deadline_ms = int(text) if _NUMBER.fullmatch(text) else 0
    if not 1 <= deadline_ms <= MOST_DEADLINE_MS:
        message = f"The header '{DEADLINE_HEADER}' should be a whole number from 1 to {MOST_DEADLINE_MS}."
        raise Refused(Reason.INVALID_VALUE, message, param=DEADLINE_HEADER)
    return deadline_ms


def exceeded() -> Refused:
    return Refused(Reason.DEADLINE_EXCEEDED, "The deadline passed before the answer was complete.")


class Deadline:
    """The deadline of a request that is received now. It only ever becomes earlier, as its parts become known."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._received_us = clock()
        self._limit = asyncio.timeout(None)
        self._is_held = False
        self.at_us: int | None = None

    def within_us(self, span_us: int | None) -> None:
        """End the request at most ``span_us`` after its receipt; None says nothing."""
        if span_us is None:
            return
        at_us = self._received_us + span_us
        self.at_us = at_us if self.at_us is None else min(self.at_us, at_us)
        if self._is_held:
            self._arm()

    def within_ms(self, span_ms: int | None) -> None:
        self.within_us(None if span_ms is None else 1_000 * span_ms)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Interrupt the block, once, and raise ``Refused`` when the deadline passes in it."""
        try:
            async with self._limit:
                self._is_held = True
                self._arm()
                yield
        except TimeoutError:
            if not self._limit.expired():
                raise
            raise exceeded() from None
        finally:
            self._is_held = False

    def _arm(self) -> None:
        if self.at_us is not None:
            left_s = (self.at_us - self._clock()) / 1_000_000
            self._limit.reschedule(asyncio.get_running_loop().time() + left_s)
