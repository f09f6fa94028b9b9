"""Where requests stand under each order: pure arithmetic, exact in the doubles that Redis sorts by."""

from __future__ import annotations

import pytest

from admission.classes import BATCH, INTERACTIVE, SECOND_US, PriorityClass
from admission.standing import COMMON_LANE, MAX_RANK, TEN_YEARS_US, Standing, WaitingOrderName, standing

ARRIVAL_US = 2**51  # in 2041
EXACT = 2**53


def stands(
    order: WaitingOrderName,
    *,
    cls: PriorityClass = BATCH,
    tokens: int = 10,
    deadline_in_us: int | None = None,
) -> Standing:
    return standing(order, cls=cls, tenant="acme", tokens=tokens, deadline_in_us=deadline_in_us)


def of_rank(rank: int) -> PriorityClass:
    return PriorityClass(name=f"rank {rank}", rank=rank, head_start_us=0, service_tier="")


def test_first_come_first_served_knows_no_class() -> None:
    """The score is the arrival, whoever asks."""
    assert stands(WaitingOrderName.FCFS, cls=INTERACTIVE).score(7) == 7


def test_aging_gives_a_class_its_head_start_and_tenants_their_turns() -> None:
    """Within the class tenants share; between classes age decides."""
    stood = stands(WaitingOrderName.AGING, cls=INTERACTIVE)
    assert stood.score(100 * SECOND_US) == 70 * SECOND_US
    assert (stood.lane, stood.account) == ("interactive", "acme")


def test_the_shortest_job_is_told_by_tokens_alone() -> None:
    """Its score must not depend on when it came, else a short one could not overtake."""
    assert stands(WaitingOrderName.SJF, tokens=25).score(ARRIVAL_US) == 25


def test_a_better_rank_goes_before_whatever_came_in_ten_years() -> None:
    """That is what strict means."""
    first, second = (stands(WaitingOrderName.PRIORITY, cls=of_rank(rank)) for rank in (0, 1))
    assert first.score(ARRIVAL_US + TEN_YEARS_US - 1) < second.score(ARRIVAL_US)


def test_every_score_is_exact_as_a_double() -> None:
    """Two scores that round to one would go in the wrong order, in Redis only."""
    last = stands(WaitingOrderName.PRIORITY, cls=of_rank(MAX_RANK)).score(ARRIVAL_US)
    assert ARRIVAL_US < last < EXACT
    with pytest.raises(ValueError, match="has rank 22; the order 'priority' keeps 22 apart"):
        stands(WaitingOrderName.PRIORITY, cls=of_rank(MAX_RANK + 1))


def test_the_earliest_deadline_goes_first_and_none_last() -> None:
    """One without a deadline, or with an absurd one, waits behind all others, by arrival."""
    soon = stands(WaitingOrderName.EDF, deadline_in_us=SECOND_US).score(9 * SECOND_US)
    late = stands(WaitingOrderName.EDF, deadline_in_us=5 * SECOND_US).score(6 * SECOND_US)
    absurd, never = (stands(WaitingOrderName.EDF, deadline_in_us=left).score(0) for left in (2**60, None))
    assert soon < late < absurd == never < EXACT


def test_the_least_served_tenant_goes_first_whatever_the_class() -> None:
    """One lane, so that turns are taken between all classes."""
    stood = stands(WaitingOrderName.LEAST_SERVED, cls=INTERACTIVE)
    assert (stood.score(7), stood.lane, stood.account) == (7, COMMON_LANE, "acme")


@pytest.mark.parametrize("order", [order for order in WaitingOrderName if order not in ("aging", "least-served")])
def test_under_the_other_orders_tenants_make_no_difference(order: WaitingOrderName) -> None:
    """Turns would break the order that was asked for."""
    assert stands(order).account == ""
