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
from workers.device import send
from workers.wire import LOWEST_LOGPROB

NUCLEUS_TRIES = (256, 4096)
"""Most probable tokens to look at before a whole row is sorted, at ten times the cost: most nuclei are small."""


class Choice(NamedTuple):
    """A token for each row, where the logits are, and whether it is one: there may be none to be had."""

    tokens: Tensor
    is_sound: Tensor

    def read(self) -> list[int | None]:
        """On the host, which waits for it; None where there is none."""
        chosen: list[int | None] = self.tokens.tolist()
        if not bool(self.is_sound.all()):
            for row in self.is_sound.logical_not().nonzero().flatten().tolist():
                chosen[row] = None
        return chosen


def sample(logits: Tensor, draws: Mapping[int, Draw]) -> list[int | None]:
    """One token id for each row of ``logits`` [rows, vocabulary]; None where there is none to be had.

    Rows that ``draws`` does not name take their best token.
    """
    return choose(logits, draws).read()


def choose(logits: Tensor, draws: Mapping[int, Draw]) -> Choice:
    """The same, left where the logits are: on a GPU the host waits for nothing."""
    choice = _best(logits)
    if draws:
        rows = send(torch.tensor(list(draws)), logits.device)
        picked = _choose(logits.index_select(0, rows).float(), list(draws.values()))
        choice.tokens.index_copy_(0, rows, picked.tokens)
        choice.is_sound.index_copy_(0, rows, picked.is_sound & choice.is_sound[rows])
    return choice


def _best(logits: Tensor) -> Choice:
    highest, best = logits.max(dim=-1)  # NaN wins a maximum, so this also finds the broken rows
    return Choice(best, torch.isfinite(highest))


def _choose(logits: Tensor, draws: Sequence[Draw]) -> Choice:
    """``logits`` is this function's own, and is changed."""
    _add_bias(logits, draws)
    _ban(logits, draws)
    _penalise(logits, draws)
    choice = _best(logits)
    random = [row for row, draw in enumerate(draws) if not draw.is_greedy]
    if random:
        rows = send(torch.tensor(random), logits.device)
        choice.tokens.index_copy_(0, rows, _draw_rows(logits.index_select(0, rows), [draws[row] for row in random]))
    return choice


# --- changes to logits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Single logits of a batch, as an index, and how many of them each of some rows has."""

    index: tuple[Tensor, Tensor]
    lengths: Ids


def _places(rows: Sequence[int], ids: Sequence[Ids], device: torch.device) -> _Places:
    lengths = np.array([len(of_row) for of_row in ids])
    flat: tuple[Ids, Ids] = np.repeat(np.array(rows), lengths), np.concatenate(ids)
    index = send(torch.from_numpy(flat[0]), device), send(torch.from_numpy(flat[1]), device)
    return _Places(index=index, lengths=lengths)


def _add_bias(logits: Tensor, draws: Sequence[Draw]) -> None:
    biases = {row: draw.bias for row, draw in enumerate(draws) if draw.bias is not None}
    if biases:
        index = _places(list(biases), [bias.ids for bias in biases.values()], logits.device).index
        values = np.concatenate([bias.values for bias in biases.values()])
        logits[index] += send(torch.from_numpy(values), logits.device)


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
        send(torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), places.lengths)), logits.device)
        for values in (
            [sampling.repetition_penalty for sampling in samplings],
            [sampling.frequency_penalty for sampling in samplings],
            [sampling.presence_penalty for sampling in samplings],
        )
    )
    counts = send(torch.from_numpy(np.concatenate([tokens.counts for tokens in seen.values()])), logits.device)
    at = logits[places.index]
    at = torch.where(at > 0, at / repetition, at * repetition)
    logits[places.index] = at - frequency * counts - presence * (counts > 0)


# --- the draw ---------------------------------------------------------------------------------------------------------


