"""Choosing tokens: each row by itself, by its own parameters and its own number."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.randomness import uniform
from workers.sampler import Draw, sample

pytestmark = pytest.mark.torch

GREEDY = Draw(temperature=0.0, top_p=1.0, number=0.5)


def logits_of(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def test_greedy_takes_the_best() -> None:
    """Temperature 0 means no chance at all."""
    assert sample(logits_of([0.2, 0.5, 0.3]), [GREEDY]) == [1]


@pytest.mark.parametrize(
    "draw", [Draw(temperature=1e-5, top_p=1.0, number=0.99), Draw(temperature=1.0, top_p=1e-5, number=0.99)], ids=str
)
def test_tiny_temperature_or_nucleus_is_greedy(draw: Draw) -> None:
    """Dividing by almost nothing would overflow where the answer is plain."""
    assert sample(logits_of([0.3, 0.4, 0.3]), [draw]) == [1]


@pytest.mark.parametrize(("number", "token"), [(0.0, 0), (0.19, 0), (0.21, 1), (0.69, 1), (0.71, 2), (0.999999, 2)])
def test_the_number_picks_by_cumulated_probability(number: float, token: int) -> None:
    """In the vocabulary's order, which no rounding error can change."""
    assert sample(logits_of([0.2, 0.5, 0.3]), [Draw(temperature=1.0, top_p=1.0, number=number)]) == [token]


def test_temperature_flattens_or_sharpens() -> None:
    """At temperature 2 the probabilities are as their square roots."""
    roots = [math.sqrt(0.1), math.sqrt(0.9)]
    edge = roots[0] / sum(roots)
    draws = [Draw(temperature=2.0, top_p=1.0, number=edge + delta) for delta in (-0.01, 0.01)]
    assert sample(logits_of([0.1, 0.9]).repeat(2, 1), draws) == [0, 1]


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    """With 0.5 + 0.3 the mass of 0.75 is reached: the rest is out of the draw."""
    logits = logits_of([0.15, 0.5, 0.05, 0.3]).repeat(50, 1)
    draws = [Draw(temperature=1.0, top_p=0.75, number=index / 50) for index in range(50)]
    counts = Counter(sample(logits, draws))
    assert set(counts) == {1, 3}
    assert counts[1] == pytest.approx(50 * 5 / 8, abs=1)


def test_a_flat_row_wider_than_the_first_try_is_sorted_whole() -> None:
    """The shortcut through the most probable tokens must not cut a nucleus short."""
    logits = torch.zeros(100, 16384) + torch.linspace(0, 1e-3, 16384)
    draws = [Draw(temperature=1.0, top_p=0.5, number=index / 100) for index in range(100)]
    chosen = sample(logits, draws)
    assert min(chosen) < 8300
    assert all(token >= 8180 for token in chosen)


def test_tokens_of_no_probability_are_never_chosen() -> None:
    """Not at either end of the draw either."""
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]).repeat(2, 1)
    draws = [Draw(temperature=1.0, top_p=1.0, number=number) for number in (0.0, 1.0 - 2.0**-53)]
    assert sample(logits, draws) == [1, 3]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_row_that_is_not_finite_fails_alone(broken: float) -> None:
    """One sequence's NaN is not its neighbour's business."""
    logits = torch.tensor([[0.0, 1.0], [0.0, broken], [2.0, 1.0]])
    assert sample(logits, [GREEDY, GREEDY, Draw(temperature=1.0, top_p=0.9, number=0.1)]) == [1, None, 0]


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -1.0])
def test_a_parameter_that_is_no_number_fails_its_row(temperature: float) -> None:
    """The gateway checks; a worker still survives."""
    bad = Draw(temperature=temperature, top_p=1.0, number=0.5)
    assert sample(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), [bad, GREEDY]) == [None, 1]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 6))
def test_a_row_does_not_depend_on_its_neighbours(seed: int, rows: int) -> None:
    """Any mixture of greedy, plain and nucleus rows gives each what it gets alone."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 300, generator=generator) * 3
    kinds = (GREEDY, Draw(temperature=0.7, top_p=1.0, number=0.3), Draw(temperature=1.2, top_p=0.6, number=0.8))
    draws = [kinds[(seed + row) % 3] for row in range(rows)]
    assert sample(logits, draws) == [sample(logits[row : row + 1], [draws[row]])[0] for row in range(rows)]


def test_samples_follow_the_distribution() -> None:
    """The numbers and the draw together give each token its share."""
    probabilities = [0.1, 0.2, 0.3, 0.4]
    draws = [Draw(temperature=1.0, top_p=1.0, number=uniform(5, 0, position)) for position in range(4000)]
    counts = Counter(sample(logits_of(probabilities).repeat(4000, 1), draws))
    for token, probability in enumerate(probabilities):
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.03)
