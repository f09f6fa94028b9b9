"""Host memory for the KV of preempted sequences: who lies there, how much it takes, and what plans must say of it.

A sequence goes out with the plan that frees its slot, and comes back with the plan that starts it again; when it ends
meanwhile, a plan says that it is dropped. Counted in blocks, as the worker counts. Where there is no room left a
preempted sequence is computed again instead: nothing is pushed out for it.
"""

from __future__ import annotations


class Swaps:
    """``num_blocks`` of host memory; None: as much as is asked for.

    Right after a plan was built, ``blocks_in_use`` is what the worker keeps once it has applied that plan.
    """

    def __init__(self, *, num_blocks: int | None, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._kept: dict[str, int] = {}
        self._outs: dict[str, int] = {}  # slots that the next plan swaps out
        self._drops: list[str] = []
        self.blocks_in_use = 0

    def keep(self, sequence_id: str, *, slot: int, tokens: int) -> bool:
        """Keep a sequence that leaves ``slot`` with so many tokens computed; False when there is no room for it."""
        blocks = -(-tokens // self._block_size)
        if self._num_blocks is not None and self.blocks_in_use + blocks > self._num_blocks:
            return False
        self._kept[sequence_id] = blocks
        self.blocks_in_use += blocks
        self._outs[sequence_id] = slot
        return True

    def take_back(self, sequence_id: str) -> None:
        """It starts again in the next plan, with what was kept of it."""
        self.blocks_in_use -= self._kept.pop(sequence_id)

    def forget(self, sequence_id: str) -> None:
        """It has ended. One that is not here is left alone."""
        if sequence_id in self._kept:
            self.blocks_in_use -= self._kept.pop(sequence_id)
            if self._outs.pop(sequence_id, None) is None:
                self._drops.append(sequence_id)

    def take_moves(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The slots to swap out and the sequences to drop. Take them once, for the plan that says so."""
        if not (self._outs or self._drops):
            return (), ()
        outs, drops = tuple(self._outs.values()), tuple(self._drops)
        self._outs, self._drops = {}, []
        return outs, drops
