"""Who is preempted: pure functions over candidates.

A victim for a *slot* is asked for by a better newcomer, through the store: always the sequence of the lowest class with
the most remaining work. A victim for *KV* is asked for by a running sequence that needs a block: that is a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A running sequence that may lose its place. ``number`` grows with every start: the newest has the greatest.

    ``computed_tokens`` is the work that is lost if its KV is dropped.
    """

    sequence_id: str
    rank: int
    number: int
    computed_tokens: int


KvVictim = Callable[[Sequence[Candidate]], Candidate]


def slot_victim_key(rank: int, remaining_tokens: int, number: int) -> tuple[int, int, int]:
    """The greatest key gives way: the lowest class, then the most remaining work, then who started first."""
    return (rank, remaining_tokens, -number)


def newest(candidates: Sequence[Candidate]) -> Candidate:
    """The sequence that started last."""
    return max(candidates, key=lambda candidate: candidate.number)


def lowest_class_newest(candidates: Sequence[Candidate]) -> Candidate:
    """The lowest class first, in it the sequence that started last."""
    return max(candidates, key=lambda candidate: (candidate.rank, candidate.number))


def least_lost_work(candidates: Sequence[Candidate]) -> Candidate:
    """The lowest class first, in it the sequence whose recomputation costs least, among equals the newest."""
    return min(candidates, key=lambda candidate: (-candidate.rank, candidate.computed_tokens, -candidate.number))
