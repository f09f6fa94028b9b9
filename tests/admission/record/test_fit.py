"""A cost model fitted to iterations: it finds what is there, and says how far it is from it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.cost import CostModel, Work
from admission.record.course import Timed
from admission.record.fit import error_of, fit_cost

costs = st.builds(
    CostModel,
    base_ns=st.integers(1_000_000, 50_000_000),
    decode_ns=st.integers(0, 2_000_000),
    prefill_ns=st.integers(0, 2_000_000),
    kv_ns_per_1k=st.integers(0, 5_000_000),
    swap_ns=st.integers(0, 10_000),
)


def iterations(cost: CostModel, *, seed: int, noise_us: int, number: int = 400) -> list[Timed]:
    """A busy worker's, each up to ``noise_us`` longer or shorter than it costs."""
    chance, made = random.Random(seed), []
    for step in range(number):
        decode, prefill = chance.randrange(0, 32), chance.choice((0, 0, chance.randrange(1, 128)))
        work = Work(
            decode_tokens=decode,
            prefill_tokens=prefill,
            kv_tokens=decode * chance.randrange(20, 900) + prefill * chance.randrange(1, 4),
            swapped_tokens=chance.choice((0, 0, 0, chance.randrange(0, 500))),
        )
        took = cost.iteration_us(work) + chance.randint(-noise_us, noise_us)
        made.append(Timed(step=step, work=work, took_us=took, ends_us=0, busy_us=took, idle_us=0))
    return made


@given(cost=costs, seed=st.integers(0, 1000))
def test_it_recovers_a_known_model_from_noisy_iterations(cost: CostModel, seed: int) -> None:
    """What everything that is predicted stands on. A third of the least iteration is noise; the fit is far closer."""
    fitted = fit_cost(iterations(cost, seed=seed, noise_us=300))
    assert fitted is not None
    for timed in iterations(cost, seed=seed + 1, noise_us=0, number=50):
        assert fitted.iteration_us(timed.work) == pytest.approx(cost.iteration_us(timed.work), rel=0.1)


@given(cost=costs, seed=st.integers(0, 1000))
def test_without_noise_it_is_the_model_itself(cost: CostModel, seed: int) -> None:
    """Times are whole microseconds, so the coefficients are not exact to the nanosecond; what they predict is."""
    made = iterations(cost, seed=seed, noise_us=0)
    fitted = fit_cost(made)
    assert fitted is not None
    assert error_of(fitted, made).p90 < 0.002
    assert abs(error_of(fitted, made).total) < 0.002


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 99), st.integers(0, 10_000)), min_size=1)
)
def test_no_coefficient_is_below_zero_whatever_was_logged(rows: list[tuple[int, int, int, int]]) -> None:
    """A negative cost would let a simulated clock run backwards; few and equal iterations must not break it either."""
    made = [
        Timed(
            step=step,
            work=Work(decode_tokens=decode, prefill_tokens=prefill, kv_tokens=kv),
            took_us=took,
            ends_us=0,
            busy_us=0,
            idle_us=0,
        )
        for step, (decode, prefill, kv, took) in enumerate(rows)
    ]
    fitted = fit_cost(made)
    assert fitted is not None
    assert min(fitted.base_ns, fitted.decode_ns, fitted.prefill_ns, fitted.kv_ns_per_1k, fitted.swap_ns) >= 0


def test_what_never_varied_is_part_of_the_base() -> None:
    """One sequence that decodes: whether the token or the iteration costs, nobody can tell."""
    timed = Timed(step=0, work=Work(decode_tokens=1), took_us=5_000, ends_us=0, busy_us=4_000, idle_us=1_000)
    assert fit_cost([timed, timed]) == CostModel(base_ns=5_000_000)


def test_the_error_says_how_much_the_workers_waited_and_which_way_the_total_is_off() -> None:
    """Whoever relies on a prediction must see whether it promises too much."""
    timed = Timed(step=0, work=Work(), took_us=1_000, ends_us=0, busy_us=750, idle_us=250)
    error = error_of(CostModel(base_ns=900_000), [timed] * 10)
    assert (error.median, error.p90, error.total) == pytest.approx((0.1, 0.1, -0.1))
    assert error.wait_share == pytest.approx(0.25)


def test_nothing_logged_gives_no_model() -> None:
    """Better none than one that says that nothing takes time."""
    assert fit_cost([]) is None
