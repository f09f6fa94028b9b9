"""Host memory for preempted sequences. That plans and a strict worker agree on it is shown by generated histories."""

from __future__ import annotations

from admission.swaps import Swaps


def test_what_ends_before_its_plan_is_neither_swapped_out_nor_dropped() -> None:
    """The worker has never heard of it."""
    swaps = Swaps(num_blocks=4, block_size=4)
    assert swaps.keep("a", slot=0, tokens=5)
    swaps.forget("a")
    swaps.forget("a")
    assert swaps.take_moves() == ((), ())


def test_what_ends_after_its_plan_is_dropped_by_the_next() -> None:
    """Host memory that is kept for nobody is lost until the worker restarts."""
    swaps = Swaps(num_blocks=4, block_size=4)
    swaps.keep("a", slot=3, tokens=5)
    assert swaps.take_moves() == ((3,), ())
    assert swaps.blocks_in_use == 2
    swaps.forget("a")
    assert swaps.take_moves() == ((), ("a",))
    assert swaps.blocks_in_use == 0


def test_nothing_is_pushed_out_to_make_room() -> None:
    """Who finds no room is computed again; whoever is there comes back as it went."""
    swaps = Swaps(num_blocks=2, block_size=4)
    assert swaps.keep("a", slot=0, tokens=8)
    assert not swaps.keep("b", slot=1, tokens=1)
    swaps.take_back("a")
    assert swaps.keep("b", slot=1, tokens=1)
