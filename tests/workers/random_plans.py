"""A driver that does to its sequences whatever a scheduler may do, at random, and checks what the engine reports.

It preempts by recompute and by swap, forgets what it has swapped out, starts sequences on blocks that others hold or
held with the same tokens, cuts prompts anywhere, and lets sequences sit out. The tokens must not notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.workers.engine_support import Request
from workers.engine import Engine
from workers.wire import BlockGrowth, NewSequence, PlanMessage, PrefillSpan


@dataclass(slots=True, kw_only=True, eq=False)
class Life:
    """One request's way through the engine. ``swapped``: tokens that lie in host memory."""

    name: str
    request: Request
    output: list[int] = field(default_factory=list)
    finish: str | None = None
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    swapped: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.request.tokens, *self.output)

    @property
    def decodes(self) -> bool:
        return self.computed == len(self.tokens) - 1 and bool(self.output)


@dataclass(slots=True, kw_only=True)
class _Parts:
    """A plan as it comes together."""

    frees: list[int] = field(default_factory=list)
    swap_outs: list[int] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)
    starts: list[NewSequence] = field(default_factory=list)
    grows: list[BlockGrowth] = field(default_factory=list)
    prefill: list[PrefillSpan] = field(default_factory=list)
    decode: list[int] = field(default_factory=list)


