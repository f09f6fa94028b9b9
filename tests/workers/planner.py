"""The least driver that makes valid plans: it hands out slots and blocks, and knows what each report has to say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workers.executor import Executor
from workers.wire import BlockGrowth, NewSequence, PlanMessage, PrefillSpan, ReportMessage, Sampling

GREEDY = Sampling(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to generate. ``emitted`` is output that it already has, from another worker perhaps."""

    prompt: tuple[int, ...]
    max_tokens: int = 6
    sampling: Sampling = GREEDY
    emitted: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class Running:
    """One request in a slot, as planned so far: ``length`` counts tokens that are known or planned to be emitted."""

    request: Request
    sequence_id: str
    slot: int
    length: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    finish: str | None = None

    @property
    def is_planned_out(self) -> bool:
        return self.length == len(self.request.prompt) + self.request.max_tokens


class Planner:
    """Plans for one executor. A plan takes effect here when it is made: plans may be made ahead of their reports."""

    def __init__(self, executor: Executor, *, chunk: int = 1_000_000, epoch: int = 1) -> None:
        self._executor = executor
        self._chunk = chunk
        self._epoch = epoch
        self._free_slots = list(range(executor.max_slots))
        self._free_blocks = list(range(executor.kv_blocks))
        self._holders: dict[int, int] = {}
        self._running: dict[int, Running] = {}
        self._step = 0

    @property
    def live_blocks(self) -> int:
        """What the report of the last plan has to say."""
        return len(self._holders)

    def plan(
        self, *, starts: Sequence[Request] = (), frees: Iterable[Running] = (), share: Running | None = None
    ) -> PlanMessage:
        """Free, start, and advance everything that runs; ``share``: starts take this one's whole prompt blocks."""
        freed = tuple(self._leave(running) for running in frees)
        started = tuple(self._join(request, share) for request in starts)
        grows: list[BlockGrowth] = []
        prefill: list[PrefillSpan] = []
        decode: list[int] = []
        for running in self._running.values():
            if not running.is_planned_out:
                self._advance(running, grows, prefill, decode)
        self._step += 1
        return PlanMessage(
            step=self._step,
            epoch=self._epoch,
            frees=freed,
            starts=started,
            grows=tuple(grows),
            copies=(),
            prefill=tuple(prefill),
            decode=tuple(decode),
        )

    def take(self, report: ReportMessage) -> None:
        for slot, token in report.tokens:
            self._running[slot].output.append(token)
        for slot, reason in report.finished:
            self._running[slot].finish = reason

    def running(self) -> list[Running]:
        return list(self._running.values())

    def iterate(
        self, *, starts: Sequence[Request] = (), frees: Iterable[Running] = (), share: Running | None = None
    ) -> ReportMessage:
        """Plan, execute and take in the report; the worker's live blocks must be the planner's."""
        report = self._executor.execute(self.plan(starts=starts, frees=frees, share=share))
        assert report.step == self._step
        assert report.epoch == self._epoch
        assert report.live_blocks == self.live_blocks
        self.take(report)
        return report

    def iterate_on(self, request: Request, *, blocks: Sequence[int]) -> Running:
        """Start ``request`` on free ``blocks`` that hold the first of its tokens from an earlier sequence."""
        self._free_blocks = [block for block in self._free_blocks if block not in blocks]
        former = Running(request=request, sequence_id="", slot=0, length=0, blocks=list(blocks))
        self.iterate(starts=[request], share=former)
        return self.running()[-1]

    def finish(self) -> None:
        """Iterate until nothing runs, freeing what ends; the executor is empty afterwards."""
        while self._running:
            self.iterate(frees=[running for running in self.running() if running.finish is not None])
        assert self.live_blocks == 0

    def _leave(self, running: Running) -> int:
        del self._running[running.slot]
        self._free_slots.append(running.slot)
        for block in running.blocks:
            self._holders[block] -= 1
            if self._holders[block] == 0:
                del self._holders[block]
                self._free_blocks.append(block)
        return running.slot

    def _join(self, request: Request, share: Running | None) -> NewSequence:
        known = (*request.prompt, *request.emitted)
        slot = self._free_slots.pop(0)
        running = Running(request=request, sequence_id=f"sequence-{self._step}-{slot}", slot=slot, length=len(known))
        self._running[running.slot] = running
        if share is not None:
            whole = (len(known) - 1) // self._executor.block_size
            running.computed = whole * self._executor.block_size
            self._hold(running, share.blocks[:whole])
        self._reach(running, len(known))
        return NewSequence(
            slot=running.slot,
            sequence_id=running.sequence_id,
            tokens=known,
            emitted=len(request.emitted),
            computed=running.computed,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            blocks=tuple(running.blocks),
        )

    def _advance(
        self, running: Running, grows: list[BlockGrowth], prefill: list[PrefillSpan], decode: list[int]
    ) -> None:
        start, left = running.computed, running.length - running.computed
        if running.length > len(running.request.prompt) + len(running.request.emitted):
            decode.append(running.slot)
            added = self._reach(running, running.length)
            if added:
                grows.append(BlockGrowth(slot=running.slot, blocks=added))
            running.computed += 1
            running.length += 1
            return
        length = min(left, self._chunk)
        prefill.append(PrefillSpan(slot=running.slot, start=start, length=length, emits=length == left))
        running.computed += length
        running.length += length == left

    def _reach(self, running: Running, tokens: int) -> tuple[int, ...]:
        """Give the sequence blocks for so many tokens; the new ones."""
        needed = -(-tokens // self._executor.block_size) - len(running.blocks)
        added = [self._free_blocks.pop(0) for _ in range(needed)]
        self._hold(running, added)
        return tuple(added)

    def _hold(self, running: Running, blocks: Sequence[int]) -> None:
        running.blocks += blocks
        for block in blocks:
            self._holders[block] = self._holders.get(block, 0) + 1


def generate(executor: Executor, *requests: Request, chunk: int = 1_000_000) -> list[list[int]]:
    """The output of each request, all started at once."""
    planner = Planner(executor, chunk=chunk)
    planner.iterate(starts=requests)
    started = planner.running()
    planner.finish()
    return [running.output for running in started]
