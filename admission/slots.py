"""Slots and KV memory of running sequences, from the plan that starts one to the report of the last that names it.

The worker executes plans in order, so memory named by a plan in flight is not ours to give away. A sequence that leaves
the batch while such a plan is in flight *drains*: it keeps slot and blocks until that plan's report, then both are free
and the slot is listed in the ``frees`` of the next plan, which the worker applies before anything else.
"""

from __future__ import annotations

from admission.ledger import Holding, Ledger
from admission.sequence import Sequence, holding_of, slot_of


class Slots:
    """Who holds which slot. ``reported`` is the step of the last report."""

    def __init__(self, *, ledger: Ledger, reported: int) -> None:
        self._ledger = ledger
        self._reported = reported
        self._holders: dict[int, Sequence] = {}
        self._draining: list[Sequence] = []
        self._unused: list[int] = []
        self._num_made = 0
        self._frees: list[int] = []

    @property
    def in_use(self) -> int:
        """Slots that are held, those that drain included."""
        return len(self._holders)

    def holder(self, slot: int) -> Sequence | None:
        return self._holders.get(slot)

    def holders(self) -> list[tuple[int, Sequence]]:
        """Every slot that is held, with its sequence, in the order in which they were taken."""
        return list(self._holders.items())

    def holdings(self) -> list[Holding]:
        """Every open account, for the ledger's check."""
        return [sequence.holding for sequence in self._holders.values() if sequence.holding is not None]

    def take(self, sequence: Sequence, holding: Holding, *, step: int) -> int:
        """Give the sequence a slot and its memory, as of plan ``step``."""
        if self._unused:
            slot = self._unused.pop()
        else:
            slot = self._num_made
            self._num_made += 1
        sequence.slot = slot
        sequence.holding = holding
        sequence.first_plan = sequence.last_plan = step
        self._holders[slot] = sequence
        return slot

    def leave(self, sequence: Sequence) -> list[Sequence]:
        """The sequence runs no more. It is returned if it can vacate its slot at once, else it drains."""
        if sequence.holding is None or sequence.holding.retired:
            return []
        self._ledger.retire(sequence.holding)
        self._draining.append(sequence)
        return self._settle()

    def reported(self, step: int) -> list[Sequence]:
        """Plan ``step`` is reported: the sequences that have drained, to vacate their slots."""
        self._reported = step
        return self._settle()

    def take_frees(self) -> tuple[int, ...]:
        """The slots that the worker still has to let go of. Take them once, for the plan that says so."""
        frees, self._frees = tuple(self._frees), []
        return frees

    def vacate(self, sequence: Sequence) -> None:
        """Free its slot and its blocks: no plan in flight names it."""
        slot = slot_of(sequence)
        self._ledger.close(holding_of(sequence))
        del self._holders[slot]
        self._unused.append(slot)
        self._frees.append(slot)
        sequence.slot = None
        sequence.holding = None

    def _settle(self) -> list[Sequence]:
        settled = [sequence for sequence in self._draining if sequence.last_plan <= self._reported]
        if settled:
            self._draining = [sequence for sequence in self._draining if sequence.last_plan > self._reported]
        return settled
