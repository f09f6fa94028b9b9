"""Choosing tokens from logits, all rows of a batch at once.

A row's choice depends on its own logits, its own parameters and its own random number, never on its neighbours. A token
is found where the cumulated probabilities, in the order of the vocabulary, pass the random number: in the order of
falling probability two nearly equal tokens could change places by a rounding error, and the choice with them. Only rows
that ask for a nucleus (``top_p`` below 1) pay for sorting, and those first try the most probable tokens alone.

A row whose logits hold a NaN, or no finite maximum, yields None: that sequence fails, the batch goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GREEDY_BELOW = 1e-4
"""At this temperature a lead of 0.01 in logits already outweighs all else by e^100, and dividing further overflows."""

NUCLEUS_TRIES = (256, 4096)
"""Most probable tokens to look at before a whole row is sorted, at ten times the cost: most nuclei are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How to choose one token: ``number`` is its random number in [0, 1)."""

    temperature: float
    top_p: float
    number: float

    @property
    def is_usable(self) -> bool:
        """The gateway has checked these; a worker still refuses what would poison its arithmetic."""
        return math.isfinite(self.temperature) and self.temperature >= 0.0 and 0.0 <= self.top_p <= 1.0

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= GREEDY_BELOW or self.top_p <= GREEDY_BELOW


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """One token id for each row of ``logits`` [rows, vocabulary]; None where logits or parameters are no numbers."""
    highest, best = logits.max(dim=-1)  # NaN wins a maximum, so this also finds the broken rows
    chosen = best.tolist()
    finite = torch.isfinite(highest).tolist()
    usable = [fine and draw.is_usable for fine, draw in zip(finite, draws, strict=True)]
    rows = [row for row, draw in enumerate(draws) if usable[row] and not draw.is_greedy]
    if rows:
        picked = _draw_rows(logits[rows].float(), [draws[row] for row in rows])
        for row, token in zip(rows, picked, strict=True):
            chosen[row] = token
    return [token if fine else None for token, fine in zip(chosen, usable, strict=True)]


def _draw_rows(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    device = logits.device
    temperature = torch.tensor([draw.temperature for draw in draws], device=device)
    probabilities = torch.softmax(logits / temperature[:, None], dim=-1)
    nucleus = [row for row, draw in enumerate(draws) if draw.top_p < 1.0]
    if nucleus:
        top_p = torch.tensor([draws[row].top_p for row in nucleus], device=device, dtype=torch.float64)
        whole = probabilities[nucleus]
        least = _least_in_nucleus(whole, top_p)
        probabilities[nucleus] = torch.where(whole >= least[:, None], whole, 0.0)
    # In float64: a float32 sum over a large vocabulary would be off by more than many a token's probability.
    cumulated = probabilities.double().cumsum(dim=-1)
    total = cumulated[:, -1:].contiguous()
    numbers = torch.tensor([[draw.number] for draw in draws], device=device, dtype=torch.float64)
    picked = torch.searchsorted(cumulated, numbers * total, right=True)
    last_possible = torch.searchsorted(cumulated, total)  # rounding may put number * total at the total itself
    return torch.minimum(picked, last_possible).squeeze(-1).tolist()


def _least_in_nucleus(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """The least probability [rows] within the smallest set of tokens that reaches ``top_p`` [rows]."""
    least = torch.empty_like(probabilities[:, 0])
    rows = torch.arange(len(least), device=least.device)
    for size in NUCLEUS_TRIES:
        first = probabilities[rows].topk(min(size, probabilities.shape[-1])).values
        least[rows] = _least_kept(first, top_p[rows])
        rows = rows[first.double().sum(dim=-1) < top_p[rows]]
        if not len(rows):
            return least
    ordered = probabilities[rows].sort(dim=-1, descending=True).values
    least[rows] = _least_kept(ordered, top_p[rows])
    return least


def _least_kept(ordered: Tensor, top_p: Tensor) -> Tensor:
    before = ordered.double().cumsum(dim=-1) - ordered.double()
    kept = (before < top_p[:, None]).sum(dim=-1)
    return ordered.gather(-1, kept[:, None] - 1).squeeze(-1)
