"""What an explanation is made of: sentences with their time, in the order in which things happen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a sentence is about. Of what happened at the same time, the earlier kind comes first."""

    OFFERED = "offered"
    PAUSED = "paused"
    CLAIMED = "claimed"
    STARTED = "started"
    PREFILL = "prefill"
    DECODE = "decode"
    GAP = "gap"
    WITHDRAWN = "withdrawn"
    CANCELLED = "cancelled"
    ENDED = "ended"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """``first`` to ``last``: iterations of ``driver_id``; None: it is of the queue. ``at_us`` is when it began."""

    at_us: int
    kind: Kind
    text: str
    driver_id: str | None = None
    first: int | None = None
    last: int | None = None


_PLACES = {kind: place for place, kind in enumerate(Kind)}


def in_order(sentences: Iterable[Sentence]) -> tuple[Sentence, ...]:
    return tuple(sorted(sentences, key=lambda sentence: (sentence.at_us, _PLACES[sentence.kind])))


def counted(number: int, noun: str) -> str:
    """``1 token``, ``2,000 tokens``."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"
