"""A step's integers: what random work becomes, padded and not, against the batch that is made on the host."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workers.batch import Batch, BlockTables, Target, build_batch, lay_out
from workers.cuda.buckets import Bucket
from workers.cuda.gather import decode_batch
from workers.cuda.inputs import LastTokens, StepInputs, decode_inputs, flat_inputs
from workers.cuda.varlen import ragged_decodes, ragged_of
from workers.kv_cache import LayerKind
from workers.slots import SlotState, Work
from workers.wire import Sampling

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
SIZE, MAX_BLOCKS, MAX_SLOTS, NUM_BLOCKS = 4, 9, 6, 54
NULL, SCRATCH = NUM_BLOCKS, NUM_BLOCKS + 1
KINDS = (LayerKind(kv_heads=2, window=None), LayerKind(kv_heads=1, window=5))


def random_tables(random: Random) -> Tensor:
    tables = BlockTables(max_slots=MAX_SLOTS, max_blocks=MAX_BLOCKS, null_block=NULL)
    blocks = random.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    for slot in range(MAX_SLOTS):
        tables.start(slot, blocks[slot * MAX_BLOCKS : slot * MAX_BLOCKS + MAX_BLOCKS])
    return tables.tensor


def random_works(random: Random, *, longest: int) -> list[Work]:
    """Of distinct slots; a token at position p of slot s is ``100 * s + p``, and the last may not be read yet."""
    works = []
    for slot in random.sample(range(MAX_SLOTS), random.randint(1, MAX_SLOTS)):
        length = random.randint(1, longest)
        start = random.randint(0, MAX_BLOCKS * SIZE - length)
        unread = int(length == 1 and start > 0 and random.random() < 0.5)
        state = SlotState(
            slot=slot,
            sequence_id=str(slot),
            tokens=[100 * slot + position for position in range(start + length - unread)],
            prompt_length=1,
            emitted=0,
            computed=start + length,
            max_tokens=100,
            sampling=Sampling(),
            blocks=[],
            unread=unread,
        )
        works.append(Work(state=state, start=start, length=length, emits=length == 1 or random.random() < 0.5))
    return works


def decodes(random: Random) -> tuple[list[Work], Tensor, Bucket]:
    works, tables = random_works(random, longest=1), random_tables(random)
    return works, tables, Bucket(rows=random.randint(len(works), 8), blocks=random.randint(MAX_BLOCKS, 12))


@given(seed=st.integers(0, 2**32))
def test_a_padded_decode_holds_its_rows_and_nobody_elses(seed: int) -> None:
    """Padding computes token 0 at position 0 of the scratch block, for a slot that does not exist."""
    works, tables, bucket = decodes(Random(seed))
    inputs = decode_inputs(works, tables, bucket, scratch_block=SCRATCH)
    count = len(works)
    assert inputs.rows.shape == (4, bucket.rows)
    assert inputs.tables.shape == (bucket.rows, bucket.blocks)
    assert inputs.tables.dtype == torch.int32
    assert inputs.positions.tolist() == [*(work.start for work in works), *[0] * (bucket.rows - count)]
    assert inputs.slots.tolist() == [*(work.state.slot for work in works), *[MAX_SLOTS] * (bucket.rows - count)]
    assert inputs.fed.tolist() == [*(work.state.unread for work in works), *[0] * (bucket.rows - count)]
    for row, work in enumerate(works):
        assert inputs.tables[row, :MAX_BLOCKS].tolist() == tables[work.state.slot].tolist()
        assert inputs.ids[row] == (0 if work.state.unread else 100 * work.state.slot + work.start)
    assert set(inputs.tables[count:].flatten().tolist()) <= {SCRATCH}
    assert set(inputs.tables[:, MAX_BLOCKS:].flatten().tolist()) <= {SCRATCH}


def test_a_bucket_narrower_than_a_context_takes_the_beginning_of_its_tables() -> None:
    """It was chosen by the longest sequence of the step."""
    works, tables, _ = decodes(Random(1))
    inputs = decode_inputs(works, tables, Bucket(rows=len(works), blocks=2), scratch_block=SCRATCH)
    assert inputs.tables.tolist() == [tables[work.state.slot, :2].tolist() for work in works]


@given(seed=st.integers(0, 2**32))
def test_a_decode_computed_from_its_integers_is_the_batch_made_on_the_host(seed: int) -> None:
    """Where keys go, what is gathered and what is seen, for every kind of layer, in any order of the rows."""
    works, tables, bucket = decodes(Random(seed))
    works.sort(key=lambda work: work.start)  # as the batch on the host has them
    inputs = decode_inputs(works, tables, bucket, scratch_block=SCRATCH)
    ours = decode_batch(inputs, KINDS, block_size=SIZE)
    target = Target(block_size=SIZE, kinds=KINDS, dtype=torch.float32, device=CPU)
    theirs = build_batch(lay_out(works, group_tokens=10**9), tables, target)
    count = len(works)
    assert ours.ids[:count].tolist() == theirs.ids.tolist()
    assert ours.positions[:count].tolist() == theirs.positions.tolist()
    for kind in KINDS:
        mine, its = ours.kinds[kind].write_rows.view(kind.kv_heads, -1), theirs.kinds[kind].write_rows
        assert mine[:, :count].flatten().tolist() == its.tolist()
        assert seen_rows(ours, kind, count) == seen_rows(theirs, kind, count)
        of_padding = mine[:, count:].flatten() // SIZE // kind.kv_heads
        assert set(of_padding.tolist()) <= {SCRATCH}


def seen_rows(batch: Batch, kind: LayerKind, count: int) -> list[list[tuple[int, int]]]:
    """For each row and head: (row of the pool, place in it) of each token that is looked at."""
    (group,) = batch.kinds[kind].groups
    rows = group.rows.view(-1, kind.kv_heads, group.mask.shape[-1] // SIZE)[:count].flatten(0, 1)
    mask = group.mask.view(-1, group.mask.shape[-1])[: count * kind.kv_heads]
    return [
        [(int(row[at // SIZE]), at % SIZE) for at in (hidden == 0).nonzero().flatten().tolist()]
        for row, hidden in zip(rows, mask, strict=True)
    ]


@given(seed=st.integers(0, 2**32))
def test_ragged_work_says_whose_queries_lie_where(seed: int) -> None:
    """Every token's place is the one that its sequence's table gives it; decodes are the case of one token each."""
    random = Random(seed)
    works, tables = random_works(random, longest=11), random_tables(random)
    inputs = flat_inputs(works, tables, block_size=SIZE)
    ragged = ragged_of(works, inputs, block_size=SIZE)
    assert ragged.query_offsets.diff().tolist() == [work.length for work in works]
    assert ragged.lengths.tolist() == [work.start + work.length for work in works]
    assert (ragged.longest_query, ragged.longest) == (
        max(work.length for work in works),
        max(work.start + work.length for work in works),
    )
    assert ragged.places.tolist() == [
        place(tables, work, work.start + at) for work in works for at in range(work.length)
    ]
    assert inputs.positions.tolist() == [work.start + at for work in works for at in range(work.length)]
    assert inputs.ids.tolist() == [token for work in works for token in work.ids]
    assert {ragged.query_offsets.dtype, ragged.lengths.dtype, ragged.tables.dtype} == {torch.int32}


@given(seed=st.integers(0, 2**32))
def test_padded_decodes_are_ragged_ones_of_one_token(seed: int) -> None:
    """Padding has one token too, which it writes to the scratch block and looks at alone."""
    works, tables, bucket = decodes(Random(seed))
    inputs = decode_inputs(works, tables, bucket, scratch_block=SCRATCH)
    ragged, count = ragged_decodes(inputs, block_size=SIZE), len(works)
    assert ragged.query_offsets.tolist() == list(range(bucket.rows + 1))
    assert ragged.lengths.tolist() == [*(work.start + 1 for work in works), *[1] * (bucket.rows - count)]
    assert ragged.places[:count].tolist() == [place(tables, work, work.start) for work in works]
    assert ragged.places[count:].tolist() == [SCRATCH * SIZE] * (bucket.rows - count)
    assert (ragged.longest_query, ragged.longest) == (1, bucket.blocks * SIZE)


def place(tables: Tensor, work: Work, position: int) -> int:
    return int(tables[work.state.slot, position // SIZE]) * SIZE + position % SIZE


def test_a_token_that_was_not_read_is_taken_from_its_slot() -> None:
    """What the last step sampled never left the device."""
    last = LastTokens(4, CPU)
    last.note(torch.tensor([2, 0]), torch.tensor([77, 88]))
    rows = torch.tensor([[5, 0, 0], [0, 1, 0], [0, 2, 4], [9, 9, 0]])
    assert last.feed(StepInputs(rows=rows, tables=torch.empty(0))).tolist() == [5, 77, 0]
