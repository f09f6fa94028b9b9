"""The slot table: what the executor's contract does not reach from outside."""

from __future__ import annotations

import dataclasses

import pytest

from tests.workers.executor_contract import NOTHING, SEQUENCE, WHOLE, change
from workers.executor import PlanError
from workers.slots import SlotTable
from workers.swapped import Transfer
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


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stop_id_ends_a_sequence(ignore_eos: bool) -> None:
    """It is the client's own choice, whatever becomes of an eos."""
    slots = table()
    sampling = Sampling(stop_token_ids=(5,), ignore_eos=ignore_eos)
    (work,) = slots.apply(change(starts=(dataclasses.replace(SEQUENCE, sampling=sampling),), prefill=(WHOLE,)))
    assert work.state.ending_ids == ({5} if ignore_eos else {5, EOS})
    assert slots.emit(work.state, 5) == "stop"


# --- blocks that may hold what is no number ---------------------------------------------------------------------------

NINE = PrefillSpan(slot=0, start=0, length=9, emits=True)
OWNER = dataclasses.replace(TWO_BLOCKS, slot=2, sequence_id="c", blocks=(2, 1, 0))


def test_what_a_sequence_left_unproven_is_scrubbed_for_its_next_owner() -> None:
    """It failed or was cancelled before finite logits told that its keys and values are numbers."""
    slots = table()
    (work,) = slots.apply(change(starts=(TWO_BLOCKS,), prefill=(NINE,)))
    slots.fail(work.state)
    slots.apply(change(frees=(0,)))
    assert slots.take_moves().scrub == []
    slots.apply(change(starts=(OWNER,)))
    assert slots.take_moves().scrub == [2, 1, 0]
    assert slots.take_moves().scrub == []


def test_what_has_given_a_token_is_not_scrubbed() -> None:
    """Finite logits came of it; the common case costs nothing."""
    slots = table()
    (work,) = slots.apply(change(starts=(TWO_BLOCKS,), prefill=(NINE,)))
    slots.emit(work.state, 7)
    slots.apply(change(frees=(0,), starts=(OWNER,)))
    assert slots.take_moves().scrub == []


def test_a_failed_sequence_leaves_alone_what_it_only_shares() -> None:
    """Others read it, or will: the scheduler keeps filled blocks for later."""
    slots = table()
    (first,) = slots.apply(change(starts=(TWO_BLOCKS,), prefill=(NINE,)))
    slots.emit(first.state, 7)
    (second,) = slots.apply(change(sharing(), prefill=(PrefillSpan(slot=1, start=8, length=1, emits=True),)))
    slots.fail(second.state)
    slots.apply(change(frees=(0, 1), starts=(dataclasses.replace(OWNER, blocks=(0, 1, 3)),)))
    assert slots.take_moves().scrub == [3]


def test_suspect_blocks_are_shared_as_they_are() -> None:
    """Whoever shares them has the same tokens, and is to fail as well; only a new owner gets them clean."""
    slots = table()
    (first,) = slots.apply(change(starts=(TWO_BLOCKS,), prefill=(NINE,)))
    slots.fail(first.state)
    slots.apply(change(sharing(), frees=(0,)))
    assert slots.take_moves().scrub == []
    slots.apply(change(frees=(1,), starts=(OWNER,)))
    assert slots.take_moves().scrub == [2, 1, 0]


def test_a_lost_driver_leaves_suspects_too() -> None:
    """The next one's sequences get the same blocks."""
    slots = table()
    slots.apply(change(starts=(TWO_BLOCKS,), prefill=(PrefillSpan(slot=0, start=0, length=5, emits=False),)))
    slots.reset()
    slots.apply(change(starts=(OWNER,)))
    assert slots.take_moves().scrub == [1, 0]


