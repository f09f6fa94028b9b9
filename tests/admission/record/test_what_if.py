"""A simulation's log, replayed under what it ran under, is that simulation; and otherwise, another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.classes import DEFAULT_CLASSES
from admission.cost import CostModel
from admission.limits import Limits
from admission.presets import PRESETS
from admission.queue import ClassRule
from admission.record.course import Course, follow
from admission.record.entries import LogEntry
from admission.record.fates import COMPLETED, UNFINISHED, Fates, read_fates
from admission.record.figures import Objectives, figures
from admission.record.fit import error_of, fit_cost
from admission.record.queue_check import check_queue, in_order
from admission.record.simulated import MODEL, SimulationLog
from admission.record.verify import DriverReplay
from admission.record.what_if import offers_of, replay_offers
from admission.standing import WaitingOrderName
from admission.trace_csv import Arrival
from admission.trace_known import Known, Leave
from admission.trace_run import TraceRun
from admission.trace_setup import TraceSetup
from tests.examples import examples

COST = CostModel(base_ns=5_000_000, decode_ns=200_000, prefill_ns=50_000, kv_ns_per_1k=400_000)
CLASSES = {cls.name: cls for cls in DEFAULT_CLASSES}
LIMITS = Limits(max_slots=4, token_budget=24, prefill_chunk=16, kv_blocks=24, block_size=8)
RULES = tuple((cls.name, ClassRule.of(cls)) for cls in DEFAULT_CLASSES)


def setup(preset: str = "sluicegate", *, num_drivers: int = 1, max_in_flight: int = 1) -> TraceSetup:
    limits = replace(LIMITS, max_in_flight=max_in_flight)
    return TraceSetup(
        preset=PRESETS[preset],
        limits=limits,
        cost=COST,
        queue_order=WaitingOrderName.AGING,
        max_queue=6,
        queue_tokens=400,
        max_passes=2,
        context_length=None,
        max_tokens=None,
        drivers=tuple((f"d{number}", limits) for number in range(num_drivers)),
        rules=RULES,
    )


def arrivals(seed: int, *, leaving: float, number: int = 40) -> tuple[Arrival, ...]:
    """A load with bursts, all classes, and clients of whom a share of ``leaving`` does not wait to the end."""
    chance, at_us, made = random.Random(seed), 0, []
    for n in range(number):
        at_us += chance.choice((0, 0, chance.randrange(1, 60_000)))
        max_tokens = chance.randrange(1, 40)
        is_leaving = chance.random() < leaving
        known = Known(
            max_tokens=max_tokens,
            expected_tokens=chance.randint(1, max_tokens),
            leaves_us=at_us + chance.randrange(0, 200_000) if is_leaving else None,
            leaves=chance.choice(tuple(Leave)),
        )
        made.append(
            Arrival(
                request_id=f"r{n}",
                arrival_us=at_us,
                prompt_tokens=chance.randrange(1, 90),
                output_tokens=chance.randint(1, max_tokens),
                cls=chance.choice(DEFAULT_CLASSES),
                tenant=chance.choice(("", "one", "other")),
                known=known,
            )
        )
    return tuple(made)


class Simulated:
    """A run and its logs."""

    def __init__(self, requests: Sequence[Arrival], under: TraceSetup) -> None:
        self.drivers: dict[str, list[LogEntry]] = {name: [] for name, _ in under.all_drivers()}
        self.door: list[LogEntry] = []
        writes = {name: entries.append for name, entries in self.drivers.items()}
        self.run = TraceRun(requests, under, SimulationLog(drivers=writes, door=self.door.append))
        self.rows = list(self.run.iterations())

    @property
    def courses(self) -> list[Course]:
        return [course for entries in self.drivers.values() if (course := follow(entries)) is not None]

    @property
    def fates(self) -> Fates:
        return read_fates([(self.door, 0)], self.courses)


presets = st.sampled_from(["sluicegate", "vllm-v1", "orca", "static", "tutorial"])


@given(seed=st.integers(0, 10_000), preset=presets, num_drivers=st.integers(1, 3), has_leavers=st.booleans())
@settings(max_examples=examples(20), deadline=None)
def test_replayed_under_what_it_ran_under_a_simulation_is_itself(
    seed: int, preset: str, num_drivers: int, has_leavers: bool
) -> None:
    """Whatever then differs for a live log is the world's doing: nothing is lost between a log and its replay.

    (With two plans in flight a leaver's last token may be computed or not, which the log does not tell.)
    """
    under = setup(preset, num_drivers=num_drivers, max_in_flight=1 if has_leavers else 2)
    happened = Simulated(arrivals(seed, leaving=0.3 if has_leavers else 0.0), under).fates
    assert UNFINISHED not in {fate.outcome for fate in happened.offered}
    replayed = replay_offers(offers_of(happened, CLASSES), under, Fates(offered=(), refused=()))
    assert [summary(fate) for fate in replayed.offered] == [summary(fate) for fate in happened.offered]


def summary(fate: object) -> tuple[object, ...]:
    names = ("outcome", "arrival_us", "tokens_us", "slot_preemptions", "kv_preemptions")
    return tuple(getattr(fate, name) for name in names)


@given(seed=st.integers(0, 10_000), preset=presets, num_drivers=st.integers(1, 3), in_flight=st.integers(1, 2))
@settings(max_examples=examples(20), deadline=None)
def test_the_logs_of_any_simulation_verify(seed: int, preset: str, num_drivers: int, in_flight: int) -> None:
    """They are logs like a gateway's: plans and queue acts come out again, and the fit finds the cost model."""
    ran = Simulated(arrivals(seed, leaving=0.2), setup(preset, num_drivers=num_drivers, max_in_flight=in_flight))
    for entries in ran.drivers.values():
        assert DriverReplay().segment(entries) is None
    assert not check_queue(in_order([ran.door], MODEL), setup(preset).doorway(()).bounds, dict(RULES)).differences
    timed = [timed for course in ran.courses for timed in course.iterations]
    assert len(timed) == len(ran.rows)
    assert error_of(COST, timed).p90 == 0.0, "the work of each iteration is read out of the log as it was done"
    fitted = fit_cost(timed)
    assert fitted is not None
    assert error_of(fitted, timed).p90 < 0.01


@pytest.mark.parametrize("num_drivers", [1, 2])
def test_tokens_in_the_log_are_those_that_every_request_got(num_drivers: int) -> None:
    """Latencies are read out of logs alone, so none may be missing and none counted that came too late."""
    ran = Simulated(arrivals(3, leaving=0.0), setup(num_drivers=num_drivers, max_in_flight=2))
    completed = [fate for fate in ran.fates.offered if fate.outcome == COMPLETED]
    assert len(completed) > 20
    for fate in completed:
        record = ran.run.records[fate.offer.sequence_id]
        assert len(fate.tokens_us) == record.arrival.output_tokens
        assert (fate.tokens_us[0], fate.tokens_us[-1]) == (record.first_output_us, record.completed_us)


def test_two_plans_in_flight_never_overlap_on_a_worker() -> None:
    """The worker executes one after the other, however many are on their way."""
    ran = Simulated(arrivals(4, leaving=0.1), setup(max_in_flight=2))
    ends = [(row.at_us, row.at_us + row.took_us) for row in ran.rows]
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))


