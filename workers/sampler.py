"""Choosing tokens from logits, all rows of a batch at once.

A row's choice depends on its own logits, its own parameters and its own random number, never on its neighbours. Rows
that take the best token cost one maximum over the batch and no more. The others are copied out, and what they ask for
is done to all of them that ask for it together; the order stands with ``Sampling`` in the wire's messages.

A token is found where the cumulated probabilities, in the order of the vocabulary, pass the random number: in the order
of falling probability two nearly equal tokens could change places by a rounding error, and the choice with them. Only
rows that ask for a nucleus (``top_p`` below 1) pay for sorting, and those first try the most probable tokens alone.

A row whose logits hold a NaN, or no finite maximum, yields None: that sequence fails, the batch goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from workers.chooser import Draw, Ids, SeenTokens
from workers.wire import LOWEST_LOGPROB

NUCLEUS_TRIES = (256, 4096)
"""Most probable tokens to look at before a whole row is sorted, at ten times the cost: most nuclei are small."""


def sample(logits: Tensor, draws: Mapping[int, Draw]) -> list[int | None]:
    """One token id for each row of ``logits`` [rows, vocabulary]; None where there is none to be had.

    Rows that ``draws`` does not name take their best token.
    """
    chosen = _best(logits)
    if draws:
        picked = _choose(logits[list(draws)].float(), list(draws.values()))
        for row, token in zip(draws, picked, strict=True):
            chosen[row] = None if chosen[row] is None else token
    return chosen


def _best(logits: Tensor) -> list[int | None]:
    highest, best = logits.max(dim=-1)  # NaN wins a maximum, so this also finds the broken rows
    finite = torch.isfinite(highest)
    chosen: list[int | None] = best.tolist()
    if not bool(finite.all()):
        for row in finite.logical_not().nonzero().flatten().tolist():
            chosen[row] = None
    return chosen


def _choose(logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """``logits`` is this function's own, and is changed."""
    _add_bias(logits, draws)
    _ban(logits, draws)
    _penalise(logits, draws)
    chosen = _best(logits)
    random = [row for row, draw in enumerate(draws) if chosen[row] is not None and not draw.is_greedy]
    if random:
        picked = _draw_rows(logits[random], [draws[row] for row in random])
        for row, token in zip(random, picked, strict=True):
            chosen[row] = token
    return chosen


# --- changes to logits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Single logits of a batch, as an index, and how many of them each of some rows has."""

    index: tuple[Tensor, Tensor]
    lengths: Ids


def _places(rows: Sequence[int], ids: Sequence[Ids], device: torch.device) -> _Places:
    lengths = np.array([len(of_row) for of_row in ids])
    flat: tuple[Ids, Ids] = np.repeat(np.array(rows), lengths), np.concatenate(ids)
    index = torch.from_numpy(flat[0]).to(device), torch.from_numpy(flat[1]).to(device)
    return _Places(index=index, lengths=lengths)


def _add_bias(logits: Tensor, draws: Sequence[Draw]) -> None:
    biases = {row: draw.bias for row, draw in enumerate(draws) if draw.bias is not None}
    if biases:
        index = _places(list(biases), [bias.ids for bias in biases.values()], logits.device).index
        values = np.concatenate([bias.values for bias in biases.values()])
        logits[index] += torch.from_numpy(values).to(logits.device)


def _ban(logits: Tensor, draws: Sequence[Draw]) -> None:
    banned = {row: draw.banned for row, draw in enumerate(draws) if draw.banned is not None}
    if banned:
        logits[_places(list(banned), list(banned.values()), logits.device).index] = float("-inf")


def _penalise(logits: Tensor, draws: Sequence[Draw]) -> None:
    seen: dict[int, SeenTokens] = {row: draw.seen for row, draw in enumerate(draws) if draw.seen is not None}
    if not seen:
        return
    places = _places(list(seen), [tokens.ids for tokens in seen.values()], logits.device)
    samplings = [draws[row].sampling for row in seen]
    repetition, frequency, presence = (
        torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), places.lengths)).to(logits.device)
        for values in (
            [sampling.repetition_penalty for sampling in samplings],
            [sampling.frequency_penalty for sampling in samplings],
            [sampling.presence_penalty for sampling in samplings],
        )
    )
    counts = torch.from_numpy(np.concatenate([tokens.counts for tokens in seen.values()])).to(logits.device)
    at = logits[places.index]
    at = torch.where(at > 0, at / repetition, at * repetition)
    logits[places.index] = at - frequency * counts - presence * (counts > 0)


# --- the draw ---------------------------------------------------------------------------------------------------------