def test_a_plan_that_is_refused_half_way_leaves_its_suspects() -> None:
    """Their new owner was named and never came: nobody has cleaned them, and the next driver gives them away again."""
    slots = table()
    (work,) = slots.apply(change(starts=(TWO_BLOCKS,), prefill=(NINE,)))
    slots.fail(work.state)
    with pytest.raises(PlanError):
        slots.apply(change(frees=(0,), starts=(OWNER,), decode=(3,)))
    slots.reset()
    slots.apply(change(starts=(OWNER,)))
    assert slots.take_moves().scrub == [2, 1, 0]


# --- swapping ---------------------------------------------------------------------------------------------------------


def swapping_table(*, host_blocks: int = 4) -> SlotTable:
    return SlotTable(
        max_slots=4, kv_blocks=16, block_size=4, context_length=32, eos_ids=(EOS,), host_blocks=host_blocks
    )


LEAVING = change(frees=(0,), swap_outs=(0,))
RETURNING = dataclasses.replace(TWO_BLOCKS, slot=2, computed=6, swapped=6, blocks=(7, 8, 9))


def with_six_computed(slots: SlotTable) -> SlotTable:
    slots.apply(change(starts=(TWO_BLOCKS,), prefill=(PrefillSpan(slot=0, start=0, length=6, emits=False),)))
    return slots


def test_a_sequence_goes_to_host_memory_and_comes_back_into_other_blocks() -> None:
    """What was computed needs no second prefill; its slot and blocks are free in between."""
    slots = with_six_computed(swapping_table())
    slots.apply(LEAVING)
    assert (slots.live_blocks, slots.host_blocks) == (0, 2)
    assert slots.take_moves().outs == [Transfer(sequence_id="a", first=0, blocks=(0, 1))]
    (work,) = slots.apply(change(starts=(RETURNING,), prefill=(PrefillSpan(slot=2, start=6, length=3, emits=True),)))
    assert (slots.live_blocks, slots.host_blocks) == (3, 0)
    assert slots.take_moves().ins == [Transfer(sequence_id="a", first=0, blocks=(7, 8))]
    assert (work.start, work.state.proven) == (6, 0)


def test_only_what_is_not_shared_comes_back_from_the_host() -> None:
    """Blocks that are still in the prefix cache cost no copy."""
    slots = with_six_computed(swapping_table())
    slots.apply(LEAVING)
    slots.take_moves()
    slots.apply(change(starts=(dataclasses.replace(RETURNING, swapped=2, blocks=(0, 8, 9)),)))
    assert slots.take_moves().ins == [Transfer(sequence_id="a", first=1, blocks=(8,))]


def test_what_is_dropped_makes_room_in_the_same_plan() -> None:
    """The driver counts that way."""
    slots = with_six_computed(swapping_table(host_blocks=2))
    slots.apply(LEAVING)
    second = dataclasses.replace(TWO_BLOCKS, sequence_id="b")
    slots.apply(change(starts=(second,), prefill=(PrefillSpan(slot=0, start=0, length=5, emits=False),)))
    slots.apply(dataclasses.replace(LEAVING, drops=("a",)))
    moves = slots.take_moves()
    assert moves.drops == ["a"]
    assert [out.sequence_id for out in moves.outs] == ["a", "b"]
    assert slots.host_blocks == 2


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (change(swap_outs=(0,)), "slot 0 is swapped out, but has ended or is not freed"),
        (change(swap_outs=(3,), frees=(3,)), "slot 3 is swapped out, but is empty"),
        (change(swap_outs=(0, 0), frees=(0,)), "a is swapped out, but is so already"),
        (change(drops=("a",)), "a is dropped, but is not swapped out"),
        (change(starts=(RETURNING,)), "a is to come back with 6 tokens; 0 are kept"),
        (
            dataclasses.replace(LEAVING, starts=(dataclasses.replace(RETURNING, computed=5, swapped=5),)),
            "a is to come back with 5 tokens; 6 are kept",
        ),
        (
            dataclasses.replace(LEAVING, starts=(dataclasses.replace(RETURNING, swapped=3),)),
            "slot 2 is started with 3 of 6 tokens swapped in",
        ),
        (
            dataclasses.replace(LEAVING, starts=(dataclasses.replace(RETURNING, swapped=10),)),
            "slot 2 is started with 10 of 6 tokens swapped in",
        ),
    ],
)
def test_a_swap_that_cannot_be_is_refused(plan: PlanMessage, problem: str) -> None:
    """Each would bring somebody's keys and values under the wrong tokens."""
    with pytest.raises(PlanError, match=problem):
        with_six_computed(swapping_table()).apply(plan)


