"""The smallest set of tokens that holds a share of all probability: how improbable may its last member be?

Sorting whole rows of a vocabulary answers that, and is what a GPU does. On a CPU it would take longer than the model.
So there weights are first summed by *buckets*, each of which holds the numbers that begin with the same bits: sign,
exponent and five bits of the mantissa. A bucket's numbers are within a thirty-second of each other, and buckets lie in
the order of their numbers. The nucleus ends in the bucket where the sum passes the share, and only the few members of
that one need an order.

Most nuclei end among the *likely* tokens, which are few; the others are looked at where those do not reach the share.
Either way every sum runs over one row alone, in one order, and comes to the same: a row's nucleus does not depend on
the rest of the batch.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_Numbers: TypeAlias = "NDArray[np.float32]"
_Sums: TypeAlias = "NDArray[np.float64]"
_Ids: TypeAlias = "NDArray[np.int64]"

_DROPPED_BITS = 18
"""Of 32. Fewer buckets would hold too many members to sort where many tokens are alike, more would fit no cache."""

_LIKELY = 2.0**-10
"""Of the best token's weight. It begins a bucket, so that none is cut in two."""

_HIGHEST = int(np.float32(1.0).view(np.int32)) >> _DROPPED_BITS
_BUCKETS = _HIGHEST + 1


def least_in_nucleus(weights: Tensor, mass: Tensor) -> Tensor:
    """The least weight [rows] in the smallest set of each row's largest that reaches ``mass`` [rows].

    ``weights`` [rows, vocabulary], float32, are from 0 to 1; of a row that holds only zeros, or whose mass is out of
    reach, the answer is its least.
    """
    if weights.device.type == "cpu":
        return torch.from_numpy(least_by_buckets(weights.numpy(), mass.numpy()))
    return least_by_sorting(weights, mass)


def least_by_sorting(weights: Tensor, mass: Tensor) -> Tensor:
    """The same, without asking the device how far it has come."""
    ordered = weights.sort(dim=-1, descending=True).values
    before = ordered.double().cumsum(dim=-1) - ordered.double()
    kept = (before < mass[:, None]).sum(dim=-1).clamp_(min=1)
    return ordered.gather(-1, kept[:, None] - 1).squeeze(-1)


def least_by_buckets(weights: _Numbers, mass: _Sums) -> _Numbers:
    """The same, sorting only where the nucleus ends."""
    rows: _Ids = np.arange(len(weights))[:, None]
    likely = np.flatnonzero(weights >= _LIKELY)  # in two dimensions numpy takes ten times as long
    least, is_reached = _search(weights.ravel()[likely], likely // weights.shape[1], mass)
    if not is_reached.all():
        least, _ = _search(weights, rows, mass)
    return least


def _search(numbers: _Numbers, rows: _Ids, mass: _Sums) -> tuple[_Numbers, NDArray[np.bool_]]:
    """For each of ``mass`` its row's least among these ``numbers``, and whether they reach it.

    ``rows`` says whose the numbers are, in ascending order.
    """
    every, num_rows = np.arange(len(mass)), len(mass)
    buckets = _HIGHEST - (numbers.view(np.int32) >> _DROPPED_BITS)  # the largest numbers first
    places = rows * _BUCKETS + buckets
    held = np.bincount(places.ravel(), numbers.ravel(), minlength=num_rows * _BUCKETS).reshape(num_rows, _BUCKETS)
    reached = held.cumsum(axis=1)
    last = (reached < np.minimum(mass, reached[:, -1])[:, None]).sum(axis=1, dtype=np.int32)
    before = np.where(last > 0, reached[every, last - 1], 0.0)
    members = np.flatnonzero(buckets == last[rows])
    rows_of_all: _Ids = np.broadcast_to(rows, numbers.shape).ravel()
    ordered, counts = _ordered(numbers.ravel()[members], rows_of_all[members], num_rows)
    before_each = before[:, None] + ordered.cumsum(axis=1, dtype=np.float64) - ordered
    kept = np.minimum((before_each < mass[:, None]).sum(axis=1), counts)
    return ordered[every, np.maximum(kept, 1) - 1], reached[:, -1] >= mass


def _ordered(numbers: _Numbers, rows: _Ids, num_rows: int) -> tuple[_Numbers, _Ids]:
    """The numbers of each row in falling order, filled up with zeros, and how many they are."""
    counts = np.bincount(rows, minlength=num_rows)
    first = counts.cumsum() - counts
    ordered = np.zeros((num_rows, max(1, counts.max())), dtype=np.float32)
    ordered[rows, np.arange(len(rows)) - first[rows]] = -numbers
    ordered.sort(axis=1)
    return -ordered, counts
