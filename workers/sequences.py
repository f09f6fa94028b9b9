"""The sequences in a worker's slots, and who owns which KV block.

The scheduler decides, a worker obeys; but it obeys only what can be right. Every plan is checked against what the slots
hold: a chunk continues exactly where the sequence stands, a decode has its one pending token, a block has one writer.
Anything else means that driver and worker have lost each other, and raises PlanError.

A sequence of ``n`` tokens of which ``computed`` lie in the KV pool:

    prompt and earlier output          sampled last, not computed yet
    |----------------------------------|-|
    0            computed             n-1 n     a decode computes token n-1 and samples token n

A sequence that ended (eos, length, failed) keeps slot and blocks until a plan frees them, and is skipped until then: with
two plans in flight the driver cannot know yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.errors import PlanError
from workers.sampler import is_usable
from workers.wire import NewSequence, PlanMessage, Sampling


@dataclass(slots=True, kw_only=True)
class Running:
    """One sequence in a slot. ``finished`` is a reason of the report, or None while it goes on."""

    sequence_id: str
    tokens: list[int]
    prompt_length: int
    computed: int
    max_tokens: int
    sampling: Sampling
    blocks: list[int]
    finished: str | None = None

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens ``ids`` of the sequence in ``slot``, at positions ``start`` and on, to be computed in this step."""

    slot: int
    start: int
    ids: tuple[int, ...]
    emits: bool

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """What a plan may name: slots, blocks, positions and token ids, each below its number."""

    max_slots: int
    kv_blocks: int
    block_size: int
    context_length: int
    vocab_size: int