def test_host_memory_has_a_bound() -> None:
    """It is announced, so that passing it is the driver's mistake; nothing is pushed out to make room."""
    with pytest.raises(PlanError, match="a is swapped out with 6 tokens; 0 of 1 host blocks are taken"):
        with_six_computed(swapping_table(host_blocks=1)).apply(LEAVING)


def test_a_sequence_that_has_ended_is_not_swapped_out() -> None:
    """There is nothing to continue; its driver knows before it frees the slot."""
    slots = swapping_table()
    (work,) = slots.apply(change(starts=(SEQUENCE,), prefill=(WHOLE,)))
    slots.fail(work.state)
    with pytest.raises(PlanError, match="has ended"):
        slots.apply(LEAVING)


def test_a_lost_driver_leaves_nothing_in_host_memory() -> None:
    """The next one knows nothing of it."""
    slots = with_six_computed(swapping_table())
    slots.apply(LEAVING)
    slots.reset()
    assert slots.host_blocks == 0


# --- tokens that are read later ---------------------------------------------------------------------------------------


def test_a_decode_may_follow_a_token_that_is_not_read_yet() -> None:
    """Its value is on the device; where it stands is known."""
    slots = table()
    (work,) = slots.apply(change(starts=(SEQUENCE,), prefill=(WHOLE,)))
    slots.expect(work.state)
    (ahead,) = slots.apply(change(decode=(0,)))
    assert (ahead.start, ahead.ids, work.ids) == (3, [0], [10, 11, 12])
    assert slots.read(work.state, 77, computed=3) is None
    assert (ahead.ids, work.state.proven, work.state.emitted) == ([77], 3, 1)


def test_a_sequence_whose_last_token_is_expected_is_left_out() -> None:
    """That it ends by its length needs no reading; which reason it has is told when it is read."""
    slots = table()
    short = dataclasses.replace(SEQUENCE, max_tokens=2)
    (work,) = slots.apply(change(starts=(short,), prefill=(WHOLE,)))
    slots.expect(work.state)
    slots.apply(change(decode=(0,)))
    slots.expect(work.state)
    assert slots.apply(change(decode=(0,))) == ()
    assert slots.read(work.state, 77, computed=3) is None
    assert slots.read(work.state, 78, computed=4) == "length"


@pytest.mark.parametrize(("tokens", "reasons"), [((EOS,), ["stop"]), ((77, EOS), [None, "stop"])])
def test_an_eos_that_is_read_ends_a_sequence_whatever_else_is_expected(
    tokens: tuple[int, ...], reasons: list[str | None]
) -> None:
    """An eos that is the last token by length, too, is a stop, as it is for an engine that waits."""
    slots = table()
    short = dataclasses.replace(SEQUENCE, max_tokens=2, sampling=Sampling(temperature=0.0))
    (work,) = slots.apply(change(starts=(short,), prefill=(WHOLE,)))
    slots.expect(work.state)
    slots.apply(change(decode=(0,)))
    slots.expect(work.state)
    assert [slots.read(work.state, token, computed=3 + at) for at, token in enumerate(tokens)] == reasons


def test_what_is_not_read_when_a_sequence_leaves_stays_suspect() -> None:
    """Nobody knows yet whether its numbers are any; its blocks are cleaned for their next owner."""
    slots = table()
    (work,) = slots.apply(change(starts=(SEQUENCE,), prefill=(WHOLE,)))
    slots.expect(work.state)
    slots.apply(change(frees=(0,)))
    slots.apply(change(starts=(dataclasses.replace(SEQUENCE, sequence_id="b"),)))
    assert slots.take_moves().scrub == [0]
