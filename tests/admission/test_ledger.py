"""The ledger of KV blocks: every block has one place, and promises are kept."""

from __future__ import annotations

import pytest

from admission.blocks import LedgerError
from admission.ledger import Holding, Ledger, Promise


def make_ledger(num_blocks: int | None = 10) -> Ledger:
    return Ledger(num_blocks=num_blocks, block_size=4)


def open_holding(ledger: Ledger, *, now: int, in_all: int, promise: Promise = Promise.EXPECTED) -> Holding:
    return ledger.open(blocks_now=now, blocks_in_all=in_all, promise=promise)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_tokens_round_up_to_blocks(tokens: int, blocks: int) -> None:
    """A block that is begun is taken."""
    assert make_ledger().blocks_for(tokens) == blocks


def test_blocks_come_and_go_and_the_books_balance() -> None:
    """A leaked block is lost until the worker restarts."""
    ledger = make_ledger()
    first, second = open_holding(ledger, now=3, in_all=3), open_holding(ledger, now=2, in_all=4)
    assert (first.blocks, second.blocks) == ([0, 1, 2], [3, 4])
    assert (ledger.in_use, ledger.room) == (5, 3)
    ledger.check([first, second])
    ledger.retire(first)
    assert (ledger.in_use, ledger.returning) == (5, 3)
    ledger.close(first)
    assert (ledger.in_use, ledger.returning) == (2, 0)
    ledger.check([second])


def test_what_was_freed_last_is_handed_out_last() -> None:
    """The order is fixed, and freed contents live as long as they can."""
    ledger = make_ledger(4)
    holding = open_holding(ledger, now=2, in_all=2)
    ledger.retire(holding)
    ledger.close(holding)
    assert open_holding(ledger, now=4, in_all=4).blocks == [2, 3, 0, 1]


def test_expected_blocks_are_kept_from_admission_but_not_from_running_sequences() -> None:
    """Expectations can be wrong: whoever runs may use what nobody uses yet."""
    ledger = make_ledger()
    modest = open_holding(ledger, now=2, in_all=2)
    open_holding(ledger, now=1, in_all=8)
    assert not ledger.can_open(blocks=1, spare=0)
    assert ledger.can_grow(modest)
    ledger.grow(modest)
    assert ledger.room == -1


def test_firm_blocks_are_out_of_reach_for_others() -> None:
    """A sequence that was promised its maximum must never run out."""
    ledger = make_ledger()
    firm = open_holding(ledger, now=1, in_all=8, promise=Promise.FIRM)
    other = open_holding(ledger, now=2, in_all=2)
    assert not ledger.can_grow(other)
    with pytest.raises(LedgerError):
        ledger.grow(other)
    for _ in range(7):
        ledger.grow(firm)
    assert not ledger.can_grow(firm)
    ledger.check([firm, other])


def test_the_watermark_is_spared() -> None:
    """Room to grow is what keeps admission from ending in preemption."""
    ledger = make_ledger()
    assert ledger.can_open(blocks=8, spare=2)
    assert not ledger.can_open(blocks=9, spare=2)


def test_a_block_is_not_released_twice() -> None:
    """A block with two owners mixes two texts."""
    ledger = make_ledger()
    holding = open_holding(ledger, now=1, in_all=1)
    with pytest.raises(LedgerError):
        ledger.close(holding)
    ledger.retire(holding)
    with pytest.raises(LedgerError):
        ledger.retire(holding)
    with pytest.raises(LedgerError):
        ledger.grow(holding)
    forged = Holding(promise=Promise.EXPECTED, admitted_for=0, blocks=list(holding.blocks), retired=True)
    ledger.close(holding)
    with pytest.raises(LedgerError):
        ledger.close(forged)


def test_the_check_finds_a_holding_that_is_missing() -> None:
    """The check is what tests and idle times rely on."""
    ledger = make_ledger()
    open_holding(ledger, now=1, in_all=1)
    with pytest.raises(LedgerError, match="blocks held"):
        ledger.check([])


def test_the_check_finds_a_promise_that_is_off() -> None:
    """A promise that outlives its sequence shrinks the pool for good."""
    ledger = make_ledger()
    holding = open_holding(ledger, now=1, in_all=3)
    holding.admitted_for = 2
    with pytest.raises(LedgerError, match="promises"):
        ledger.check([holding])


def test_more_than_there_is_cannot_be_promised() -> None:
    """Asking first is the caller's part; the ledger does not go along with a mistake."""
    with pytest.raises(LedgerError):
        open_holding(make_ledger(), now=1, in_all=11)


def test_unlimited_memory_names_no_blocks_and_fits_everything() -> None:
    """Simulation without memory limits runs the same code."""
    ledger = make_ledger(None)
    assert ledger.blocks_for(10**9) == 0
    assert ledger.can_open(blocks=0, spare=0)
    assert open_holding(ledger, now=0, in_all=0).blocks == []
    assert ledger.in_use == 0
