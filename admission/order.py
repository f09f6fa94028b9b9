"""Waiting orders: pure functions from a sequence to its sort key. The least key starts first.

They order what has been handed to this scheduler and has no slot yet; what waits in the store is ordered there. Equal
keys keep the order in which the sequences were handed over.
"""

from __future__ import annotations

from collections.abc import Callable

from admission.events import SequenceSpec

WaitingOrder = Callable[[SequenceSpec], tuple[int, ...]]


def as_claimed(sequence: SequenceSpec) -> tuple[int, ...]:  # noqa: ARG001 - a waiting order that looks at nothing
    """The order of the store, untouched."""
    return ()


def by_score(sequence: SequenceSpec) -> tuple[int, ...]:
    """Aging: least waiting score first (arrival less the head start of the class)."""
    return (sequence.score,)
