"""All that a simulation of a trace runs under: the policy, every limit in force, and the cost of an iteration."""

from __future__ import annotations

from dataclasses import dataclass

from admission.cost import CostModel
from admission.limits import Limits
from admission.presets import Preset
from admission.scheduler import check_limits
from admission.standing import WaitingOrderName


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSetup:
    """Bounds of the queue in requests and tokens (None: no bound), of a sequence in tokens (None: the pool alone).

    A trace does not say what its clients would have allowed. Each is taken to allow ``max_tokens`` of output, or as
    much as it gave if that is more; None: exactly what it gave, as if every client had known.

    Raises ``ValueError`` for limits under which nothing, or not every decoding sequence, could run.
    """

    preset: Preset
    limits: Limits
    cost: CostModel
    queue_order: WaitingOrderName
    max_queue: int | None
    queue_tokens: int | None
    max_passes: int
    context_length: int | None
    max_tokens: int | None

    def __post_init__(self) -> None:
        check_limits(self.limits)

    def allowed_output(self, output_tokens: int) -> int:
        """The ``max_tokens`` of a request that gives so many."""
        return output_tokens if self.max_tokens is None else max(self.max_tokens, output_tokens)

    def fits_ever(self, prompt_tokens: int, max_tokens: int) -> bool:
        """Whether such a request fits the context and, alone, the pool. The last token is never written."""
        if self.context_length is not None and prompt_tokens + max_tokens > self.context_length:
            return False
        limits = self.limits
        return limits.kv_blocks is None or prompt_tokens + max_tokens - 1 <= limits.kv_blocks * limits.block_size
