"""The sequences on a worker, by slot: what a plan may say of them, and what follows from it.

A worker obeys plans without trusting them: two sequences writing into one block would give wrong text to somebody, and
nothing later would notice. So every plan is checked against four ledgers before anything is computed:

* *slots*: a slot is empty or holds one sequence; ``starts`` fill empty ones, ``frees`` empty full ones;
* *blocks*: a block has as many owners as tables that name it. More than one only by a share: at a start, whole blocks
  of tokens that are already computed;
* *host memory*: what is swapped out, and that it comes back as it went (``swapped.py``);
* *positions*: KV is written in order. A prefill span begins where the last one ended, a decode follows a finished
  prefill, and the table reaches as far as what is computed.

A block that is given to a sequence afresh must hold no NaN or infinity, since a mask cannot stop one (``kv_cache.py``).
What a sequence wrote is *proven* once finite logits came of it. When it leaves before that, the blocks that it wrote
since are *suspect*, and are named to be scrubbed when somebody comes to own them; whoever shares one instead, has
computed the same tokens, and is welcome to what they gave. So no block is ever touched that has two owners, or that is
kept for later.

A sequence that sampled its last token stays in its slot, finished, until a plan frees it: plans that were on their way
when it finished still name it, and their work on it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workers.executor import PlanError
from workers.swapped import Moves, SwappedTable, Transfer
from workers.wire import NewSequence, PlanMessage, PrefillSpan, Sampling

FinishReason = Literal["stop", "length", "failed"]


@dataclass(slots=True, kw_only=True)
class SlotState:
    """One sequence. ``tokens`` grows by each emission; the KV of the first ``computed`` of them lies in ``blocks``.

    ``prompt_length`` counts the client's tokens alone, ``emitted`` the output since, on whichever worker. The KV of the
    first ``proven`` tokens is known to be finite, or is not this sequence's own. A token of ``ending_ids`` ends it.
    Where steps begin before the last one's tokens are read, ``unread`` more are sampled, and counted as emitted.
    """

    slot: int
    sequence_id: str
    tokens: list[int]
    prompt_length: int
    emitted: int
    computed: int
    max_tokens: int
    sampling: Sampling
    blocks: list[int]
    proven: int = 0
    ending_ids: frozenset[int] = frozenset()
    finished: FinishReason | None = None
    unread: int = 0

    @property
    def length(self) -> int:
        """Tokens that there are, read or not."""
        return len(self.tokens) + self.unread

    @property
    def prompt(self) -> list[int]:
        return self.tokens[: self.prompt_length]

    def prompt_from(self, start: int, most: int) -> list[int]:
        """At most so many of the prompt's tokens from ``start`` on: long prompts are looked at piece by piece."""
        return self.tokens[start : min(start + most, self.prompt_length)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Compute ``length`` tokens of a sequence from position ``start`` on; ``emits``: then sample one token."""

    state: SlotState
    start: int
    length: int
    emits: bool

    @property
    def ids(self) -> list[int]:
        """Its tokens; 0 where one is not read yet, and only the device knows it."""
        known = self.state.tokens[self.start : self.start + self.length]
        return known if len(known) == self.length else [*known, *[0] * (self.length - len(known))]


class SlotTable:
    """All sequences of one worker. After a ``PlanError`` nothing but ``reset`` makes sense."""

    def __init__(
        self,
        *,
        max_slots: int,
        kv_blocks: int,
        block_size: int,
        context_length: int,
        eos_ids: Sequence[int],
        host_blocks: int = 0,
    ) -> None:
        self._max_slots = max_slots
        self._kv_blocks = kv_blocks
        self._block_size = block_size
        self._context_length = context_length
        self._eos_ids = frozenset(eos_ids)
        self._states: dict[int, SlotState] = {}
        self._owners: dict[int, int] = {}
        self._suspects: set[int] = set()
        self._swapped = SwappedTable(host_blocks=host_blocks, block_size=block_size)
        self._moves = Moves()

    @property
    def live_blocks(self) -> int:
        """Distinct blocks that some sequence holds."""
        return len(self._owners)

    @property
    def host_blocks(self) -> int:
        """Blocks' worth of host memory that swapped sequences take."""
        return self._swapped.blocks_in_use

    def reset(self) -> None:
        """Forget every sequence. What they left in their blocks stays, and stays suspect."""
        for state in self._states.values():
            self._suspect(state)
        self._suspects.update(self._moves.scrub)  # of a plan that was refused half way: nobody has cleaned them
        self._states.clear()
        self._owners.clear()
        self._swapped.reset()
        self._moves = Moves()

    def state(self, slot: int) -> SlotState:
        """The sequence in ``slot``, which is not empty."""
        return self._states[slot]

    def take_moves(self) -> Moves:
        """What was asked of the pool since this was last called."""
        moves, self._moves = self._moves, Moves()
        return moves

    def apply(self, plan: PlanMessage) -> tuple[Work, ...]:
        """Take in a plan and give the work to do, decodes first, in plan order, finished sequences left out.

        The work counts as computed from here on. Raises ``PlanError``.
        """
        for sequence_id in plan.drops:
            self._swapped.drop(sequence_id)
            self._moves.drops.append(sequence_id)
        for slot in plan.swap_outs:
            self._swap_out(self._state(slot, "swapped out"), plan)
        for slot in plan.frees:
            self._free(slot)
        for start in plan.starts:
            self._start(start)
        for grow in plan.grows:
            self._own(grow.blocks, self._state(grow.slot, "grown"))
        for source, target in plan.copies:
            self._check_copy(source, target)
        named = [*plan.decode, *(span.slot for span in plan.prefill)]
        if len(set(named)) < len(named):
            raise PlanError("a slot is to run twice in one plan")
        work = [self._decode(self._state(slot, "decoded")) for slot in plan.decode]
        work += [self._prefill(self._state(span.slot, "prefilled"), span) for span in plan.prefill]
        return tuple(item for item in work if item is not None)

    def emit(self, state: SlotState, token: int) -> FinishReason | None:
        """Append a sampled token; the reason when it was the sequence's last."""
        state.proven = state.computed
        state.tokens.append(token)
        state.emitted += 1
        if token in state.ending_ids:
            state.finished = "stop"
        elif state.emitted == state.max_tokens:
            state.finished = "length"
        return state.finished

    def expect(self, state: SlotState) -> None:
        """A token of this sequence is being sampled, to be read later."""
        state.unread += 1
        state.emitted += 1
        if state.emitted == state.max_tokens:
            state.finished = "length"  # no later plan needs to wait to know that

    def read(self, state: SlotState, token: int, *, computed: int) -> FinishReason | None:
        """The oldest token expected is ``token``, sampled when ``computed`` were; the reason when it was the last."""
        state.proven = max(state.proven, computed)
        state.tokens.append(token)
        state.unread -= 1
        if token in state.ending_ids:
            state.finished = "stop"
        return state.finished if state.finished == "stop" or not state.unread else None

    def fail(self, state: SlotState) -> FinishReason:
        """End a sequence that cannot go on."""
        state.finished = "failed"
        return state.finished

    def _swap_out(self, state: SlotState, plan: PlanMessage) -> None:
        if state.finished is not None or state.slot not in plan.frees:
            raise PlanError(f"slot {state.slot} is swapped out, but has ended or is not freed")
        num_blocks = self._swapped.keep(state.sequence_id, state.computed)
        self._moves.outs.append(
            Transfer(sequence_id=state.sequence_id, first=0, blocks=tuple(state.blocks[:num_blocks]))
        )

    def _swap_in(self, new: NewSequence) -> None:
        self._swapped.take_back(new.sequence_id, new.computed)
        first, end = (new.computed - new.swapped) // self._block_size, -(-new.computed // self._block_size)
        self._moves.ins.append(Transfer(sequence_id=new.sequence_id, first=first, blocks=new.blocks[first:end]))

    def _free(self, slot: int) -> None:
        state = self._state(slot, "freed")
        self._suspect(state)
        for block in state.blocks:
            self._owners[block] -= 1
            if self._owners[block] == 0:
                del self._owners[block]
        del self._states[slot]

    def _suspect(self, state: SlotState) -> None:
        if state.proven < state.computed:
            first, end = state.proven // self._block_size, -(-state.computed // self._block_size)
            self._suspects.update(state.blocks[first:end])

    def _start(self, new: NewSequence) -> None:
        self._check_start(new)
        stop_ids = frozenset(new.sampling.stop_token_ids)
        state = SlotState(
            slot=new.slot,
            sequence_id=new.sequence_id,
            tokens=list(new.tokens),
            prompt_length=len(new.tokens) - new.emitted,
            emitted=new.emitted,
            computed=new.computed,
            max_tokens=new.max_tokens,
            sampling=new.sampling,
            blocks=[],
            proven=new.computed - new.swapped,
            ending_ids=stop_ids if new.sampling.ignore_eos else stop_ids | self._eos_ids,
        )
        self._states[new.slot] = state
        shared = (new.computed - new.swapped) // self._block_size
        if new.swapped:
            self._swap_in(new)
        self._share(new.blocks[:shared], state)
        self._own(new.blocks[shared:], state)

    def _check_start(self, new: NewSequence) -> None:
        if new.slot >= self._max_slots:
            raise PlanError(f"slot {new.slot} is started; there are {self._max_slots}")
        if new.slot in self._states:
            raise PlanError(f"slot {new.slot} is started, but holds {self._states[new.slot].sequence_id}")
        length, left = len(new.tokens), new.max_tokens - new.emitted
        if new.emitted >= length or left < 1:
            raise PlanError(f"slot {new.slot} is started with no prompt, or with no output left to give")
        if length + left > self._context_length:
            raise PlanError(f"slot {new.slot} may reach {length + left} tokens; the context is {self._context_length}")
        if new.computed >= length or new.computed > len(new.blocks) * self._block_size:
            raise PlanError(f"slot {new.slot} is started with {new.computed} tokens computed, which cannot be")
        if new.swapped > new.computed or (new.swapped and (new.computed - new.swapped) % self._block_size):
            raise PlanError(f"slot {new.slot} is started with {new.swapped} of {new.computed} tokens swapped in")

    def _share(self, blocks: Sequence[int], state: SlotState) -> None:
        if len(set(blocks)) < len(blocks):
            raise PlanError(f"slot {state.slot} is to share a block twice")
        for block in blocks:
            self._enter(block, state, owners=self._owners.get(block, 0) + 1)

    def _own(self, blocks: Sequence[int], state: SlotState) -> None:
        for block in blocks:
            if block in self._owners:
                raise PlanError(f"block {block} is given to slot {state.slot}, but has an owner")
            self._enter(block, state, owners=1)
            if block in self._suspects:
                self._suspects.discard(block)
                self._moves.scrub.append(block)

    def _enter(self, block: int, state: SlotState, *, owners: int) -> None:
        if block >= self._kv_blocks:
            raise PlanError(f"block {block} is given to slot {state.slot}; the pool has {self._kv_blocks}")
        state.blocks.append(block)
        self._owners[block] = owners

    def _check_copy(self, source: int, target: int) -> None:
        if source >= self._kv_blocks or self._owners.get(target) != 1:
            raise PlanError(f"block {source} is copied to block {target}, which no sequence owns alone")

    def _decode(self, state: SlotState) -> Work | None:
        if state.finished is not None:
            return None
        if state.computed != state.length - 1 or state.length == state.prompt_length:
            raise PlanError(f"slot {state.slot} is decoded before its prefill is done")
        return self._compute(state, length=1, emits=True)

    def _prefill(self, state: SlotState, span: PrefillSpan) -> Work | None:
        if state.finished is not None:
            return None
        end = span.start + span.length
        if span.start != state.computed or span.length < 1 or end > len(state.tokens):
            raise PlanError(
                f"slot {state.slot} is prefilled from {span.start} to {end}; "
                f"{state.computed} of its {len(state.tokens)} tokens are computed"
            )
        if span.emits is not (end == len(state.tokens)):
            raise PlanError(
                f"slot {state.slot} is to emit at {end} of {len(state.tokens)} tokens, or not to at the end"
            )
        return self._compute(state, length=span.length, emits=span.emits)

    def _compute(self, state: SlotState, *, length: int, emits: bool) -> Work:
        start, end = state.computed, state.computed + length
        if end > len(state.blocks) * self._block_size:
            raise PlanError(f"slot {state.slot} reaches {end} tokens with {len(state.blocks)} blocks")
        state.computed = end
        return Work(state=state, start=start, length=length, emits=emits)

    def _state(self, slot: int, verb: str) -> SlotState:
        state = self._states.get(slot)
        if state is None:
            raise PlanError(f"slot {slot} is {verb}, but is empty")
        return state
