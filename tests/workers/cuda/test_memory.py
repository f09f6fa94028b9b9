"""What is left of a GPU for the pool, in numbers."""

from __future__ import annotations

from workers.cuda.memory import BYTES_PER_GRAPH, Measured, graph_bytes, room_for_pool, step_lengths

GIB = 1 << 30


def test_the_pool_gets_what_the_largest_step_and_the_graphs_leave() -> None:
    """What the trial borrowed comes back; what graphs will take is not there yet, and is kept for them."""
    measured = Measured(free=10 * GIB, trial_pool=2 * GIB, largest_graph=GIB, num_graphs=3)
    assert room_for_pool(measured) == 11 * GIB - 2 * BYTES_PER_GRAPH


def test_graphs_share_the_memory_of_the_largest() -> None:
    """Each of the others costs little; none at all cost nothing."""
    assert graph_bytes(100, 1) == 100
    assert graph_bytes(100, 4) == 100 + 3 * BYTES_PER_GRAPH
    assert graph_bytes(0, 0) == 0


def test_there_is_never_less_than_nothing() -> None:
    """The sentence about too little memory is written where the pool is sized."""
    assert room_for_pool(Measured(free=GIB, trial_pool=0, largest_graph=2 * GIB, num_graphs=1)) == 0


def test_the_largest_step_has_as_few_prompts_as_hold_its_tokens() -> None:
    """Long prompts take the most; there are no more of them than slots."""
    assert step_lengths(tokens=8192, max_slots=32, context_length=131_072) == [8192]
    assert step_lengths(tokens=8192, max_slots=32, context_length=3000) == [3000, 3000, 2192]
    assert step_lengths(tokens=8192, max_slots=2, context_length=3000) == [3000, 3000]
