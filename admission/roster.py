"""Every sequence of one scheduler, and the acts that change its state: claim, start, pause, end.

The roster keeps the pieces consistent (record, claimed list, batch, slots, ledger, deadlines) and decides nothing. What
the outside must be told goes to an outbox.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter

from admission.batch import Batch
from admission.calendar import Deadlines
from admission.events import Ended, EndReason, Paused, PauseReason, SequenceSpec
from admission.ledger import Holding, Ledger
from admission.lifecycle import State
from admission.order import WaitingOrder
from admission.prefixes import Prefixes
from admission.presets import Progress
from admission.sequence import Sequence
from admission.slots import Slots


class Outbox:
    """What the outside must be told with the next step: each sequence that ended, each pause that it does not know."""

    def __init__(self) -> None:
        self._ended: list[Ended] = []
        self._paused: list[Paused] = []

    def ended(self, spec: SequenceSpec, reason: EndReason) -> None:
        """An end makes a pause that was not told yet pointless."""
        self._ended.append(Ended(sequence_id=spec.sequence_id, reason=reason))
        if self._paused:
            self._paused = [paused for paused in self._paused if paused.sequence_id != spec.sequence_id]

    def paused(self, spec: SequenceSpec, reason: PauseReason) -> None:
        self._paused.append(Paused(sequence_id=spec.sequence_id, reason=reason))

    def take_ended(self) -> tuple[Ended, ...]:
        ended, self._ended = tuple(self._ended), []
        return ended

    def take_paused(self) -> tuple[Paused, ...]:
        paused, self._paused = tuple(self._paused), []
        return paused


class Roster:
    """``next_step`` names the plan that is built next; plans before it are on their way or done."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        prefixes: Prefixes,
        outbox: Outbox,
        waiting_order: WaitingOrder,
        progress: Progress,
        first_step: int,
        first_number: int,
    ) -> None:
        self.ledger = ledger
        self._prefixes = prefixes
        self.next_step = first_step
        self.next_number = first_number
        self.batch = Batch(block_size=ledger.block_size)
        self.slots = Slots(ledger=ledger, reported=first_step - 1)
        self.deadlines = Deadlines()
        self.claimed: list[Sequence] = []
        self._order = waiting_order
        self.progress = progress
        self._sequences: dict[str, Sequence] = {}
        self._by_class: Counter[str] = Counter()  # claimed or running
        self._outbox = outbox

    def get(self, sequence_id: str) -> Sequence | None:
        """A sequence that has not ended."""
        return self._sequences.get(sequence_id)

    def num_of(self, class_name: str) -> int:
        """Sequences of a class that are claimed or run, those left out that have nothing more to be planned."""
        return self._by_class[class_name]

    def all(self) -> list[Sequence]:
        """Every sequence that has not ended, in the order in which they came."""
        return list(self._sequences.values())

    def claim(self, spec: SequenceSpec, now: int) -> None:
        """The store handed this over. One of ours that is paused comes back; one that we have is left alone."""
        sequence = self._sequences.get(spec.sequence_id)
        if sequence is None:
            sequence = Sequence.from_spec(spec, number=self.next_number, claimed_us=now)
            self._sequences[spec.sequence_id] = sequence
            self.deadlines.add(sequence)
        elif sequence.state is State.PAUSED:
            sequence.to(State.CLAIMED)
            sequence.number = self.next_number
            sequence.claimed_us = now
            sequence.announce = None
        else:
            return
        self.next_number += 1
        self._by_class[spec.class_name] += 1
        insort(self.claimed, sequence, key=lambda claimed: self._order(claimed.spec))

    def refuse(self, spec: SequenceSpec, reason: EndReason) -> None:
        """End a sequence that is not taken in at all."""
        self._outbox.ended(spec, reason)

    def start(self, sequence: Sequence, holding: Holding, *, num_found: int) -> int:
        """Give a claimed sequence its slot, in plan ``next_step``; the slot.

        The first ``num_found`` blocks of its holding are computed already.
        """
        self._prefixes.start(sequence, num_found)
        found_tokens = num_found * self.ledger.block_size
        sequence.prefilled += found_tokens
        sequence.prefill_left -= found_tokens
        if sequence.prefill_left > 0:
            sequence.to(State.PREFILL)
            self.batch.prefilling.append(sequence)
            slot = self.slots.take(sequence, holding, step=self.next_step)
        else:
            sequence.to(State.DECODE)
            slot = self.slots.take(sequence, holding, step=self.next_step)
            self.batch.start_decode(sequence, self.next_step)
        self.claimed.remove(sequence)
        return slot

    def prefilled(self, sequence: Sequence) -> None:
        """Plan ``next_step`` computes its last chunk, which emits a token."""
        sequence.emitted += 1
        if sequence.emitted == sequence.spec.max_tokens:
            self._finish(sequence)
        else:
            sequence.to(State.DECODE)
            self.batch.start_decode(sequence, self.next_step + 1)
        self.batch.prefilling.remove(sequence)

    def finish_decode(self, sequence: Sequence) -> None:
        """Plan ``next_step`` emits its last token."""
        self._finish(sequence)
        self.batch.stop_decode(sequence, self.next_step + 1)

    def _finish(self, sequence: Sequence) -> None:
        sequence.to(State.FINISHING)
        self._by_class[sequence.spec.class_name] -= 1

    def stall(self, sequence: Sequence) -> None:
        """It cannot be in plan ``next_step`` for want of a block that is on its way back."""
        sequence.to(State.STALLED)
        self.batch.stop_decode(sequence, self.next_step)
        self.batch.stalled.append(sequence)

    def resume_stalled(self, sequence: Sequence) -> None:
        sequence.to(State.DECODE)
        self.batch.stalled.remove(sequence)
        self.batch.start_decode(sequence, self.next_step)

    def pause(self, sequence: Sequence, announce: PauseReason | None) -> None:
        """Preempt. ``announce`` tells the store why, once slot and blocks are back; None: the store knows."""
        old = sequence.to(State.PAUSED)
        sequence.pauses += 1
        sequence.announce = announce
        self._take_out(sequence, old)
        sequence.kept_tokens = sequence.prefilled
        if self.progress is Progress.RECOMPUTE:
            sequence.prefilled = 0
            sequence.prefill_left = sequence.known_tokens
        self._leave_slot(sequence)

    def end(self, sequence: Sequence, reason: EndReason) -> None:
        """Let it go, once and for all."""
        old = sequence.to(State.ENDED)
        self._take_out(sequence, old)
        self._prefixes.end(sequence)
        self.deadlines.remove(sequence)
        del self._sequences[sequence.spec.sequence_id]
        self._outbox.ended(sequence.spec, reason)
        self._leave_slot(sequence)

    def report(self, step: int) -> None:
        """Plan ``step`` is reported: what drained until then gives its slot and blocks back."""
        for sequence in self.slots.reported(step):
            self._vacate(sequence)

    def _take_out(self, sequence: Sequence, old: State) -> None:
        if old not in {State.PAUSED, State.FINISHING}:
            self._by_class[sequence.spec.class_name] -= 1
        if old is State.CLAIMED:
            self.claimed.remove(sequence)
        else:
            self.batch.remove(sequence, old, self.next_step)

    def _leave_slot(self, sequence: Sequence) -> None:
        self._prefixes.leave(sequence)
        for left in self.slots.leave(sequence):
            self._vacate(left)

    def _vacate(self, sequence: Sequence) -> None:
        """No plan in flight names it: slot and blocks are free, and what it computed can be found if it comes back."""
        if sequence.state is State.PAUSED:
            self._prefixes.filled(sequence, sequence.kept_tokens)
        self.slots.vacate(sequence)
        if sequence.state is State.PAUSED and sequence.announce is not None:
            self._outbox.paused(sequence.spec, sequence.announce)
            sequence.announce = None
