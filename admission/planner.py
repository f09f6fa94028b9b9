"""Building one plan: grow, place, decode, prefill (the order and its reasons stand in ``scheduler``)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from admission.events import Grow, PauseReason, Plan, Prefill, Start
from admission.formation import num_to_start
from admission.ledger import Holding
from admission.lifecycle import State
from admission.limits import Limits
from admission.memory import Memory
from admission.prefixes import Prefixes
from admission.presets import PrefillRule, Preset, Progress
from admission.roster import Roster
from admission.sequence import Sequence, holding_of, slot_of
from admission.victims import Candidate

MOST_PASSES = 4
"""How often a sequence that waits for the prefix of another may see later ones start first. Then nobody passes it."""


class _Room(Enum):
    """A block for a sequence that needs one: there, on its way back, or none (it was preempted itself)."""

    FREE = auto()
    RETURNING = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A plan, the sequences whose last token it emits, and of those that it prefills the tokens computed after it."""

    plan: Plan
    finals: tuple[Sequence, ...]
    fills: tuple[tuple[Sequence, int], ...]


class Planner:
    """Decides plan after plan over a roster, under a preset. Keeps nothing between plans."""

    def __init__(self, *, roster: Roster, memory: Memory, prefixes: Prefixes, preset: Preset) -> None:
        self._roster = roster
        self._memory = memory
        self._prefixes = prefixes
        self._preset = preset

    def build(self, limits: Limits, now: int) -> Built | None:
        """The next plan; None when there is nothing to do."""
        roster = self._roster
        grows = self._grow()
        starts = self._place(limits, now)
        decode = roster.batch.decode()
        finals = roster.batch.take_final(roster.next_step)
        for sequence in finals:
            roster.finish_decode(sequence)
        prefill, fills = self._prefill(limits, num_decoding=len(decode), finals=finals)
        frees = roster.slots.take_frees()
        if not (frees or starts or prefill or decode):
            return None
        plan = Plan(step=roster.next_step, frees=frees, starts=starts, grows=grows, prefill=prefill, decode=decode)
        roster.next_step += 1
        return Built(plan=plan, finals=tuple(finals), fills=fills)

    def _grow(self) -> tuple[Grow, ...]:
        """One more block for each sequence that needs it, the best first; preempt or stall where there is none."""
        roster = self._roster
        needing = [*roster.batch.stalled, *roster.batch.take_growing(roster.next_step)]
        needing.sort(key=_seniority)
        grown: dict[int, Grow] = {}
        owed = 0
        for sequence in needing:
            if sequence.state is State.PAUSED:
                continue  # it gave way to a better one
            room = self._make_room(sequence, owed=owed, served=grown)
            if room is _Room.FREE:
                grown[sequence.number] = self._grow_one(sequence)
            elif room is _Room.RETURNING:
                owed += 1
                if sequence.state is State.DECODE:
                    roster.stall(sequence)
        return tuple(grown.values())

    def _grow_one(self, sequence: Sequence) -> Grow:
        block = self._roster.ledger.grow(holding_of(sequence))
        if sequence.state is State.STALLED:
            self._roster.resume_stalled(sequence)
        else:
            self._roster.batch.note_growth(sequence)
        return Grow(slot=slot_of(sequence), blocks=(block,))

    def _make_room(self, sequence: Sequence, *, owed: int, served: Collection[int]) -> _Room:
        """Find a block for it, by preemption if need be.

        ``owed`` of the blocks that return belong to better ones; numbers in ``served`` have got theirs in this plan.
        """
        ledger = self._roster.ledger
        holding = holding_of(sequence)
        while not ledger.can_grow(holding):
            if ledger.returning > owed:
                return _Room.RETURNING
            victim = self._kv_victim(sequence, served)
            self._roster.pause(victim, PauseReason.KV)
            if victim is sequence:
                return _Room.NONE
        return _Room.FREE

    def _kv_victim(self, needing: Sequence, served: Collection[int]) -> Sequence:
        """The preset's choice; never the oldest of the best class, nor one that has used up its pauses, nor one served.

        When nobody else is left it is the one that needs the block. Some sequence advances all the same: one that was
        served, or one that has used up its pauses and therefore all the memory that it will ever need.
        """
        roster, choose = self._roster, self._preset.kv_victim
        if choose is None:
            raise AssertionError(f"{needing.spec.sequence_id} ran out of memory that was reserved for it")
        running = list(roster.batch)
        oldest = min(running, key=_seniority)
        candidates = [
            Candidate(
                sequence_id=sequence.spec.sequence_id,
                rank=sequence.spec.rank,
                number=sequence.number,
                computed_tokens=sequence.computed_by(roster.next_step),
            )
            for sequence in running
            if sequence is not oldest and sequence.number not in served and not self._memory.must_stay(sequence)
        ]
        chosen = roster.get(choose(candidates).sequence_id) if candidates else None
        return chosen or needing

    def _place(self, limits: Limits, now: int) -> tuple[Start, ...]:
        """Start claimed sequences from the head, as many as the preset lets, until a slot or memory is missing.

        One that waits for a block which another is filling is passed over, ``MOST_PASSES`` times at most.
        """
        roster = self._roster
        if not roster.claimed:
            return ()
        left = num_to_start(roster, self._preset.batching, limits, now)
        starts: list[Start] = []
        passed: list[Sequence] = []
        for sequence in list(roster.claimed):
            if left == 0 or roster.slots.in_use >= limits.max_slots:
                break
            if sequence.slot is not None:
                break  # claimed again while a plan in flight still names it
            found = self._prefixes.find(sequence)
            if self._prefixes.should_wait(sequence, len(found)):
                if sequence.num_passed >= MOST_PASSES:
                    break
                passed.append(sequence)
                continue
            holding = self._memory.open(sequence, shared=found, num_running=roster.slots.in_use)
            if holding is None:
                break
            starts.append(self._start(sequence, holding, num_found=len(found)))
            left -= 1
            for other in passed:
                other.num_passed += 1
        return tuple(starts)

    def _start(self, sequence: Sequence, holding: Holding, *, num_found: int) -> Start:
        swapped_tokens = sequence.prefilled if self._roster.progress is Progress.SWAP else 0
        slot = self._roster.start(sequence, holding, num_found=num_found)
        return Start(
            slot=slot,
            sequence_id=sequence.spec.sequence_id,
            blocks=tuple(holding.blocks),
            computed_tokens=sequence.prefilled,
            swapped_tokens=swapped_tokens,
        )

    def _prefill(
        self, limits: Limits, *, num_decoding: int, finals: list[Sequence]
    ) -> tuple[tuple[Prefill, ...], tuple[tuple[Sequence, int], ...]]:
        """Share what the decodes leave of the budget, first started first served. Adds to ``finals``.

        The chunks, and how far each sequence is computed after its chunk.
        """
        batch = self._roster.batch
        if not batch.prefilling:
            return (), ()
        rule = self._preset.prefill
        alone = num_decoding == 0 and len(batch) == 1
        cap, left = limits.prefill_chunk, limits.token_budget
        if rule is PrefillRule.WHOLE or (rule is PrefillRule.CHUNKED_UNLESS_ALONE and alone):
            cap = None
        if rule is PrefillRule.WHOLE:
            left = None
        elif left is not None:
            left -= num_decoding
        spans: list[Prefill] = []
        fills: list[tuple[Sequence, int]] = []
        for sequence in list(batch.prefilling):
            if left == 0:
                break
            length = min(bound for bound in (sequence.prefill_left, cap, left) if bound is not None)
            spans.append(self._prefill_chunk(sequence, length))
            fills.append((sequence, spans[-1].start + length))
            if sequence.state is State.FINISHING:
                finals.append(sequence)
            if left is not None:
                left -= length
        return tuple(spans), tuple(fills)

    def _prefill_chunk(self, sequence: Sequence, length: int) -> Prefill:
        start = sequence.prefilled
        sequence.prefilled += length
        sequence.prefill_left -= length
        sequence.last_plan = self._roster.next_step
        emits = sequence.prefill_left == 0
        if emits:
            self._roster.prefilled(sequence)
        return Prefill(slot=slot_of(sequence), start=start, length=length, emits=emits)


def _seniority(sequence: Sequence) -> tuple[int, int, int]:
    """The best class first, in it who arrived first."""
    return (sequence.spec.rank, sequence.spec.arrival_us, sequence.number)
