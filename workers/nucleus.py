"""The smallest set of tokens that holds a share of all probability: how improbable may its last member be?

Sorting whole rows of a vocabulary answers that, and is what a GPU does. On a CPU it would take longer than the model.
So there the weights of a row are first summed by *buckets*, each of which holds the numbers that begin with the same
bits: sign, exponent and five bits of the mantissa. A bucket's numbers are within a thirty-second of each other, and
buckets lie in the order of their numbers. The nucleus ends in the bucket where the sum passes the share, and only the
few members of that one need an order.

Every sum runs over one row alone, in one order: a row's nucleus does not depend on the rest of the batch.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_Numbers: TypeAlias = "NDArray[np.float32]"
_Sums: TypeAlias = "NDArray[np.float64]"

_DROPPED_BITS = 18
"""Of 32. Fewer buckets would hold too many members to sort where many tokens are alike, more would fit no cache."""

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
    rows = np.arange(len(weights))
    buckets = _HIGHEST - (weights.view(np.int32) >> _DROPPED_BITS)  # the largest numbers first
    places = buckets + np.arange(len(weights), dtype=np.int32)[:, None] * _BUCKETS
    held = np.bincount(places.ravel(), weights.ravel(), minlength=len(weights) * _BUCKETS).reshape(-1, _BUCKETS)
    reached = held.cumsum(axis=1)
    last = np.minimum((reached < mass[:, None]).sum(axis=1), buckets.max(axis=1))
    before = np.where(last > 0, reached[rows, last - 1], 0.0)
    ordered, counts = _members(weights, buckets == last[:, None].astype(np.int32))
    before_each = before[:, None] + ordered.cumsum(axis=1, dtype=np.float64) - ordered
    kept = np.clip((before_each < mass[:, None]).sum(axis=1), 1, counts)
    return ordered[rows, kept - 1]


def _members(weights: _Numbers, chosen: NDArray[np.bool_]) -> tuple[_Numbers, NDArray[np.int64]]:
    """The ``chosen`` of each row in falling order, filled up with zeros, and how many they are: one at least."""
    found = np.flatnonzero(chosen)
    row = found // weights.shape[1]
    counts = np.bincount(row, minlength=len(weights))
    first = counts.cumsum() - counts
    members = np.zeros((len(weights), counts.max()), dtype=np.float32)
    members[row, np.arange(len(found)) - first[row]] = -weights.ravel()[found]
    members.sort(axis=1)
    return -members, counts
