"""The running batch, kept so that a step costs what changes in it and not what it holds.

A sequence that decodes is touched when it joins, when it needs a KV block, and when it leaves; in between its slot is
part of a cached tuple. Decoding sequences are kept in the order of their numbers (the order in which they started) and,
for the choice of a slot's victim, in the order of their work: as each emits one token in every plan, that order does
not change while they decode. Joining and leaving cost a binary search.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from admission.calendar import StepCalendar
from admission.lifecycle import State
from admission.sequence import Sequence, slot_of
from admission.victims import slot_victim_key


class Batch:
    """Sequences in PREFILL, DECODE and STALLED. ``prefilling`` is in the order in which they started."""

    def __init__(self, *, block_size: int) -> None:
        self._block_size = block_size
        self.prefilling: list[Sequence] = []
        self.stalled: list[Sequence] = []
        self._decoding: dict[int, Sequence] = {}
        self._numbers: list[int] = []
        self._by_work: list[tuple[int, int, int]] = []
        self._finals = StepCalendar()
        self._growths = StepCalendar()
        self._decode: tuple[int, ...] | None = ()

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.stalled) + len(self._decoding)

    def __iter__(self) -> Iterator[Sequence]:
        """Every sequence of the batch, by number."""
        yield from sorted([*self.prefilling, *self.stalled, *self._decoding.values()], key=_number)

    @property
    def num_decoding(self) -> int:
        return len(self._decoding)

    def decode(self) -> tuple[int, ...]:
        """The slots that decode, by number."""
        if self._decode is None:
            self._decode = tuple([slot_of(self._decoding[number]) for number in self._numbers])
        return self._decode

    def start_decode(self, sequence: Sequence, step: int) -> None:
        """It emits a token in plan ``step`` and each one after it, until it leaves."""
        sequence.decode_from = step
        sequence.final_step = step + sequence.spec.max_tokens - sequence.emitted - 1
        self._decoding[sequence.number] = sequence
        insort(self._numbers, sequence.number)
        insort(self._by_work, self._work_key(sequence))
        self._finals.add(sequence.final_step, sequence)
        self._decode = None
        self.note_growth(sequence)

    def stop_decode(self, sequence: Sequence, step: int) -> None:
        """It is in no plan from ``step`` on; what the plans before it emit is written into the record."""
        sequence.emitted += step - sequence.decode_from
        sequence.prefilled = sequence.known_tokens - 1
        if step > sequence.decode_from:
            sequence.last_plan = step - 1
        del self._decoding[sequence.number]
        del self._numbers[bisect_left(self._numbers, sequence.number)]
        del self._by_work[bisect_left(self._by_work, self._work_key(sequence))]
        if step <= sequence.final_step:
            self._finals.remove(sequence.final_step, sequence)
        if sequence.growth_step is not None:
            self._growths.remove(sequence.growth_step, sequence)
            sequence.growth_step = None
        self._decode = None

    def remove(self, sequence: Sequence, state: State, step: int) -> None:
        """Take out a sequence that was in ``state``; it is in no plan from ``step`` on."""
        if state is State.DECODE:
            self.stop_decode(sequence, step)
        elif state is State.PREFILL:
            self.prefilling.remove(sequence)
        elif state is State.STALLED:
            self.stalled.remove(sequence)

    def take_final(self, step: int) -> list[Sequence]:
        """The sequences that emit their last token in plan ``step``. Take them once, when the plan is built."""
        return self._finals.take(step)

    def take_growing(self, step: int) -> list[Sequence]:
        """The decoding sequences that need one more block for plan ``step``: give it, or take them out."""
        growing = self._growths.take(step)
        for sequence in growing:
            sequence.growth_step = None
        return growing

    def most_work(self) -> Iterator[Sequence]:
        """The decoding sequences, the best slot victim first."""
        return (self._decoding[-number] for _, _, number in reversed(self._by_work))

    def note_growth(self, sequence: Sequence) -> None:
        """Find the plan for which the blocks that a decoding sequence has are too few.

        Plan s writes the KV of the last emitted token, so it needs room for prompt + emitted_by(s) tokens.
        """
        if sequence.holding is None or not sequence.holding.blocks:
            return
        capacity = len(sequence.holding.blocks) * self._block_size
        step = sequence.decode_from + capacity + 1 - sequence.known_tokens
        if step <= sequence.final_step:
            sequence.growth_step = step
            self._growths.add(step, sequence)

    @staticmethod
    def _work_key(sequence: Sequence) -> tuple[int, int, int]:
        """While all decode, the one whose last step is later has more work left."""
        return slot_victim_key(sequence.spec.rank, sequence.final_step, sequence.number)


def _number(sequence: Sequence) -> int:
    return sequence.number
