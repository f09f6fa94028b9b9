"""How much KV memory a sequence must find before it starts: the preset's rule applied to the ledger."""

from __future__ import annotations

from collections.abc import Sequence as Many

from admission.events import SequenceSpec
from admission.ledger import Holding, Ledger, Promise
from admission.presets import KvAdmission, Preset
from admission.sequence import Sequence


class Memory:
    """Admission by KV. All counts are blocks; the last output token is never written, so it needs no room."""

    def __init__(self, *, ledger: Ledger, preset: Preset, unpreemptible: tuple[str, ...] = ()) -> None:
        self.unpreemptible = unpreemptible
        self._ledger = ledger
        self._preset = preset
        self._watermark = -(-(ledger.num_blocks or 0) * preset.watermark_percent // 100)

    def fits_ever(self, spec: SequenceSpec) -> bool:
        """Whether the pool, all of it, can hold this sequence to its end."""
        return self._ledger.num_blocks is None or self._maximum(spec) <= self._ledger.num_blocks

    def needed(self, sequence: Sequence) -> int:
        """Blocks that it must find before it starts."""
        spec = sequence.spec
        known = self._ledger.blocks_for(sequence.known_tokens)
        if self._promise(sequence) is Promise.FIRM:
            return self._maximum(spec)
        if self._preset.kv_admission is KvAdmission.EXPECTED:
            expected = min(spec.expected_tokens, spec.max_tokens)
            return max(known, self._ledger.blocks_for(spec.prompt_tokens + expected - 1))
        return known

    def open(self, sequence: Sequence, *, shared: Many[int], num_running: int) -> Holding | None:
        """Memory for the tokens that it has, beginning with the ``shared`` blocks, and a promise for the rest.

        None when it does not fit now.
        """
        needed = self.needed(sequence)
        if not self._ledger.can_open(blocks=needed, spare=self._spare(num_running), shared=shared):
            return None
        return self._ledger.open(
            blocks_now=self._ledger.blocks_for(sequence.known_tokens),
            blocks_in_all=needed,
            promise=self._promise(sequence),
            shared=shared,
        )

    def room_tokens(self, claimed: list[Sequence], *, num_running: int) -> int | None:
        """Tokens (prompt and expected output) of a new sequence that fits after those claimed; None: not limited.

        One more than the free blocks hold, as the last output token is not written.
        """
        if self._ledger.num_blocks is None:
            return None
        spare = self._spare(num_running + len(claimed))
        blocks = self._ledger.room - spare - sum(self.needed(sequence) for sequence in claimed)
        return blocks * self._ledger.block_size + 1 if blocks > 0 else 0

    def must_stay(self, sequence: Sequence) -> bool:
        """Of a class that is never preempted, or preempted as often as the preset allows.

        It starts with all its memory, and is nobody's victim.
        """
        if sequence.spec.class_name in self.unpreemptible:
            return True
        return self._preset.pause_budget is not None and sequence.pauses >= self._preset.pause_budget

    def _promise(self, sequence: Sequence) -> Promise:
        if self._preset.kv_admission is KvAdmission.MAXIMUM or self.must_stay(sequence):
            return Promise.FIRM
        return Promise.EXPECTED

    def _spare(self, num_running: int) -> int:
        """An idle pool has nobody to keep a watermark for."""
        return self._watermark if num_running > 0 else 0

    def _maximum(self, spec: SequenceSpec) -> int:
        return self._ledger.blocks_for(spec.prompt_tokens + spec.max_tokens - 1)
