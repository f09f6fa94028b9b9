"""Waiting longer after each failure, never longer than a stated time, and not in step with others."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Pauses of ``first_s``, then twice as long each time up to ``most_s``; half of each is random."""

    def __init__(self, *, first_s: float = 0.1, most_s: float = 2.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def reset(self) -> None:
        """Something worked: begin again with the shortest pause."""
        self._next_s = self._first_s

    async def pause(self) -> None:
        pause_s = self._next_s * random.uniform(0.5, 1.0)  # noqa: S311 (spreads retries, guards nothing)
        self._next_s = min(self._next_s * 2, self._most_s)
        await asyncio.sleep(pause_s)
