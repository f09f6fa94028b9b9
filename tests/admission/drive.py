"""A worker and a store for scheduler tests: plain, strict, and suspicious of every plan.

``Harness`` feeds events to a scheduler, keeps its own books of what each plan may do, and asserts the scheduler's
promises at every step. It executes plans in order, when told to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from admission.events import (
    Cancelled,
    Claimed,
    Ended,
    Event,
    Exchanged,
    Finished,
    FinishReason,
    LimitsChanged,
    PauseReason,
    Plan,
    Reported,
    SequenceSpec,
    Start,
    Step,
    WorkerLost,
)
from admission.limits import Limits
from admission.planner import MOST_PASSES
from admission.presets import Batching, PrefillRule, PrefixReuse, Preset, Progress
from admission.scheduler import Scheduler


def make_spec(
    sequence_id: str,
    *,
    prompt: int = 4,
    output: int = 4,
    expected: int | None = None,
    rank: int = 1,
    score: int = 0,
    deadline_us: int | None = None,
    family: str | None = None,
    block_size: int = 4,
) -> SequenceSpec:
    """Sequences of one ``family`` have the same prompt, as far as the shorter of two goes; without one, their own."""
    hashes = tuple(f"{family}:{index}".encode() for index in range(prompt // block_size)) if family else ()
    return SequenceSpec(
        sequence_id=sequence_id,
        class_name=f"class{rank}",
        rank=rank,
        score=score,
        arrival_us=score,
        prompt_tokens=prompt,
        max_tokens=output,
        expected_tokens=output if expected is None else expected,
        deadline_us=deadline_us,
        block_hashes=hashes,
    )


def _content(spec: SequenceSpec, position: int) -> tuple[object, ...]:
    """What the KV of a token depends on, for a sequence made by ``make_spec``: all tokens up to it."""
    if spec.block_hashes and position < spec.prompt_tokens:
        return (spec.block_hashes[0], position)
    return (spec.sequence_id, position)


@dataclass(slots=True, kw_only=True)
class Running:
    """The worker's view of one slot."""

    sequence_id: str
    blocks: list[int]
    computed: int
    done: bool = False
    failed: bool = False


