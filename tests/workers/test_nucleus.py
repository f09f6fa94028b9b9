"""The least weight of a nucleus, found without sorting a whole row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workers.nucleus import least_by_buckets, least_by_sorting, least_in_nucleus

pytestmark = pytest.mark.torch


def weights_of(seed: int, rows: int, size: int, *, heat: float = 3.0) -> Tensor:
    logits = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * heat
    return (logits - logits.amax(dim=-1, keepdim=True)).exp()


@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 5),
    size=st.sampled_from([3, 100, 6000]),
    heat=st.sampled_from([0.01, 1.0, 5.0, 40.0]),
    whole=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_it_is_the_same_found_by_buckets_or_by_sorting(
    seed: int, rows: int, size: int, heat: float, whole: bool
) -> None:
    """A CPU sorts only where the nucleus ends: in flat rows and in steep ones, with and without weights of zero."""
    weights = weights_of(seed, rows, size, heat=heat)
    if not whole:
        weights[weights < 0.01] = 0.0
    share = torch.rand(rows, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    mass = share * weights.double().sum(dim=-1)
    assert torch.equal(least_in_nucleus(weights, mass), least_by_sorting(weights, mass))


def test_equal_weights_are_all_as_far_in_as_the_last_of_them() -> None:
    """Of a flat row the nucleus ends somewhere among equals."""
    weights = torch.ones(2, 5000)
    assert least_in_nucleus(weights, torch.tensor([1.0, 5000.0], dtype=torch.float64)).tolist() == [1.0, 1.0]


def test_a_mass_out_of_reach_takes_everything() -> None:
    """Rounding may put the share of 0.9999999 a little above the sum of all."""
    weights, mass = torch.tensor([[1.0, 0.25, 0.5]]), torch.tensor([1.76], dtype=torch.float64)
    assert least_in_nucleus(weights, mass).tolist() == least_by_sorting(weights, mass).tolist() == [0.25]


def test_likely_tokens_are_enough_or_not_in_each_row_by_itself() -> None:
    """A flat row makes its neighbours go the long way too, to the same answer."""
    steep, flat = weights_of(1, 3, 6000, heat=9.0), weights_of(2, 1, 6000, heat=0.5)
    mass = 0.9 * steep.double().sum(dim=-1)
    beside = least_in_nucleus(
        torch.cat([steep, flat * 2.0**-11]), torch.cat([mass, torch.tensor([0.1], dtype=torch.float64)])
    )
    assert torch.equal(beside[:3], least_in_nucleus(steep, mass))
    assert beside[3] < 2.0**-10


def test_a_row_of_nothing_breaks_no_search() -> None:
    """A broken row's weights are zeros; its neighbour is served."""
    weights = torch.tensor([[0.0] * 3, [0.4, 1.0, 0.6]])
    mass = torch.tensor([0.0, 1.2], dtype=torch.float64)
    for found in (least_in_nucleus(weights, mass), least_by_sorting(weights, mass)):
        assert found.tolist() == [0.0, pytest.approx(0.6)]


@pytest.mark.parametrize("size", [96, 6000])
def test_a_row_does_not_depend_on_its_neighbours(size: int) -> None:
    """To the bit: a token at the edge of the nucleus is in it or not."""
    weights = weights_of(1, 16, size)
    mass = 0.9 * weights.double().cumsum(dim=-1)[:, -1]
    together = least_by_buckets(weights.numpy(), mass.numpy())
    alone = [least_by_buckets(weights[row : row + 1].numpy(), mass[row : row + 1].numpy()) for row in range(16)]
    assert np.array_equal(together, np.concatenate(alone))
