"""How fast the cluster works, as this gateway sees it, and how long what waits will therefore take.

The measure is tokens (prompt and output) of this gateway's own requests over the last seconds. With several gateways it
is a part of the whole, so the predicted time errs to the long side: clients come back late rather than too soon.
"""

from __future__ import annotations

from collections import deque

from gateway.clock import Clock

WINDOW_US = 10_000_000
_BUCKET_US = 500_000

LEAST_TOKENS_PER_S = 50.0
"""What a cluster is assumed to do at least: after a quiet time nothing is measured."""

LEAST_RETRY_S = 1.0
MOST_RETRY_S = 60.0


class Throughput:
    """Tokens per second over a sliding window of ``WINDOW_US``."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._buckets: deque[tuple[int, int]] = deque()

    def note(self, num_tokens: int) -> None:
        start_us = self._clock() // _BUCKET_US * _BUCKET_US
        if self._buckets and self._buckets[-1][0] == start_us:
            self._buckets[-1] = (start_us, self._buckets[-1][1] + num_tokens)
        else:
            self._buckets.append((start_us, num_tokens))
            self._forget_old()

    def tokens_per_s(self) -> float:
        """At least ``LEAST_TOKENS_PER_S``."""
        self._forget_old()
        if not self._buckets:
            return LEAST_TOKENS_PER_S
        spent_us = max(self._clock() - self._buckets[0][0], _BUCKET_US)
        total = sum(num_tokens for _, num_tokens in self._buckets)
        return max(total * 1_000_000 / spent_us, LEAST_TOKENS_PER_S)

    def drain_s(self, waiting_tokens: int) -> float:
        """How long ``waiting_tokens`` will take, between ``LEAST_RETRY_S`` and ``MOST_RETRY_S``."""
        return min(max(waiting_tokens / self.tokens_per_s(), LEAST_RETRY_S), MOST_RETRY_S)

    def _forget_old(self) -> None:
        oldest_us = self._clock() - WINDOW_US
        while self._buckets and self._buckets[0][0] < oldest_us:
            self._buckets.popleft()
