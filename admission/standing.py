"""Where a request stands in the waiting queue: its score, its lane, and the account on which what it gets is charged.

The store knows no orders by name. It sorts by a *score* that is fixed at the first offer, the least first; entries of
one *lane* whose *accounts* differ take turns by what each account has been given. An order by name is a way to fill in
these three:

| order          | score                                       | lane      | account    | may starve                |
|----------------|---------------------------------------------|-----------|------------|---------------------------|
| `fcfs`         | arrival                                     | the class | one        | nobody                    |
| `sjf`          | prompt and expected output, in tokens       | the class | one        | long requests             |
| `priority`     | arrival, ten years later per rank           | the class | one        | lower classes             |
| `aging`        | arrival less the head start of the class    | the class | the tenant | nobody                    |
| `edf`          | deadline; without one, arrival + ten years  | the class | one        | those without a deadline  |
| `least-served` | arrival                                     | one       | the tenant | nobody                    |

Lanes are merged by score, so where a lane has one account it makes no difference to the order. Arrival is the store's
own clock, which the caller does not know: scores that depend on it are given as a head start on it. All gateways of a
cluster use the same order.

Ten years outlast every wait, and stay exact: scores are kept as doubles, exact below 2**53. An arrival is below 2**51
microseconds until 2041; ``MAX_RANK`` times ten years later it is below 2**53 still.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from admission.classes import SECOND_US, PriorityClass

TEN_YEARS_US = 10 * 365 * 24 * 3600 * SECOND_US

MAX_RANK = 21
"""The greatest rank under ``priority``: ``2**51 + MAX_RANK * TEN_YEARS_US < 2**53``."""

COMMON_LANE = "all"
"""The lane of an order that lets tenants take turns whatever their class."""


class WaitingOrderName(StrEnum):
    """The orders in which requests can wait in the store."""

    FCFS = "fcfs"
    SJF = "sjf"
    PRIORITY = "priority"
    AGING = "aging"
    EDF = "edf"
    LEAST_SERVED = "least-served"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStart:
    """The score is the arrival less ``us``; a negative head start puts an entry behind its arrival."""

    us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedScore:
    """The score is ``score``, whenever the entry arrives."""

    score: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the store sorts by. The accounts of a lane take turns; an empty account is one like any other."""

    scored_by: HeadStart | FixedScore
    lane: str
    account: str = ""

    def score(self, arrival_us: int) -> int:
        match self.scored_by:
            case HeadStart(us=us):
                return arrival_us - us
            case FixedScore(score=score):
                return score


def standing(
    order: WaitingOrderName, *, cls: PriorityClass, tenant: str, tokens: int, deadline_in_us: int | None
) -> Standing:
    """Where a request of ``cls`` stands. ``tokens``: prompt and expected output; ``deadline_in_us``: time left to it.

    ``ValueError`` when the rank is beyond ``MAX_RANK`` under ``priority``.
    """
    match order:
        case WaitingOrderName.FCFS:
            return Standing(scored_by=HeadStart(us=0), lane=cls.name)
        case WaitingOrderName.SJF:
            return Standing(scored_by=FixedScore(score=tokens), lane=cls.name)
        case WaitingOrderName.PRIORITY:
            return Standing(scored_by=_behind_by_rank(cls), lane=cls.name)
        case WaitingOrderName.AGING:
            return Standing(scored_by=HeadStart(us=cls.head_start_us), lane=cls.name, account=tenant)
        case WaitingOrderName.EDF:
            left_us = TEN_YEARS_US if deadline_in_us is None else min(deadline_in_us, TEN_YEARS_US)
            return Standing(scored_by=HeadStart(us=-left_us), lane=cls.name)
        case WaitingOrderName.LEAST_SERVED:
            return Standing(scored_by=HeadStart(us=0), lane=COMMON_LANE, account=tenant)


def older(standing: Standing, by_us: int) -> Standing:
    """The same standing for an entry that is offered again ``by_us`` later: its score is what it was."""
    match standing.scored_by:
        case HeadStart(us=us):
            return replace(standing, scored_by=HeadStart(us=us + by_us))
        case FixedScore():
            return standing


def _behind_by_rank(cls: PriorityClass) -> HeadStart:
    if cls.rank > MAX_RANK:
        raise ValueError(f"class {cls.name!r} has rank {cls.rank}; the order 'priority' keeps {MAX_RANK + 1} apart")
    return HeadStart(us=-cls.rank * TEN_YEARS_US)
