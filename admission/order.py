"""Waiting orders: pure functions from a sequence to its sort key. The least key starts first.

They order what has been handed to this scheduler and has no slot yet; what waits in the store is ordered there. Equal
keys keep the order in which the sequences were handed over. A key is fixed at arrival, so that nothing is sorted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from admission.events import SequenceSpec

WaitingOrder = Callable[[SequenceSpec], tuple[int, ...]]


def as_claimed(sequence: SequenceSpec) -> tuple[int, ...]:  # noqa: ARG001 - a waiting order that looks at nothing
    """The order of the store, untouched."""
    return ()


def fcfs(sequence: SequenceSpec) -> tuple[int, ...]:
    """First come, first served, whatever the class. One that was preempted keeps its arrival, and so goes first."""
    return (sequence.arrival_us,)


def sjf(sequence: SequenceSpec) -> tuple[int, ...]:
    """Shortest job first: least expected work, prompt and output, in tokens. A long one may wait for ever."""
    return (sequence.prompt_tokens + min(sequence.expected_tokens, sequence.max_tokens), sequence.arrival_us)


def priority(sequence: SequenceSpec) -> tuple[int, ...]:
    """Strict: a better class always first, in it first come. A lower class may wait for ever."""
    return (sequence.rank, sequence.arrival_us)


def aging(sequence: SequenceSpec) -> tuple[int, ...]:
    """Least waiting score first: arrival less the head start of the class, so that nobody waits for ever."""
    return (sequence.score,)


def edf(sequence: SequenceSpec) -> tuple[int, ...]:
    """Earliest deadline first; those without one after all others, first come."""
    if sequence.deadline_us is None:
        return (1, sequence.arrival_us)
    return (0, sequence.deadline_us, sequence.arrival_us)


ORDERS: Mapping[str, WaitingOrder] = {order.__name__: order for order in (fcfs, sjf, priority, aging, edf)}
"""The orders that can be chosen by name."""