class RandomPlans:
    """See the module. ``done`` counts what was done, so that a test can tell that it was."""

    def __init__(self, engine: Engine, random: Random) -> None:
        self._engine = engine
        self._random = random
        self._free_slots = list(range(engine.max_slots))
        self._free_blocks = random.sample(range(engine.kv_blocks), engine.kv_blocks)
        self._holders: Counter[int] = Counter()
        self._content: dict[int, tuple[int, ...]] = {}  # of a whole block: all tokens up to its end
        self._running: list[Life] = []
        self._waiting: list[Life] = []
        self._step = 0
        self.done: Counter[str] = Counter()

    def run(self, requests: Sequence[Request]) -> list[Life]:
        """The life of each request, to its end; afterwards the engine is empty."""
        lives = [Life(name=f"life-{number}", request=request) for number, request in enumerate(requests)]
        self._waiting = list(lives)
        while self._waiting or self._running:
            self._iterate()
        return lives

    def _iterate(self) -> None:
        parts = _Parts()
        waiting = list(self._waiting)  # what leaves in this plan comes back in a later one
        for life in list(self._running):
            self._maybe_leave(life, parts)
        for life in waiting:
            if self._random.random() < 0.6:
                self._maybe_start(life, parts)
        for life in self._random.sample(self._running, len(self._running)):
            if self._random.random() < 0.9:
                self._advance(life, parts)
        self._execute(parts)

    # --- leaving ------------------------------------------------------------------------------------------------------

    def _maybe_leave(self, life: Life, parts: _Parts) -> None:
        if life.finish is None:
            if self._random.random() < 0.8:
                return
            self._waiting.append(life)
            kept = -(-life.computed // self._engine.block_size)
            if life.computed and self._host_blocks() + kept <= self._engine.host_blocks and self._random.random() < 0.6:
                parts.swap_outs.append(self._slot(life))
                life.swapped = life.computed
                self.done["swap out"] += 1
            else:
                self.done["recompute"] += 1
        self._running.remove(life)
        parts.frees.append(self._slot(life))
        self._free_slots.append(self._slot(life))
        for block in life.blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                self._free_blocks.insert(self._random.randint(0, len(self._free_blocks)), block)
        life.slot, life.blocks, life.computed = None, [], 0

    def _host_blocks(self) -> int:
        return sum(-(-life.swapped // self._engine.block_size) for life in self._waiting)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _maybe_start(self, life: Life, parts: _Parts) -> None:
        size = self._engine.block_size
        if life.swapped and self._random.random() < 0.2:
            parts.drops.append(life.name)
            life.swapped = 0
            self.done["drop"] += 1
        shared = self._shareable(life)
        needed = -(-len(life.tokens) // size) - len(shared)
        if not self._free_slots or needed > sum(block not in shared for block in self._free_blocks):
            return
        for block in shared:
            if block in self._free_blocks:
                self._free_blocks.remove(block)
        swapped = max(0, life.swapped - len(shared) * size)
        life.computed = len(shared) * size + swapped
        life.slot = self._free_slots.pop(self._random.randrange(len(self._free_slots)))
        self._hold(life, shared)
        self._hold(life, [self._fresh() for _ in range(needed)])
        if life.swapped and not swapped:
            parts.drops.append(life.name)  # all of it is to be had without
        life.swapped = 0
        self.done["swap in"] += bool(swapped)
        self.done["share"] += bool(shared)
        self._waiting.remove(life)
        self._running.append(life)
        parts.starts.append(
            NewSequence(
                slot=life.slot,
                sequence_id=life.name,
                tokens=life.tokens,
                emitted=len(life.output),
                computed=life.computed,
                max_tokens=life.request.max_tokens,
                sampling=life.request.sampling,
                blocks=tuple(life.blocks),
                swapped=swapped,
            )
        )

    def _shareable(self, life: Life) -> list[int]:
        """Blocks that hold the first tokens of this sequence: some of them, as the cache may have lost the others."""
        size, found = self._engine.block_size, []
        most = (len(life.tokens) - 1) // size
        if life.request.sampling.prompt_logprobs is not None:
            most = 0  # they have to be computed to be scored
        by_content = {content: block for block, content in self._content.items()}
        for end in range(size, most * size + 1, size):
            block = by_content.get(life.tokens[:end])
            if block is None or self._random.random() < 0.1:
                break
            found.append(block)
        return found

    def _fresh(self) -> int:
        block = self._free_blocks.pop(0)
        self._content.pop(block, None)
        return block

    def _hold(self, life: Life, blocks: Sequence[int]) -> None:
        life.blocks += blocks
        self._holders.update(blocks)

    # --- running ------------------------------------------------------------------------------------------------------

    def _advance(self, life: Life, parts: _Parts) -> None:
        slot = self._slot(life)
        if life.decodes and self._random.random() < 0.9:
            if len(life.tokens) > len(life.blocks) * self._engine.block_size:
                if not self._free_blocks:
                    return
                grown = self._fresh()
                self._hold(life, [grown])
                parts.grows.append(BlockGrowth(slot=slot, blocks=(grown,)))
            parts.decode.append(slot)
            life.computed += 1
            return
        if len(life.tokens) > len(life.blocks) * self._engine.block_size:
            return
        length = min(self._random.choice((1, 2, 3, 7, 100)), len(life.tokens) - life.computed)
        emits = life.computed + length == len(life.tokens)
        parts.prefill.append(PrefillSpan(slot=slot, start=life.computed, length=length, emits=emits))
        life.computed += length

    def _execute(self, parts: _Parts) -> None:
        self._step += 1
        report = self._engine.execute(
            PlanMessage(
                step=self._step,
                epoch=1,
                frees=tuple(parts.frees),
                starts=tuple(parts.starts),
                grows=tuple(parts.grows),
                copies=(),
                prefill=tuple(parts.prefill),
                decode=tuple(parts.decode),
                swap_outs=tuple(parts.swap_outs),
                drops=tuple(parts.drops),
            )
        )
        assert report.live_blocks == len(self._holders)
        assert report.host_blocks == self._host_blocks()
        by_slot = {life.slot: life for life in self._running}
        for life in self._running:
            size = self._engine.block_size
            for end in range(size, life.computed + 1, size):
                self._content[life.blocks[end // size - 1]] = life.tokens[:end]
        emitting = [*parts.decode, *(span.slot for span in parts.prefill if span.emits)]
        assert [slot for slot, _ in report.tokens] == emitting
        for slot, token in report.tokens:
            by_slot[slot].output.append(token)
        for slot, reason in report.finished:
            by_slot[slot].finish = reason

    @staticmethod
    def _slot(life: Life) -> int:
        assert life.slot is not None
        return life.slot
