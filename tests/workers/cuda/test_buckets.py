"""Which decodes run as a graph, and in which shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.cuda.buckets import FEWEST_BLOCKS, TOKENS_READ, Bucket, Buckets, TableUse, decode_buckets, rising
from workers.slots import SlotState, Work
from workers.wire import Sampling

BUCKETS = Buckets(rows=(1, 2, 4, 6), blocks=(8, 32))


def work(start: int, length: int = 1, *, emits: bool = True) -> Work:
    state = SlotState(
        slot=0,
        sequence_id="",
        tokens=[],
        prompt_length=1,
        emitted=0,
        computed=0,
        max_tokens=9,
        sampling=Sampling(),
        blocks=[],
    )
    return Work(state=state, start=start, length=length, emits=emits)


def test_steps_double_up_to_the_most() -> None:
    """Padding stays below one half, and the last bucket holds every slot there is."""
    assert rising(6) == (1, 2, 4, 6)
    assert rising(32) == (1, 2, 4, 8, 16, 32)
    assert rising(1) == (1,)


@given(most=st.integers(1, 5000), needed=st.integers(1, 5000))
def test_less_than_half_of_a_bucket_is_padding(most: int, needed: int) -> None:
    """Or a graph would compute more for nobody than for somebody."""
    bucket = Buckets(rows=rising(most), blocks=(8,)).smallest_for(rows=needed, blocks=1)
    if needed > most:
        assert bucket is None
    else:
        assert bucket is not None
        assert needed <= bucket.rows < 2 * needed


@pytest.mark.parametrize(
    ("works", "bucket"),
    [
        ([work(0)], Bucket(rows=1, blocks=8)),
        ([work(31)] * 3, Bucket(rows=4, blocks=8)),
        ([work(32), work(3), work(3)], Bucket(rows=4, blocks=32)),
        ([work(127)] * 5, Bucket(rows=6, blocks=32)),
        ([work(128)], None),
        ([work(3)] * 7, None),
        ([], None),
        ([work(3), work(0, 2)], None),
        ([work(3), work(3, emits=False)], None),
    ],
)
def test_a_pure_decode_takes_the_smallest_bucket_that_holds_it(works: list[Work], bucket: Bucket | None) -> None:
    """Blocks of 4 tokens; whatever else is in the step, a chunk above all, makes it an ordinary one."""
    assert BUCKETS.bucket_of(works, block_size=4) == bucket


def test_where_tables_are_not_read_to_their_end_one_width_serves_all() -> None:
    """A graph for each width would take memory for nothing."""
    assert decode_buckets(max_slots=2, max_blocks=500, block_size=16, use=TableUse.SKIPPED).blocks == (500,)
    assert decode_buckets(max_slots=2, max_blocks=500, block_size=16, use=TableUse.READ).blocks == (
        FEWEST_BLOCKS,
        32,
        128,
        500,
    )


def test_a_graph_does_not_gather_more_than_memory_bears() -> None:
    """Many long sequences would need gigabytes at once; their decodes run group by group instead."""
    buckets = decode_buckets(max_slots=32, max_blocks=8192, block_size=16, use=TableUse.READ)
    assert all(bucket.rows * bucket.blocks * 16 <= TOKENS_READ for bucket in buckets.all_largest_first())
    assert buckets.smallest_for(rows=32, blocks=512) == Bucket(rows=32, blocks=512)
    assert buckets.smallest_for(rows=32, blocks=513) is None
    assert buckets.smallest_for(rows=2, blocks=8192) == Bucket(rows=2, blocks=8192)


def test_the_largest_is_captured_first() -> None:
    """What it took of memory, the others find there."""
    order = Buckets(rows=(1, 2), blocks=(8, 32)).all_largest_first()
    assert order == (
        Bucket(rows=2, blocks=32),
        Bucket(rows=2, blocks=8),
        Bucket(rows=1, blocks=32),
        Bucket(rows=1, blocks=8),
    )
