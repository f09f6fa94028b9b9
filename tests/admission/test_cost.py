"""The clock of a simulation."""

from __future__ import annotations

import pytest

from admission.cost import CostModel, Work
from admission.machines import CPU_135M

MODEL = CostModel(base_ns=5_000_000, decode_ns=10_000, prefill_ns=20_000, kv_ns_per_1k=80_000, swap_ns=7_000)


def test_an_iteration_costs_the_sum_of_what_it_does() -> None:
    """Each term is on its own, so that each can be checked against a measurement."""
    work = Work(decode_tokens=3, prefill_tokens=100, kv_tokens=2_000, swapped_tokens=10)
    assert MODEL.iteration_us(work) == 5_000 + 30 + 2_000 + 160 + 2 * 70


def test_a_constant_cost_does_not_look_at_the_work() -> None:
    """Then seconds are iterations in another unit."""
    constant = CostModel(base_ns=1_000_000)
    assert constant.iteration_us(Work(decode_tokens=500, prefill_tokens=500, kv_tokens=500)) == 1_000


def test_time_always_moves_on() -> None:
    """A free iteration would let a simulation stand still for ever."""
    assert CostModel(base_ns=0).iteration_us(Work()) == 1


@pytest.mark.parametrize(("sequences", "measured_ms"), [(1, 36), (8, 47), (32, 87)])
def test_the_profile_of_the_cpu_worker_is_within_two_percent_of_what_was_measured(
    sequences: int, measured_ms: int
) -> None:
    """A profile that calls itself measured has to say what the measurement said."""
    modelled_us = CPU_135M.cost.iteration_us(Work(decode_tokens=sequences, kv_tokens=200 * sequences))
    assert modelled_us / 1000 == pytest.approx(measured_ms, rel=0.02)
