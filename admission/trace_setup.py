"""All that a simulation of a trace runs under: the policy, every limit in force, and the cost of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from admission.cost import CostModel
from admission.limits import Limits
from admission.presets import Preset
from admission.queue import QueueBounds
from admission.record.entries import TimeUnit
from admission.record.simulated import Doorway
from admission.scheduler import check_limits
from admission.standing import WaitingOrderName
from admission.trace_csv import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSetup:
    """Bounds of the queue in requests and tokens (None: no bound), of a sequence in tokens (None: the pool alone).

    A trace does not say what its clients would have allowed. Each is taken to allow ``max_tokens`` of output, or as
    much as it gave if that is more, but no more than fits; None: exactly what it gave, as if every client had known.

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

    def doorway(self, arrivals: Sequence[Arrival]) -> Doorway:
        """What the door goes by, for a log of the run."""
        classes = {arrival.cls.name: arrival.cls for arrival in arrivals}
        return Doorway(
            classes=tuple(sorted(classes.values(), key=lambda cls: (cls.rank, cls.name))),
            bounds=QueueBounds(
                max_requests=len(arrivals) if self.max_queue is None else self.max_queue,
                max_tokens=self.queue_tokens,
                max_passes=self.max_passes,
            ),
            waiting_order=self.queue_order,
            unit=TimeUnit.MICROSECONDS,
        )

    def allowed_output(self, prompt_tokens: int, output_tokens: int) -> int | None:
        """The ``max_tokens`` of such a request; None: what it gives fits neither the context nor, alone, the pool.

        Never more than fits, as a gateway takes a client that asks for no number. The last token is never written.
        """
        allowed = output_tokens if self.max_tokens is None else max(self.max_tokens, output_tokens)
        rooms = [] if self.context_length is None else [self.context_length]
        if self.limits.kv_blocks is not None:
            rooms.append(self.limits.kv_blocks * self.limits.block_size + 1)
        allowed = min(allowed, *(room - prompt_tokens for room in rooms)) if rooms else allowed
        return allowed if allowed >= output_tokens else None
