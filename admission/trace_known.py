"""What the log of a live gateway knows of a request, and an arrival trace does not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Leave(StrEnum):
    """Why a request ended before its answer was whole, by the names that the live gateway has for it."""

    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline_exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """``max_tokens`` and ``expected_tokens`` are those of the offer; ``block_hashes`` are for prefix reuse.

    At ``leaves_us`` its client is gone, or its deadline has passed, if it has not been answered by then (None: it waits
    for ever). ``deadline_us`` is for an order that goes by deadlines, which are known only where they passed or are the
    default of the class.
    """

    max_tokens: int
    expected_tokens: int
    block_hashes: tuple[bytes, ...] = ()
    deadline_us: int | None = None
    leaves_us: int | None = None
    leaves: Leave = Leave.CANCELLED