@dataclass(slots=True)
class SequenceTable:
    """Slots, their sequences, and the owners of each block."""

    limits: TableLimits
    running: dict[int, Running] = field(default_factory=dict)
    _owners: Counter[int] = field(default_factory=Counter)

    @property
    def live_blocks(self) -> int:
        """Distinct blocks that some sequence holds."""
        return len(self._owners)

    def clear(self) -> None:
        self.running.clear()
        self._owners.clear()

    # --- changes of a plan ------------------------------------------------------------------------------------------

    def free(self, slot: int) -> Running:
        sequence = self.running.pop(slot, None)
        if sequence is None:
            raise PlanError(f"The plan frees slot {slot}, which is empty.")
        for block in sequence.blocks:
            self._owners[block] -= 1
            if not self._owners[block]:
                del self._owners[block]
        return sequence

    def start(self, new: NewSequence) -> Running:
        self._check_start(new)
        sequence = Running(
            sequence_id=new.sequence_id,
            tokens=list(new.tokens),
            prompt_length=len(new.tokens) - new.emitted,
            computed=new.computed,
            max_tokens=new.max_tokens,
            sampling=new.sampling,
            blocks=[],
        )
        shared = new.computed // self.limits.block_size
        self._check_shared(new.blocks[:shared])
        self._own(new.blocks[:shared], sequence)
        self._own_alone(new.blocks[shared:], sequence, new.slot)
        self.running[new.slot] = sequence
        vocab_size = self.limits.vocab_size
        if not is_usable(new.sampling) or not all(0 <= token < vocab_size for token in new.tokens):
            sequence.finished = "failed"
        return sequence

    def grow(self, slot: int, blocks: Sequence[int]) -> Running:
        sequence = self._in(slot)
        self._own_alone(blocks, sequence, slot)
        return sequence

    def check_copies(self, copies: Sequence[tuple[int, int]]) -> None:
        for pair in copies:
            if not all(0 <= block < self.limits.kv_blocks for block in pair):
                raise PlanError(f"The plan copies block {pair[0]} to {pair[1]}; there are {self.limits.kv_blocks}.")

    # --- the work of a plan -----------------------------------------------------------------------------------------

    def spans(self, plan: PlanMessage) -> tuple[Span, ...]:
        """What the plan computes, decodes first, in its order, without the sequences that have ended."""
        named = [*plan.decode, *(chunk.slot for chunk in plan.prefill)]
        if len(named) != len(set(named)):
            raise PlanError("The plan names a slot twice.")
        spans = [self._decode_span(slot) for slot in plan.decode if self._in(slot).finished is None]
        for chunk in plan.prefill:
            sequence = self._in(chunk.slot)
            if sequence.finished is None:
                ids = tuple(sequence.tokens[chunk.start : chunk.start + chunk.length])
                span = Span(slot=chunk.slot, start=chunk.start, ids=ids, emits=chunk.emits)
                self._check_chunk(span, chunk.length, sequence)
                spans.append(span)
        return tuple(spans)

    def advance(self, span: Span) -> None:
        """The tokens of ``span`` lie in the KV pool now."""
        self.running[span.slot].computed = span.end

    def emit(self, slot: int, token: int, eos_ids: frozenset[int]) -> str | None:
        """Take a sampled token; the reason if the sequence ends with it."""
        sequence = self.running[slot]
        sequence.tokens.append(token)
        if token in eos_ids and not sequence.sampling.ignore_eos:
            sequence.finished = "stop"
        elif sequence.emitted >= sequence.max_tokens:
            sequence.finished = "length"
        return sequence.finished

    def fail(self, slot: int) -> list[int]:
        """End the sequence in ``slot``; returns the blocks that it alone holds, whose content is not to be trusted."""
        sequence = self.running[slot]
        sequence.finished = "failed"
        return [block for block in sequence.blocks if self._owners[block] == 1]

    # --- checks -----------------------------------------------------------------------------------------------------

    def _in(self, slot: int) -> Running:
        sequence = self.running.get(slot)
        if sequence is None:
            raise PlanError(f"The plan names slot {slot}, which is empty.")
        return sequence

    def _decode_span(self, slot: int) -> Span:
        sequence = self.running[slot]
        pending = len(sequence.tokens) - sequence.computed
        if pending != 1 or sequence.emitted == 0:
            raise PlanError(f"The plan decodes slot {slot}, which has {pending} tokens to compute.")
        span = Span(slot=slot, start=sequence.computed, ids=(sequence.tokens[-1],), emits=True)
        self._check_room(span, sequence)
        return span

    def _check_chunk(self, span: Span, length: int, sequence: Running) -> None:
        if length < 1 or span.start != sequence.computed or len(span.ids) != length:
            raise PlanError(
                f"The plan computes tokens {span.start} to {span.start + length} in slot {span.slot},"
                f" where {sequence.computed} of {len(sequence.tokens)} are done."
            )
        if span.emits != (span.end == len(sequence.tokens)):
            raise PlanError(f"The chunk of slot {span.slot} that ends its tokens must emit, and no other may.")
        self._check_room(span, sequence)

    def _check_room(self, span: Span, sequence: Running) -> None:
        if span.end > len(sequence.blocks) * self.limits.block_size:
            raise PlanError(f"Slot {span.slot} has {len(sequence.blocks)} blocks, too few for {span.end} tokens.")

    def _check_start(self, new: NewSequence) -> None:
        limits = self.limits
        if not 0 <= new.slot < limits.max_slots:
            raise PlanError(f"There is no slot {new.slot}, only {limits.max_slots} of them.")
        if new.slot in self.running:
            raise PlanError(f"The plan starts {new.sequence_id} in slot {new.slot}, which is taken.")
        prompt_length = len(new.tokens) - new.emitted
        if not (0 <= new.emitted < new.max_tokens and prompt_length > 0 and 0 <= new.computed < len(new.tokens)):
            raise PlanError(
                f"{new.sequence_id} starts with {len(new.tokens)} tokens, {new.emitted} of them emitted"
                f" of at most {new.max_tokens}, and {new.computed} computed."
            )
        if prompt_length + new.max_tokens > limits.context_length:
            raise PlanError(
                f"{new.sequence_id} may reach {prompt_length + new.max_tokens} tokens;"
                f" the context holds {limits.context_length}."
            )
        if new.computed > len(new.blocks) * limits.block_size:
            raise PlanError(f"{new.sequence_id} has {new.computed} tokens computed in {len(new.blocks)} blocks.")

    def _check_shared(self, blocks: Sequence[int]) -> None:
        """Full blocks of a common prefix may have several readers, but nobody may still be writing to them."""
        if not any(block in self._owners for block in blocks):
            return
        unfilled = {
            block
            for sequence in self.running.values()
            for block in sequence.blocks[sequence.computed // self.limits.block_size :]
        }
        for block in blocks:
            if block in unfilled:
                raise PlanError(f"Block {block} is shared before it is full.")

    def _own_alone(self, blocks: Sequence[int], sequence: Running, slot: int) -> None:
        for block in blocks:
            if block in self._owners:
                raise PlanError(f"Block {block} of slot {slot} has an owner already.")
            self._own((block,), sequence)

    def _own(self, blocks: Sequence[int], sequence: Running) -> None:
        for block in blocks:
            if not 0 <= block < self.limits.kv_blocks:
                raise PlanError(f"There is no block {block}, only {self.limits.kv_blocks} of them.")
            self._owners[block] += 1
            sequence.blocks.append(block)
        if len(sequence.blocks) * self.limits.block_size >= self.limits.context_length + self.limits.block_size:
            raise PlanError(f"{sequence.sequence_id} has {len(sequence.blocks)} blocks, more than a whole context.")
