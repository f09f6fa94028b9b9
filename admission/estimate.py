"""How much output to expect of a request: a recent quantile of what its kind has given.

Memory is set aside, and the tokens of the queue are counted, by expected output: by ``max_tokens`` both would be mostly
empty, since most clients allow far more than they get. The estimate is fixed when a request arrives; what outgrows it
is no error, only admitted on a promise that was too small.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

WINDOW = 512
"""Ended sequences that count: a minute or so of a busy class, and not so few that one odd answer moves the quantile."""

LEAST_SAMPLES = 32
"""With fewer, ``COLD_TOKENS`` are expected: a guess from a handful would be worse than one from none."""

COLD_TOKENS = 512
"""Expected before there are samples, if the request allows as many. Longer than most answers of a chat (the mean of
ShareGPT's is below 450 tokens), and far below what clients allow who do not think about it: a burst that meets a cold
gateway would otherwise run with a few sequences in an empty pool."""

QUANTILE_PERCENT = 60
"""Six of ten end within their expectation. What the others outgrow finds room in what is left by those that end early
or have only begun: on ShareGPT's lengths nobody was preempted, and a quarter more was served than with 90."""


class OutputEstimate:
    """Output lengths in tokens of the last ``WINDOW`` sequences of one kind (one model and class)."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def note(self, output_tokens: int) -> None:
        """A sequence has ended by itself after so many output tokens. Cancelled ones say nothing: leave them out."""
        if output_tokens < 0:
            raise ValueError("output_tokens must be at least 0")
        if len(self._recent) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(output_tokens)
        insort(self._sorted, output_tokens)

    def expected(self, max_tokens: int) -> int:
        """Output tokens to expect of a new sequence that may give ``max_tokens``: 1 to ``max_tokens``."""
        if len(self._sorted) < LEAST_SAMPLES:
            return min(max_tokens, COLD_TOKENS)
        rank = -(-len(self._sorted) * QUANTILE_PERCENT // 100)
        return max(1, min(max_tokens, self._sorted[rank - 1]))