def _draw_rows(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """A token for each row; of a row that is not sound, any."""
    device = logits.device
    temperature = send(torch.tensor([draw.sampling.temperature for draw in draws]), device)
    below_best = logits - logits.max(dim=-1, keepdim=True).values  # divided by however little, it overflows to no NaN
    probabilities = torch.softmax(below_best / temperature[:, None], dim=-1)
    _keep_min_p(probabilities, draws)
    _keep_top_k(probabilities, draws)
    _keep_nucleus(probabilities, draws)
    cumulated = _cumulated(probabilities)
    total = cumulated[:, -1:].contiguous()
    numbers = send(torch.tensor([[draw.number] for draw in draws], dtype=torch.float64), device)
    picked = torch.searchsorted(cumulated, numbers * total, right=True)
    last_possible = torch.searchsorted(cumulated, total)  # rounding may put number * total at the total itself
    return torch.minimum(picked, last_possible).squeeze(-1).clamp_(max=logits.shape[-1] - 1)


def _cumulated(probabilities: Tensor) -> Tensor:
    """In float64: a float32 sum over a large vocabulary would be off by more than many a token's probability."""
    return probabilities.double().cumsum(dim=-1)


def _keep_min_p(probabilities: Tensor, draws: Sequence[Draw]) -> None:
    shares = {row: draw.sampling.min_p for row, draw in enumerate(draws) if draw.sampling.min_p > 0.0}
    if shares:
        rows, whole = _rows(probabilities, shares)
        share = send(torch.tensor(list(shares.values())), whole.device)
        _keep(probabilities, rows, whole, least=share * whole.max(dim=-1).values)


def _keep_top_k(probabilities: Tensor, draws: Sequence[Draw]) -> None:
    """Tokens as likely as the last one that is kept are kept too."""
    limits = {row: draw.sampling.top_k for row, draw in enumerate(draws) if draw.sampling.top_k is not None}
    if limits:
        rows, whole = _rows(probabilities, limits)
        most = [min(k, whole.shape[-1]) for k in limits.values()]
        first = whole.topk(max(most), dim=-1).values
        last = send(torch.tensor(most), whole.device)[:, None] - 1
        _keep(probabilities, rows, whole, least=first.gather(-1, last).squeeze(-1))


def _keep_nucleus(probabilities: Tensor, draws: Sequence[Draw]) -> None:
    shares = {row: draw.sampling.top_p for row, draw in enumerate(draws) if draw.sampling.top_p < 1.0}
    if shares:
        rows, whole = _rows(probabilities, shares)
        top_p = send(torch.tensor(list(shares.values()), dtype=torch.float64), whole.device)
        mass = top_p * _cumulated(whole)[:, -1]  # of what min_p and top_k have left
        find = least_by_tries if whole.device.type == "cpu" else least_by_sorting
        _keep(probabilities, rows, whole, least=find(whole, mass))


def _rows(probabilities: Tensor, named: Mapping[int, object]) -> tuple[Tensor, Tensor]:
    """The rows that are ``named``: as an index, and what they hold."""
    rows = send(torch.tensor(list(named)), probabilities.device)
    return rows, probabilities.index_select(0, rows)


def _keep(probabilities: Tensor, rows: Tensor, whole: Tensor, *, least: Tensor) -> None:
    probabilities.index_copy_(0, rows, torch.where(whole >= least[:, None], whole, 0.0))


def least_by_tries(probabilities: Tensor, mass: Tensor) -> Tensor:
    """The least probability [rows] within the smallest set of tokens that reaches ``mass`` [rows].

    Reads on the way how far it has come, which on a GPU would wait for it.
    """
    least = torch.empty_like(probabilities[:, 0])
    rows = torch.arange(len(least), device=least.device)
    for size in NUCLEUS_TRIES:
        first = probabilities[rows].topk(min(size, probabilities.shape[-1])).values
        least[rows] = _least_kept(first, mass[rows])
        rows = rows[first.double().sum(dim=-1) < mass[rows]]
        if not len(rows):
            return least
    least[rows] = least_by_sorting(probabilities[rows], mass[rows])
    return least


def least_by_sorting(probabilities: Tensor, mass: Tensor) -> Tensor:
    """The same, of whole rows at once: a GPU sorts them faster than it could be asked."""
    return _least_kept(probabilities.sort(dim=-1, descending=True).values, mass)


def _least_kept(ordered: Tensor, mass: Tensor) -> Tensor:
    before = ordered.double().cumsum(dim=-1) - ordered.double()
    kept = (before < mass[:, None]).sum(dim=-1).clamp_(min=1)  # none only in a row that is not sound
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