@dataclass(slots=True)
class Harness:
    """``tokens`` counts what each sequence emitted, ``ended`` how each ended. ``now`` moves by one per step.

    ``planned`` counts the tokens that plans ask for; ``begun``: one was asked for since the sequence last started.
    ``waiting`` are those handed over that no plan has started, ``paused`` those that the store would hold.
    """

    limits: Limits
    preset: Preset
    progress: Progress = Progress.RECOMPUTE
    scheduler: Scheduler = field(init=False)
    specs: dict[str, SequenceSpec] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    planned: dict[str, int] = field(default_factory=dict)
    begun: dict[str, bool] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    pauses: dict[str, int] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    in_flight: deque[Plan] = field(default_factory=deque)
    held: dict[int, Running] = field(default_factory=dict)
    host: dict[str, int] = field(default_factory=dict)  # swapped out: tokens
    kv: dict[tuple[int, int], object] = field(default_factory=dict)  # (block, offset) -> content
    num_found: int = 0  # prompt tokens that were not computed
    log: list[tuple[tuple[Event, ...], int, Step]] = field(default_factory=list)
    now: int = 0
    banned: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits, self.preset, progress=self.progress)

    # what happens

    def claim(self, *specs: SequenceSpec) -> Step:
        """Hand over sequences, in one step."""
        for spec in specs:
            self._hand_over(spec)
        return self.step(*(Claimed(sequence=spec) for spec in specs))

    def resume(self, sequence_id: str) -> Step:
        self.paused.remove(sequence_id)
        self.waiting.append(sequence_id)
        return self.step(Claimed(sequence=self.specs[sequence_id]))

    def cancel(self, sequence_id: str) -> Step:
        self.banned.append(sequence_id)
        return self.step(Cancelled(sequence_id=sequence_id))

    def exchange(self, spec: SequenceSpec, victim_id: str) -> Step:
        self._hand_over(spec)
        self.paused.append(victim_id)
        if victim_id in self.waiting:
            self.waiting.remove(victim_id)
        self.pauses[victim_id] = self.pauses.get(victim_id, 0) + 1
        return self.step(Exchanged(sequence=spec, victim_id=victim_id))

    def lose_worker(self) -> Step:
        self.in_flight.clear()
        self.held.clear()
        self.host.clear()
        return self.step(WorkerLost())

    def change_limits(self, limits: Limits) -> Step:
        """Fewer slots pause some, which is told only when their slots are back."""
        self.limits = limits
        for name in self.scheduler.running_ids():
            self.begun[name] = False
        return self.step(LimitsChanged(limits=limits))

    def report(self, *, stop: tuple[int, ...] = (), fail: tuple[int, ...] = ()) -> Step:
        """Execute the oldest plan; slots in ``stop`` emit an eos if they emit at all, those in ``fail`` go wrong."""
        return self.step(self.execute(self.in_flight.popleft(), stop, fail))

    def step(self, *events: Event) -> Step:
        self.now += 1
        step = self.scheduler.step(events, self.now)
        self.log.append((events, self.now, step))
        for ended in step.ended:
            assert ended.sequence_id not in self.ended, "a sequence ended twice"
            self.ended[ended.sequence_id] = ended
            self.banned.append(ended.sequence_id)
            for places in (self.paused, self.waiting):
                if ended.sequence_id in places:
                    places.remove(ended.sequence_id)
        for paused in step.paused:
            assert paused.sequence_id not in self.ended, "a pause was told of a sequence that ended"
            if paused.reason is PauseReason.KV:
                assert self.preset.kv_victim, "reserved memory ran out"
                assert self.specs[paused.sequence_id].class_name not in self.limits.unpreemptible
            self.paused.append(paused.sequence_id)
            self.pauses[paused.sequence_id] = self.pauses.get(paused.sequence_id, 0) + 1
        if step.plan is not None:
            self._check_plan(step.plan)
            self.in_flight.append(step.plan)
        assert len(self.in_flight) <= self.limits.max_in_flight
        self.scheduler.check()
        return step

    def run_until_idle(self, most_steps: int = 1_000) -> None:
        """Report plan after plan, hand back what was paused when the scheduler wants it, until nothing is left."""
        for _ in range(most_steps):
            want = self.scheduler.want()
            if self.paused and want.slots > 0 and self._fits(self.paused[0], want.kv_tokens):
                self.resume(self.paused[0])
            elif self.in_flight:
                self.report()
            elif self._is_idle(self.step()) and not self.paused:
                break
        else:
            raise AssertionError(f"not idle after {most_steps} steps")
        assert self.scheduler.slots_in_use == 0
        assert self.scheduler.kv_blocks_in_use == 0
        assert not self.host, "something is kept in host memory for nobody"

    def _hand_over(self, spec: SequenceSpec) -> None:
        self.specs[spec.sequence_id] = spec
        self.tokens.setdefault(spec.sequence_id, 0)
        self.planned.setdefault(spec.sequence_id, spec.emitted_tokens)
        self.waiting.append(spec.sequence_id)

    @staticmethod
    def _is_idle(step: Step) -> bool:
        return step.plan is None and step.wake_at is None

    def _fits(self, sequence_id: str, kv_tokens: int | None) -> bool:
        spec = self.specs[sequence_id]
        return kv_tokens is None or spec.prompt_tokens + spec.expected_tokens <= kv_tokens

    # what a plan may do

    def _check_plan(self, plan: Plan) -> None:
        limits = self.limits
        planned = [*plan.decode, *(span.slot for span in plan.prefill)]
        assert len(planned) == len(set(planned)), "a slot is in one plan twice"
        if limits.token_budget is not None and self.preset.prefill is not PrefillRule.WHOLE:
            assert len(plan.decode) + sum(span.length for span in plan.prefill) <= limits.token_budget
        busy = self._slots_in_flight()
        assert not busy & set(plan.frees), "a slot is freed before the last plan that names it is reported"
        names = {slot: running.sequence_id for slot, running in self._applied().items()}
        for slot in plan.frees:
            del names[slot]
        if plan.starts and self.preset.batching is not Batching.CONTINUOUS:
            assert not names, "a sequence joins a batch that is held"
        for start in plan.starts:
            self._check_turn(start.sequence_id)
            self._check_swap(start)
            assert start.slot not in names, "a slot is given to two sequences"
            names[start.slot] = start.sequence_id
        running = [name for name in names.values() if name not in self.banned and name not in self.paused]
        assert len(running) <= limits.max_slots or not plan.starts, "a sequence starts beyond the slots"
        assert len(planned) <= limits.max_slots
        for slot in planned:
            assert names[slot] not in self.banned, "a sequence is planned after its end or cancel was known"
            assert names[slot] not in self.paused, "a sequence is planned while it is paused"
        if self.preset.prefill is PrefillRule.WHOLE:
            assert all(span.emits for span in plan.prefill)
        elif limits.prefill_chunk is not None and len(planned) > 1:
            assert all(span.length <= limits.prefill_chunk for span in plan.prefill)
        self._check_decodes(plan, names)
        self._check_blocks(plan)

    def _check_blocks(self, plan: Plan) -> None:
        blocks = self._blocks_after(plan)
        if self.preset.prefix_reuse is PrefixReuse.NONE:
            assert len(blocks) == len(set(blocks)), "a block has two owners"
        if self.limits.kv_blocks is not None:
            assert all(0 <= block < self.limits.kv_blocks for block in blocks)

    def _check_swap(self, start: Start) -> None:
        if self.progress is not Progress.SWAP or not self.pauses.get(start.sequence_id):
            assert start.swapped_tokens == 0, "KV comes back that never went"
        if start.swapped_tokens > 0:
            assert start.swapped_tokens == start.computed_tokens
        self.num_found += start.computed_tokens - start.swapped_tokens

    def _check_decodes(self, plan: Plan, names: dict[int, str]) -> None:
        """A stream that has begun gets a token from every plan; only a lack of memory may stall it."""
        may_stall = self.limits.kv_blocks is not None and self.preset.kv_victim is not None
        for start in plan.starts:
            self.begun[start.sequence_id] = False
        for slot, name in names.items():
            has_left = name in self.banned or name in self.paused or name in self.waiting
            is_over = self.planned[name] == self.specs[name].max_tokens
            waits = self.begun[name] and not (has_left or is_over or slot in plan.decode)
            assert may_stall or not waits, "a stream waits for its next token"
        for slot in [*plan.decode, *(span.slot for span in plan.prefill if span.emits)]:
            self.planned[names[slot]] += 1
            self.begun[names[slot]] = True

    def _check_turn(self, starting: str) -> None:
        """The next in the preset's waiting order starts; who waits for a prefix may be passed a few times."""
        order = self.preset.waiting_order
        self.waiting.remove(starting)
        ahead = [name for name in self.waiting if order(self.specs[name]) < order(self.specs[starting])]
        for name in ahead:
            self.passes[name] = self.passes.get(name, 0) + 1
            may_wait = self.preset.prefix_reuse is PrefixReuse.AWAITED and self.specs[name].block_hashes
            assert may_wait, "a sequence starts before its turn"
            assert self.passes[name] <= MOST_PASSES, "a sequence is passed over too often"

    def _applied(self) -> dict[int, Running]:
        """The worker's slots once every plan in flight is applied."""
        held = {
            slot: Running(sequence_id=r.sequence_id, blocks=[*r.blocks], computed=0) for slot, r in self.held.items()
        }
        for plan in self.in_flight:
            _apply(plan, held)
        return held

    def _blocks_after(self, plan: Plan) -> list[int]:
        held = self._applied()
        _apply(plan, held)
        return [block for running in held.values() for block in running.blocks]

    def _slots_in_flight(self) -> set[int]:
        return {
            slot
            for plan in self.in_flight
            for slot in [*plan.decode, *(s.slot for s in plan.prefill), *(s.slot for s in plan.starts)]
        }

    # what the worker does

    def execute(self, plan: Plan, stop: tuple[int, ...] = (), fail: tuple[int, ...] = ()) -> Reported:
        self._let_in(plan)
        finished: list[Finished] = []
        for slot in [*plan.decode, *(span.slot for span in plan.prefill)]:
            if slot in fail and not self.held[slot].done:
                self.held[slot].done = self.held[slot].failed = True
                finished.append(Finished(slot=slot, reason=FinishReason.FAILED))
        for span in plan.prefill:
            running = self.held[span.slot]
            assert running.done or span.start == running.computed, "a chunk does not follow the one before"
            self._compute(running, span.length)
            if span.emits:
                known = self.specs[running.sequence_id].prompt_tokens + self.tokens[running.sequence_id]
                assert running.done or running.computed == known, "a token is emitted before its prompt is computed"
        for slot in plan.decode:
            self._compute(self.held[slot], 1)
        for slot in [*plan.decode, *(span.slot for span in plan.prefill if span.emits)]:
            reason = self._emit(self.held[slot], eos=slot in stop)
            if reason is not None:
                finished.append(Finished(slot=slot, reason=reason))
        live = len({block for running in self.held.values() for block in running.blocks})
        return Reported(
            step=plan.step,
            finished=tuple(finished),
            live_blocks=live if self.limits.kv_blocks is not None else None,
            host_blocks=self._host_blocks(),
        )

    def _host_blocks(self) -> int:
        return sum([-(-tokens // self.limits.block_size) for tokens in self.host.values()])

    def _emit(self, running: Running, *, eos: bool) -> FinishReason | None:
        if running.done:
            return None
        spec = self.specs[running.sequence_id]
        self.tokens[running.sequence_id] += 1
        assert self.tokens[running.sequence_id] <= spec.max_tokens, "a token past max_tokens is planned"
        if eos:
            running.done = True
            return FinishReason.STOP
        if self.tokens[running.sequence_id] == spec.max_tokens:
            running.done = True
            return FinishReason.LENGTH
        return None

    def _let_in(self, plan: Plan) -> None:
        """Apply a plan; what a sequence brings along from outside the pool is written into its blocks."""
        before = set(self.held)
        for sequence_id in plan.drops:
            del self.host[sequence_id]
        for slot in plan.swap_outs:
            gone = self.held[slot]
            assert slot in plan.frees
            assert not gone.done
            assert gone.sequence_id not in self.host
            self.host[gone.sequence_id] = gone.computed
        assert self.limits.host_blocks is None or self._host_blocks() <= self.limits.host_blocks
        failed = [self.held[slot] for slot in plan.frees if self.held[slot].failed]
        _apply(plan, self.held)
        shared = {block for running in self.held.values() for block in running.blocks}
        for gone in failed:  # what it wrote is in doubt
            self.kv = {place: kv for place, kv in self.kv.items() if place[0] not in gone.blocks or place[0] in shared}
        for start in plan.starts:
            assert start.slot not in before or start.slot in plan.frees, "a slot is started twice"
            running = self.held[start.slot]
            retained = self.progress is Progress.RETAIN and self.pauses.get(start.sequence_id, 0) > 0
            brought = start.computed_tokens if retained else start.swapped_tokens
            if start.swapped_tokens > 0:
                assert self.host.pop(start.sequence_id) == start.swapped_tokens, "it comes back as it did not go"
            self._write(running, range(brought))

    def _compute(self, running: Running, length: int) -> None:
        """One that is done is left out. The others look back at all that they have computed."""
        if running.done:
            return
        begin, end = running.computed, running.computed + length
        running.computed = end
        if self.limits.kv_blocks is not None:
            assert end <= len(running.blocks) * self.limits.block_size, "KV is written past the blocks"
            self._write(running, range(begin, end))
            spec = self.specs[running.sequence_id]
            for position in range(end):
                assert self.kv[self._place(running, position)] == _content(spec, position), "KV of other tokens is read"

    def _write(self, running: Running, positions: range) -> None:
        if self.limits.kv_blocks is not None:
            for position in positions:
                self.kv[self._place(running, position)] = _content(self.specs[running.sequence_id], position)

    def _place(self, running: Running, position: int) -> tuple[int, int]:
        return running.blocks[position // self.limits.block_size], position % self.limits.block_size


def _apply(plan: Plan, held: dict[int, Running]) -> None:
    for slot in plan.frees:
        del held[slot]
    for start in plan.starts:
        held[start.slot] = Running(
            sequence_id=start.sequence_id, blocks=list(start.blocks), computed=start.computed_tokens
        )
    for grow in plan.grows:
        held[grow.slot].blocks.extend(grow.blocks)
