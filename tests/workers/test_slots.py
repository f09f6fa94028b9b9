"""The slot table: what the executor's contract does not reach from outside."""

from __future__ import annotations

import dataclasses

import pytest

from tests.workers.executor_contract import NOTHING, SEQUENCE, WHOLE, change
from workers.executor import PlanError
from workers.slots import SlotTable
from workers.wire import NewSequence, PlanMessage, PrefillSpan, Sampling

EOS = 2
TWO_BLOCKS = dataclasses.replace(SEQUENCE, tokens=tuple(range(10, 19)), blocks=(0, 1, 2))  # 9 tokens, blocks of 4


def table() -> SlotTable:
    return SlotTable(max_slots=4, kv_blocks=16, block_size=4, context_length=32, eos_ids=(EOS,))


def sharing(**fields: object) -> PlanMessage:
    """A second sequence that takes over the first one's two whole blocks."""
    second = dataclasses.replace(TWO_BLOCKS, slot=1, computed=8, blocks=(0, 1, 3))
    return change(starts=(dataclasses.replace(second, **fields),))  # type: ignore[arg-type]  # fields of a sequence


def test_shared_blocks_count_once_and_live_until_the_last_owner_goes() -> None:
    """Freed too early, they would be written by somebody else."""
    slots = table()
    slots.apply(change(starts=(TWO_BLOCKS,)))
    slots.apply(sharing())
    assert slots.live_blocks == 4
    slots.apply(change(frees=(0,)))
    assert slots.live_blocks == 3
    slots.apply(change(frees=(1,)))
    assert slots.live_blocks == 0


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"computed": 7}, "block 1 is given to slot 1, but has an owner"),
        ({"blocks": (0, 0, 3)}, "slot 1 is to share a block twice"),
        ({"blocks": (0, 1, 2)}, "block 2 is given to slot 1, but has an owner"),
        ({"computed": 9}, "is started with 9 tokens computed, which cannot be"),
        ({"blocks": (0,)}, "is started with 8 tokens computed, which cannot be"),
    ],
)
def test_only_whole_computed_blocks_are_shared(fields: dict[str, object], problem: str) -> None:
    """A block that is still to be written has one owner."""
    slots = table()
    slots.apply(change(starts=(TWO_BLOCKS,)))
    with pytest.raises(PlanError, match=problem):
        slots.apply(sharing(**fields))


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (dataclasses.replace(SEQUENCE, tokens=(), blocks=()), "no prompt"),
        (dataclasses.replace(SEQUENCE, emitted=3), "no prompt"),
        (dataclasses.replace(SEQUENCE, emitted=2, max_tokens=2), "no output left"),
        (dataclasses.replace(SEQUENCE, max_tokens=30), "may reach 33 tokens; the context is 32"),
        (dataclasses.replace(SEQUENCE, blocks=(0, 0)), "block 0 is given to slot 0, but has an owner"),
    ],
)
def test_a_sequence_that_could_not_run_is_refused_at_its_start(new: NewSequence, problem: str) -> None:
    """Not half way through."""
    with pytest.raises(PlanError, match=problem):
        table().apply(change(starts=(new,)))


def test_a_table_too_short_for_the_position_is_refused() -> None:
    """The token's KV would have nowhere to go."""
    slots = table()
    short = dataclasses.replace(TWO_BLOCKS, blocks=(0, 1))
    with pytest.raises(PlanError, match="slot 0 reaches 9 tokens with 2 blocks"):
        slots.apply(change(starts=(short,), prefill=(dataclasses.replace(WHOLE, length=9),)))


@pytest.mark.parametrize(
    ("sampling", "reason"), [(Sampling(), "stop"), (Sampling(ignore_eos=True), None)], ids=["eos", "ignored"]
)
def test_an_eos_ends_a_sequence_unless_it_is_ignored(sampling: Sampling, reason: str | None) -> None:
    """The worker alone sees it in time."""
    slots = table()
    new = dataclasses.replace(SEQUENCE, sampling=sampling)
    (work,) = slots.apply(change(starts=(new,), prefill=(WHOLE,)))
    assert slots.emit(work.state, EOS) == reason
    assert work.state.finished == reason


def test_a_moved_sequence_knows_its_prompt_from_its_output() -> None:
    """Positions of the output count on from where it was."""
    slots = table()
    (work,) = slots.apply(change(starts=(dataclasses.replace(SEQUENCE, emitted=1),), prefill=(WHOLE,)))
    assert work.state.prompt == [10, 11]
    assert work.state.emitted == 1


def test_a_failed_sequence_is_left_out_of_later_plans() -> None:
    """Half way through its prefill, too."""
    slots = table()
    first = PrefillSpan(slot=0, start=0, length=2, emits=False)
    (work,) = slots.apply(change(starts=(SEQUENCE,), prefill=(first,)))
    assert slots.fail(work.state) == "failed"
    assert slots.apply(change(prefill=(PrefillSpan(slot=0, start=2, length=1, emits=True),))) == ()


def test_a_plan_of_nothing_is_no_work() -> None:
    """Its report comes at once."""
    assert table().apply(NOTHING) == ()