def _draw_rows(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    device = logits.device
    temperature = torch.tensor([draw.sampling.temperature for draw in draws], device=device)
    below_best = logits - logits.max(dim=-1, keepdim=True).values  # divided by however little, it overflows to no NaN
    probabilities = torch.softmax(below_best / temperature[:, None], dim=-1)
    _keep_min_p(probabilities, draws)
    _keep_top_k(probabilities, draws)
    _keep_nucleus(probabilities, draws)
    cumulated = _cumulated(probabilities)
    total = cumulated[:, -1:].contiguous()
    numbers = torch.tensor([[draw.number] for draw in draws], device=device, dtype=torch.float64)
    picked = torch.searchsorted(cumulated, numbers * total, right=True)
    last_possible = torch.searchsorted(cumulated, total)  # rounding may put number * total at the total itself
    return torch.minimum(picked, last_possible).squeeze(-1).tolist()


def _cumulated(probabilities: Tensor) -> Tensor:
    """In float64: a float32 sum over a large vocabulary would be off by more than many a token's probability."""
    return probabilities.double().cumsum(dim=-1)


def _keep_min_p(probabilities: Tensor, draws: Sequence[Draw]) -> None:
    rows = [row for row, draw in enumerate(draws) if draw.sampling.min_p > 0.0]
    if rows:
        whole = probabilities[rows]
        share = torch.tensor([draws[row].sampling.min_p for row in rows], device=whole.device)
        _keep(probabilities, rows, whole, least=share * whole.max(dim=-1).values)


def _keep_top_k(probabilities: Tensor, draws: Sequence[Draw]) -> None:
    """Tokens as likely as the last one that is kept are kept too."""
    limits = {row: draw.sampling.top_k for row, draw in enumerate(draws) if draw.sampling.top_k is not None}
    if limits:
        whole = probabilities[list(limits)]
        most = torch.tensor([min(k, whole.shape[-1]) for k in limits.values()], device=whole.device)
        first = whole.topk(int(most.max()), dim=-1).values
        _keep(probabilities, list(limits), whole, least=first.gather(-1, most[:, None] - 1).squeeze(-1))


def _keep_nucleus(probabilities: Tensor, draws: Sequence[Draw]) -> None:
    rows = [row for row, draw in enumerate(draws) if draw.sampling.top_p < 1.0]
    if rows:
        whole = probabilities[rows]
        top_p = torch.tensor([draws[row].sampling.top_p for row in rows], device=whole.device, dtype=torch.float64)
        mass = top_p * _cumulated(whole)[:, -1]  # of what min_p and top_k have left
        _keep(probabilities, rows, whole, least=_least_in_nucleus(whole, mass))


def _keep(probabilities: Tensor, rows: list[int], whole: Tensor, *, least: Tensor) -> None:
    probabilities[rows] = torch.where(whole >= least[:, None], whole, 0.0)


def _least_in_nucleus(probabilities: Tensor, mass: Tensor) -> Tensor:
    """The least probability [rows] within the smallest set of tokens that reaches ``mass`` [rows]."""
    least = torch.empty_like(probabilities[:, 0])
    rows = torch.arange(len(least), device=least.device)
    for size in NUCLEUS_TRIES:
        first = probabilities[rows].topk(min(size, probabilities.shape[-1])).values
        least[rows] = _least_kept(first, mass[rows])
        rows = rows[first.double().sum(dim=-1) < mass[rows]]
        if not len(rows):
            return least
    ordered = probabilities[rows].sort(dim=-1, descending=True).values
    least[rows] = _least_kept(ordered, mass[rows])
    return least


def _least_kept(ordered: Tensor, mass: Tensor) -> Tensor:
    before = ordered.double().cumsum(dim=-1) - ordered.double()
    kept = (before < mass[:, None]).sum(dim=-1)
    return ordered.gather(-1, kept[:, None] - 1).squeeze(-1)


# --- log-probabilities ------------------------------------------------------------------------------------------------


class TopLogprobs(NamedTuple):
    """Of one token its own log-probability, and the likeliest beside it, best first."""

    own: float
    top_ids: tuple[int, ...]
    top: tuple[float, ...]


def log_probabilities(logits: Tensor, tokens: Sequence[int], widths: Sequence[int]) -> list[TopLogprobs]:
    """Of the token of each row of ``logits`` [rows, vocabulary], whose best is finite, and of ``widths`` others."""
    logs = torch.log_softmax(logits.float(), dim=-1).clamp_(min=LOWEST_LOGPROB)
    own = logs.gather(-1, torch.tensor(tokens, device=logs.device)[:, None]).squeeze(-1).tolist()
    top = logs.topk(min(max(widths), logs.shape[-1]), dim=-1)
    rows = zip(own, top.indices.tolist(), top.values.tolist(), widths, strict=True)
    return [TopLogprobs(mine, tuple(ids[:width]), tuple(values[:width])) for mine, ids, values, width in rows]
