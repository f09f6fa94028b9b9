"""What an iteration costs: the clock of a simulation.

The time of an iteration is linear in what it does::

    base + decode tokens * decode + prefill tokens * prefill + KV tokens read / 1000 * kv + tokens copied * swap

*KV tokens read* are, for each sequence that decodes, all the tokens that it attends to, and for each chunk those up to
its end. A constant cost is one in which all but ``base`` are 0. Coefficients are whole nanoseconds and times whole
microseconds, so that a simulation does not depend on rounding.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one iteration does, in tokens. ``swapped_tokens`` come back from host memory, where they had been copied."""

    decode_tokens: int = 0
    prefill_tokens: int = 0
    kv_tokens: int = 0
    swapped_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """See the module. Nanoseconds, all at least 0: per iteration, token, 1,000 tokens of KV read, token copied."""

    base_ns: int
    decode_ns: int = 0
    prefill_ns: int = 0
    kv_ns_per_1k: int = 0
    swap_ns: int = 0

    def iteration_us(self, work: Work) -> int:
        """Microseconds, at least 1: time moves on. What is swapped in had been swapped out, at the same cost."""
        total_ns = (
            self.base_ns
            + work.decode_tokens * self.decode_ns
            + work.prefill_tokens * self.prefill_ns
            + work.kv_tokens * self.kv_ns_per_1k // 1000
            + 2 * work.swapped_tokens * self.swap_ns
        )
        return max(1, total_ns // 1000)
