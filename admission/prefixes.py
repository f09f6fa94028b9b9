"""Which KV blocks a sequence can take over instead of computing them, and which of its own others can.

A full block whose tokens, and all tokens before it, equal those of another is the same block. Prompt blocks go by the
hashes that came with the sequence, so that they serve everybody; what a sequence has beyond these (its output, or a
prompt without hashes) goes by its own name and serves itself, when it was preempted and starts again.

* A block can be shared once the plan that fills it has been *reported*: then its content is there, whatever follows.
* The last token that a sequence has is always computed: its logits are what the next token is drawn from.
* Names of its own are forgotten when the sequence ends. If it failed its prompt blocks are as well: what they hold is
  in doubt.
* A sequence whose next block is being filled by one that runs can wait for it (``PrefixReuse.AWAITED``): then one of
  many equal prompts is computed, and not all of them side by side.
"""

from __future__ import annotations

from admission.blocks import Key
from admission.ledger import Ledger
from admission.lifecycle import State
from admission.presets import PrefixReuse
from admission.sequence import Sequence, holding_of


class Prefixes:
    """The rule of one scheduler. All lengths in blocks unless said otherwise."""

    def __init__(self, *, ledger: Ledger, reuse: PrefixReuse) -> None:
        self._pool = ledger.pool
        self._block_size = ledger.block_size
        self._is_on = reuse is not PrefixReuse.NONE and ledger.num_blocks is not None
        self._is_waiting_on = self._is_on and reuse is PrefixReuse.AWAITED
        self._being_filled: dict[Key, int] = {}  # prompt blocks that running sequences will fill, and how many of them

    def find(self, sequence: Sequence) -> tuple[int, ...]:
        """Blocks that hold its first tokens already. None for one that brings KV of its own along."""
        if not self._is_on or sequence.prefilled > 0:
            return ()
        found: list[int] = []
        for index in range(self._most(sequence)):
            block = self._pool.find(_key(sequence, index))
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def should_wait(self, sequence: Sequence, num_found: int) -> bool:
        """Whether the block after those found is being filled right now."""
        if not self._is_waiting_on or sequence.prefilled > 0:
            return False
        return num_found < self._most(sequence) and _key(sequence, num_found) in self._being_filled

    def start(self, sequence: Sequence, num_found: int) -> None:
        """It runs from now on, and fills what was not found nor brought along."""
        if not self._is_on:
            return
        sequence.published = num_found
        sequence.num_named = max(sequence.num_named, num_found)
        first = max(num_found, sequence.prefilled // self._block_size)
        sequence.filling = range(first, max(first, len(sequence.spec.block_hashes)))
        for index in sequence.filling:
            key = _key(sequence, index)
            self._being_filled[key] = self._being_filled.get(key, 0) + 1

    def filled(self, sequence: Sequence, tokens: int) -> None:
        """A report says that its first ``tokens`` tokens are computed."""
        if not self._is_on or sequence.failed:
            return
        num_filled = tokens // self._block_size
        if sequence.state is State.ENDED:
            num_filled = min(num_filled, len(sequence.spec.block_hashes))
        blocks = holding_of(sequence).blocks
        for index in range(sequence.published, num_filled):
            self._pool.publish(blocks[index], _key(sequence, index))
        sequence.published = max(sequence.published, num_filled)
        sequence.num_named = max(sequence.num_named, num_filled)
        self._fill_no_more(sequence, before=num_filled)

    def leave(self, sequence: Sequence) -> None:
        """It runs no more; what it has not filled it will not fill."""
        self._fill_no_more(sequence, before=sequence.filling.stop)

    def fail(self, sequence: Sequence) -> None:
        """The worker could not go on with it, whether or not it was still wanted: what its blocks hold is in doubt."""
        sequence.failed = True
        self._forget(sequence, range(sequence.num_named))

    def end(self, sequence: Sequence) -> None:
        """It will not come back."""
        self._forget(sequence, range(len(sequence.spec.block_hashes), sequence.num_named))

    def _most(self, sequence: Sequence) -> int:
        return (sequence.known_tokens - 1) // self._block_size

    def _forget(self, sequence: Sequence, indices: range) -> None:
        for index in indices:
            self._pool.forget(_key(sequence, index))

    def _fill_no_more(self, sequence: Sequence, *, before: int) -> None:
        for index in range(sequence.filling.start, min(before, sequence.filling.stop)):
            key = _key(sequence, index)
            left = self._being_filled[key] - 1
            if left > 0:
                self._being_filled[key] = left
            else:
                del self._being_filled[key]
        sequence.filling = range(max(before, sequence.filling.start), sequence.filling.stop)


def _key(sequence: Sequence, index: int) -> Key:
    hashes = sequence.spec.block_hashes
    return hashes[index] if index < len(hashes) else (sequence.spec.sequence_id, index)
