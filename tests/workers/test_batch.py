"""From work to tensors: what lies where in a step, and who may look at what."""

from __future__ import annotations

import pytest
import torch

from workers.batch import QUERIES_AT_ONCE, BlockTables, Layout, Stretch, Target, build_batch, lay_out
from workers.executor import PlanError
from workers.kv_cache import LayerKind
from workers.slots import SlotState, Work
from workers.wire import Sampling

pytestmark = pytest.mark.torch

KIND = LayerKind(kv_heads=2, window=None)
NULL = 9


def work(slot: int, start: int, length: int, *, emits: bool = True) -> Work:
    """Work on a sequence whose token at position p is ``100 * slot + p``."""
    state = SlotState(
        slot=slot,
        sequence_id=str(slot),
        tokens=[100 * slot + position for position in range(start + length)],
        prompt_length=1,
        emitted=0,
        computed=0,
        max_tokens=100,
        sampling=Sampling(),
        blocks=[],
    )
    return Work(state=state, start=start, length=length, emits=emits)


def target(*kinds: LayerKind) -> Target:
    return Target(block_size=4, kinds=kinds or (KIND,), dtype=torch.float32, device=torch.device("cpu"))


def tables(**blocks: tuple[int, ...]) -> torch.Tensor:
    table = BlockTables(max_slots=4, max_blocks=3, null_block=NULL)
    for slot, of_slot in blocks.items():
        table.start(int(slot.removeprefix("slot")), of_slot)
    return table.tensor


def test_singles_come_first_by_length_and_chunks_keep_their_order() -> None:
    """Groups are then plain stretches of the row, with little padding."""
    works = [work(0, 7, 1), work(1, 0, 3, emits=False), work(2, 2, 1), work(3, 4, 2)]
    assert lay_out(works, group_tokens=100) == Layout(
        works=(works[2], works[0], works[1], works[3]),
        groups=(Stretch(start=0, stop=2, length=8),),
        chunks=(Stretch(start=2, stop=5, length=3), Stretch(start=5, stop=7, length=6)),
    )


def test_a_group_is_cut_where_padding_would_pass_the_bound() -> None:
    """Gathered keys and values are to stay in the cache, and one long sequence is not to pad the short ones."""
    layout = lay_out([work(slot, start, 1) for slot, start in enumerate((4, 4, 4, 49))], group_tokens=10)
    assert layout.groups == (
        Stretch(start=0, stop=2, length=5),
        Stretch(start=2, stop=3, length=5),
        Stretch(start=3, stop=4, length=50),
    )


def test_a_long_chunk_attends_in_pieces() -> None:
    """Each piece looks back from its own end: one piece would score every token against all that come after it."""
    long = QUERIES_AT_ONCE + 10
    assert lay_out([work(0, 6, long)], group_tokens=100).chunks == (
        Stretch(start=0, stop=QUERIES_AT_ONCE, length=6 + QUERIES_AT_ONCE),
        Stretch(start=QUERIES_AT_ONCE, stop=long, length=6 + long),
    )


def test_ids_positions_and_emitting_rows() -> None:
    """Logits are computed for the last token of what emits, and for nothing else."""
    works = [work(0, 5, 1), work(1, 0, 3, emits=False), work(2, 4, 2)]
    batch = build_batch(lay_out(works, 100), tables(slot0=(3, 1), slot1=(0,), slot2=(2, 5)), target())
    assert batch.ids.tolist() == [5, 100, 101, 102, 204, 205]
    assert batch.positions.tolist() == [5, 0, 1, 2, 4, 5]
    assert batch.emit_rows.tolist() == [0, 5]
    assert batch.emitting == (works[0], works[2])


def test_each_head_of_each_token_has_its_row() -> None:
    """Row of the pool for head h of position p: ``((block * heads) + h) * block_size + p % block_size``."""
    batch = build_batch(lay_out([work(0, 3, 3)], 100), tables(slot0=(3, 1)), target())
    first_head, second_head = [27, 8, 9], [31, 12, 13]
    assert batch.kinds[KIND].write_rows.tolist() == [*first_head, *second_head]


def test_gathered_rows_are_padded_with_the_null_block() -> None:
    """Padding must never touch a block that belongs to somebody."""
    batch = build_batch(lay_out([work(0, 0, 1), work(1, 5, 1)], 100), tables(slot0=(3,), slot1=(1, 2)), target())
    (group,) = batch.kinds[KIND].groups
    assert group.rows.view(2, 2, 2).tolist() == [[[6, 18], [7, 19]], [[2, 4], [3, 5]]]
    assert visible(group.mask) == [[0], [0], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]


def test_a_chunk_sees_the_past_and_itself_but_not_ahead() -> None:
    """Causality, offset by what earlier chunks have computed."""
    batch = build_batch(lay_out([work(0, 3, 2)], 100), tables(slot0=(3, 1)), target())
    (chunk,) = batch.kinds[KIND].chunks
    assert chunk.rows.tolist() == [6, 2, 7, 3]
    assert visible(chunk.mask) == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_a_window_hides_the_distant_past() -> None:
    """A window of 3 is the token itself and the two before it."""
    windowed = LayerKind(kv_heads=1, window=3)
    works = [work(0, 6, 1), work(1, 3, 2)]
    batch = build_batch(lay_out(works, 100), tables(slot0=(3, 1), slot1=(0, 2)), target(KIND, windowed))
    assert visible(batch.kinds[windowed].groups[0].mask) == [[4, 5, 6]]
    assert visible(batch.kinds[windowed].chunks[0].mask) == [[1, 2, 3], [2, 3, 4]]
    assert visible(batch.kinds[KIND].groups[0].mask)[0] == [0, 1, 2, 3, 4, 5, 6]


def test_a_slot_started_again_forgets_its_old_blocks() -> None:
    """What a former sequence owned belongs to others by now."""
    table = BlockTables(max_slots=1, max_blocks=3, null_block=NULL)
    table.start(0, (1, 2))
    table.grow(0, (3,))
    assert table.tensor.tolist() == [[1, 2, 3]]
    table.start(0, (4,))
    assert table.tensor.tolist() == [[4, NULL, NULL]]


def test_a_table_longer_than_a_context_is_refused() -> None:
    """It could only come from a driver that has lost count."""
    with pytest.raises(PlanError, match="a whole context"):
        BlockTables(max_slots=1, max_blocks=1, null_block=NULL).start(0, (1, 2))


def visible(mask: torch.Tensor) -> list[list[int]]:
    """For each query, the keys that it may look at."""
    assert set(mask.unique().tolist()) <= {0.0, float("-inf")}
    return [row.nonzero().flatten().tolist() for row in (mask.reshape(-1, mask.shape[-1]) == 0)]
