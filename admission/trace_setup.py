"""All that a simulation of a trace runs under: the policy, every limit in force, and the cost of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from admission.classes import PriorityClass
from admission.cost import CostModel
from admission.limits import Limits, check_limits
from admission.presets import Preset
from admission.queue import NO_CLASS_RULE, ClassRule, QueueBounds
from admission.record.entries import TimeUnit
from admission.record.simulated import DRIVER, Doorway
from admission.standing import WaitingOrderName
from admission.trace_csv import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSetup:
    """Bounds of the queue in requests and tokens (None: no bound), of a sequence in tokens (None: the pool alone).

    A trace does not say what its clients would have allowed. Each is taken to allow ``max_tokens`` of output, or as
    much as it gave if that is more, but no more than fits; None: exactly what it gave, as if every client had known.

    ``drivers`` has the limits of each of several drivers by its name; none: there is one, with ``limits``. ``rules``
    has what the queue is told of a class, by name; without an entry it is ``NO_CLASS_RULE``.

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
    drivers: tuple[tuple[str, Limits], ...] = ()
    rules: tuple[tuple[str, ClassRule], ...] = ()

    def __post_init__(self) -> None:
        for limits in (self.limits, *[limits for _, limits in self.drivers]):
            check_limits(limits)

    def doorway(self, arrivals: Sequence[Arrival]) -> Doorway:
        """What the door goes by, for a log of the run."""
        classes = {arrival.cls.name: self._ruled(arrival.cls) for arrival in arrivals}
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

    def _ruled(self, cls: PriorityClass) -> PriorityClass:
        """The class with the rules that are in force for it."""
        rule = dict(self.rules).get(cls.name, NO_CLASS_RULE)
        return replace(
            cls,
            max_waiting=rule.max_requests,
            max_waiting_tokens=rule.max_tokens,
            sheds=rule.sheds,
            sheddable=rule.may_be_shed,
            preempts=rule.preempts,
        )

    def all_drivers(self) -> tuple[tuple[str, Limits], ...]:
        """Name and limits of every driver."""
        return self.drivers or ((DRIVER, self.limits),)

    def allowed_output(self, arrival: Arrival) -> int | None:
        """The ``max_tokens`` of such a request; None: what it gives fits neither the context nor, alone, the pool.

        Never more than fits, as a gateway takes a client that asks for no number. The last token is never written.
        """
        prompt_tokens, output_tokens = arrival.prompt_tokens, arrival.output_tokens
        most = self.max_tokens if arrival.known is None else arrival.known.max_tokens
        allowed = output_tokens if most is None else max(most, output_tokens)
        rooms = [] if self.context_length is None else [self.context_length]
        for _, limits in self.all_drivers():
            if limits.kv_blocks is not None:
                rooms.append(limits.kv_blocks * limits.block_size + 1)
        allowed = min(allowed, *(room - prompt_tokens for room in rooms)) if rooms else allowed
        return allowed if allowed >= output_tokens else None