def test_two_drivers_serve_more_than_one() -> None:
    """Each has a worker of its own."""
    requests = arrivals(5, leaving=0.0)
    one, two = (Simulated(requests, setup(num_drivers=number)).fates for number in (1, 2))
    assert sum(fate.outcome == COMPLETED for fate in two.offered) > sum(
        fate.outcome == COMPLETED for fate in one.offered
    )


def test_who_leaves_is_neither_served_nor_left_in_the_queue() -> None:
    """A client that is gone costs nothing more; its deadline is told apart from its hanging up."""
    ran = Simulated(arrivals(6, leaving=0.9), setup())
    outcomes = {fate.outcome for fate in ran.fates.offered}
    assert {Leave.CANCELLED.value, Leave.DEADLINE_EXCEEDED.value, COMPLETED} <= outcomes
    for fate in ran.fates.offered:
        if fate.outcome in {Leave.CANCELLED.value, Leave.DEADLINE_EXCEEDED.value}:
            assert fate.ended_us is not None
            assert all(token_us <= fate.ended_us for token_us in fate.tokens_us)


def test_a_better_class_sheds_what_waits_of_a_lower_one() -> None:
    """The rules of classes are those of the live queue."""
    outcomes = {
        (fate.offer.class_name, fate.outcome)
        for seed in range(4)
        for fate in Simulated(arrivals(seed, leaving=0.0, number=200), setup()).fates.offered
    }
    assert ("batch", "shed") in outcomes
    assert ("interactive", "shed") not in outcomes


def test_a_good_answer_keeps_every_objective_and_is_whole() -> None:
    """Goodput counts what was of use to somebody."""
    fates = Simulated(arrivals(7, leaving=0.3), setup()).fates
    everything = figures(fates, Objectives())
    assert [each.name for each in everything] == ["interactive", "standard", "batch"]
    assert all(each.num_good == each.num_completed for each in everything)
    assert all(each.num_requests == each.num_completed + sum(each.outcomes.values()) for each in everything)
    strict = figures(fates, Objectives(first_token_us=30_000, gap_us=7_000, whole_us=100_000))
    assert 0 < sum(each.num_good for each in strict) < sum(each.num_good for each in everything)
