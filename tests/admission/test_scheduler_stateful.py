"""Generated histories of one scheduler, with one and with two plans in flight. The harness checks every step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from admission.events import SequenceSpec
from admission.limits import Limits
from admission.presets import PRESETS, Progress
from admission.record.snapshot import freeze, thaw
from admission.scheduler import Scheduler
from tests.admission.drive import Harness, make_spec
from tests.examples import examples

BLOCK_SIZE = 4
LENGTHS = {
    "prompt": st.integers(1, 14),
    "output": st.integers(1, 30),
    "expected": st.integers(1, 6),
    "rank": st.integers(0, 2),
    "patience": st.one_of(st.none(), st.none(), st.integers(0, 30)),
    "family": st.sampled_from([None, "a", "a", "b"]),
}


class SchedulerMachine(RuleBasedStateMachine):
    """Claims, reports, early stops, cancels, exchanges, deadlines, changed limits and lost workers in any order."""

    depth = 1
    preset = "sluicegate"
    progress = Progress.RECOMPUTE

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @initialize(
        slots=st.integers(1, 4),
        spare_budget=st.integers(0, 6),
        chunk=st.one_of(st.none(), st.integers(1, 5)),
        blocks=st.one_of(st.none(), st.integers(3, 12)),
        gathering=st.tuples(st.lists(st.integers(1, 5), max_size=2), st.integers(0, 9)),
        unpreemptible=st.sampled_from([(), (), ("class0",), ("class2",)]),
        host_blocks=st.sampled_from([None, 2, 6]),
    )
    def begin(
        self,
        *,
        slots: int,
        spare_budget: int,
        chunk: int | None,
        blocks: int | None,
        gathering: tuple[list[int], int],
        unpreemptible: tuple[str, ...],
        host_blocks: int | None,
    ) -> None:
        limits = Limits(
            max_slots=slots,
            token_budget=slots + spare_budget,
            prefill_chunk=chunk,
            kv_blocks=blocks,
            block_size=BLOCK_SIZE,
            preferred_sizes=tuple(gathering[0]),
            max_queue_delay_us=gathering[1],
            max_in_flight=self.depth,
            host_blocks=host_blocks,
            guaranteed_slots=(("class1", 1),),
            unpreemptible=unpreemptible,
        )
        self.first_limits = limits
        self.harness = Harness(limits, PRESETS[self.preset], self.progress)

    def spec(self, *, output: int, expected: int, rank: int, patience: int | None, **prompt: Any) -> SequenceSpec:
        self.count += 1
        return make_spec(
            f"s{self.count}",
            **prompt,
            output=output,
            expected=min(expected, output),
            rank=rank,
            score=self.count - 20 * (2 - rank),
            deadline_us=None if patience is None else self.harness.now + patience,
            block_size=BLOCK_SIZE,
        )

    @rule(**LENGTHS)
    def claim(self, **shape: Any) -> None:
        if len(self.harness.specs) - len(self.harness.ended) < 12:
            self.harness.claim(self.spec(**shape))

    @rule(**LENGTHS)
    def exchange(self, **shape: Any) -> None:
        weakest = self.harness.scheduler.want().weakest
        spec = self.spec(**shape)
        if weakest is not None and spec.rank < weakest.rank:
            self.harness.exchange(spec, weakest.sequence_id)

    @precondition(lambda self: self.harness.in_flight)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        slots = sorted(self.harness.held)
        stop = data.draw(st.lists(st.sampled_from(slots), max_size=1)) if slots else []
        fail = data.draw(st.lists(st.sampled_from(slots), max_size=1)) if slots and self.count % 3 == 0 else []
        self.harness.report(stop=tuple(stop), fail=tuple(fail))

    @precondition(lambda self: self.harness.in_flight)
    @rule(plans=st.integers(1, 12))
    def report_plainly(self, plans: int) -> None:
        for _ in range(plans):
            if self.harness.in_flight:
                self.harness.report()

    @precondition(lambda self: self.harness.paused)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.harness.resume(data.draw(st.sampled_from(self.harness.paused)))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.harness.specs:
            self.harness.cancel(data.draw(st.sampled_from(sorted(self.harness.specs))))

    @rule()
    def tick(self) -> None:
        self.harness.step()

    @precondition(lambda self: self.count % 7 == 6)  # rare, or nothing grows old
    @rule()
    def lose_worker(self) -> None:
        self.harness.lose_worker()
        assert self.harness.scheduler.kv_blocks_in_use == 0

    @precondition(lambda self: self.count % 5 == 4)
    @rule(slots=st.integers(1, 4))
    def change_limits(self, slots: int) -> None:
        self.harness.change_limits(replace(self.harness.limits, max_slots=min(slots, self.first_limits.max_slots)))

    @precondition(lambda self: self.count % 4 == 3)
    @rule()
    def go_on_from_its_state(self) -> None:
        """A scheduler made from the state of another is that other, in all that follows."""
        state = freeze(self.harness.scheduler)
        self.harness.scheduler = thaw(state)
        assert freeze(self.harness.scheduler) == state

    def teardown(self) -> None:
        """Whatever happened, all ends: once each, with every slot and block back, and the same again."""
        if not hasattr(self, "harness"):
            return
        harness = self.harness
        harness.run_until_idle()
        assert sorted(harness.ended) == sorted(harness.specs)
        for sequence_id, ended in harness.ended.items():
            if ended.reason == "length":
                assert harness.tokens[sequence_id] == harness.specs[sequence_id].max_tokens
        again = Scheduler(self.first_limits, harness.preset, progress=harness.progress)
        assert [again.step(events, now) for events, now, _ in harness.log] == [step for _, _, step in harness.log]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("depth", [1, 2])
def test_every_history_keeps_the_promises_of_the_scheduler(depth: int, preset: str) -> None:
    """Limits, ownership of memory, single ends and cancels must hold in any order of events."""
    run(depth=depth, preset=preset)


@pytest.mark.parametrize("progress", [Progress.RETAIN, Progress.SWAP])
@pytest.mark.parametrize("preset", ["sluicegate", "vllm-v1"])
def test_the_promises_hold_however_progress_is_kept(preset: str, progress: Progress) -> None:
    """A sequence that comes back with its KV needs other blocks, and skips what it has computed."""
    run(depth=2, preset=preset, progress=progress)


def run(**setting: object) -> None:
    machine = type("Machine", (SchedulerMachine,), setting)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(60), stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
