"""Choosing tokens from logits, all rows of a batch at once.

A row's choice depends on its own logits, its own parameters and its own random number, never on its neighbours. Rows
that take the best token cost one maximum over the batch and no more. The others are copied out, and what they ask for
is done to all of them that ask for it together; the order stands with ``Sampling`` in the wire's messages.

A token is drawn by its *weight*: its probability at the temperature, as a share of the best token's. Limits to the
choice take weights away (``nucleus.py`` for ``top_p``). The token is where the cumulated weights, in the order of the
vocabulary, pass the random number: in the order of falling weight two nearly equal tokens could change places by a
rounding error, and the choice with them. The place is looked up in two levels, first among blocks of the vocabulary.

A row whose logits hold a NaN, or no finite maximum, yields None: that sequence fails, the batch goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from workers.chooser import Draw, Ids, SeenTokens
from workers.device import send
from workers.nucleus import least_in_nucleus
from workers.wire import LOWEST_LOGPROB, MAX_TOP_LOGPROBS

NUMBERS_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 30}
"""Logits that are drawn from together: on a CPU what its caches hold of all that is made of them, on CUDA the batch."""

BLOCK = 128
"""Weights that are summed before they are cumulated."""


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
    named = list(draws)
    together = max(1, NUMBERS_AT_ONCE[logits.device.type] // logits.shape[-1])
    for start in range(0, len(named), together):
        some = named[start : start + together]
        rows = send(torch.tensor(some), logits.device)
        picked = _choose(logits.index_select(0, rows).float(), [draws[row] for row in some])
        choice.tokens.index_copy_(0, rows, picked.tokens)
        choice.is_sound.index_copy_(0, rows, picked.is_sound & choice.is_sound[rows])
    return choice


def _best(logits: Tensor) -> Choice:
    """The first of each row's largest."""
    is_sound = torch.isfinite(logits.amax(dim=-1))  # NaN wins a maximum, so this also finds the broken rows
    if logits.device.type == "cpu":  # numpy takes a tenth of torch's time
        return Choice(torch.from_numpy(logits.float().numpy().argmax(axis=-1)), is_sound)
    return Choice(logits.argmax(dim=-1), is_sound)


def _choose(logits: Tensor, draws: Sequence[Draw]) -> Choice:
    """``logits`` is this function's own, and is changed."""
    _add_bias(logits, draws)
    _ban(logits, draws)
    _penalise(logits, draws)
    choice = _best(logits)
    random = [row for row, draw in enumerate(draws) if not draw.is_greedy]
    if random:
        rows = send(torch.tensor(random), logits.device)
        chosen = logits if len(random) == len(draws) else logits.index_select(0, rows)
        choice.tokens.index_copy_(0, rows, _draw_rows(chosen, [draws[row] for row in random]))
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
    """A token for each row; of a row that is not sound, any. ``logits`` may be changed."""
    weights = _weights(logits, draws)
    _keep_likely(weights, draws)
    _keep_nucleus(weights, draws)
    return _pick(weights, draws)


def _weights(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """[rows, whole blocks of the vocabulary]: 1 for the best token of a row, 0 for those that fill the last block."""
    temperature = send(torch.tensor([draw.sampling.temperature for draw in draws]), logits.device)
    below_best = logits.sub_(logits.amax(dim=-1, keepdim=True))  # divided by however little, it overflows to no NaN
    weights = torch.softmax(below_best.div_(temperature[:, None]), dim=-1)  # row by row, which exp() is not
    weights.div_(weights.amax(dim=-1, keepdim=True)).nan_to_num_(0.0)  # of rows that are not sound
    missing = -logits.shape[-1] % BLOCK
    return pad(weights, (0, missing)) if missing else weights


def _keep_likely(weights: Tensor, draws: Sequence[Draw]) -> None:
    """By ``min_p`` and ``top_k``. Tokens as likely as the last one that is kept are kept too."""
    least = send(torch.tensor([draw.sampling.min_p for draw in draws]), weights.device)  # the best weighs 1
    limits = {row: draw.sampling.top_k for row, draw in enumerate(draws) if draw.sampling.top_k is not None}
    if limits:
        rows, whole = _rows(weights, limits)
        most = [min(k, whole.shape[-1]) for k in limits.values()]
        first = whole.topk(max(most), dim=-1).values
        last = send(torch.tensor(most), whole.device)[:, None] - 1
        lasts = first.gather(-1, last).squeeze(-1)
        least.index_copy_(0, rows, torch.maximum(least[rows], lasts))
    if limits or any(draw.sampling.min_p > 0.0 for draw in draws):
        _keep(weights, least)


def _keep_nucleus(weights: Tensor, draws: Sequence[Draw]) -> None:
    """By ``top_p``, of what is left."""
    shares = {row: draw.sampling.top_p for row, draw in enumerate(draws) if draw.sampling.top_p < 1.0}
    if shares:
        rows, whole = _rows(weights, shares)
        top_p = send(torch.tensor(list(shares.values()), dtype=torch.float64), whole.device)
        least = torch.zeros_like(weights[:, 0])
        _keep(weights, least.index_copy_(0, rows, least_in_nucleus(whole, top_p * _cumulated(whole)[:, -1])))


def _rows(weights: Tensor, named: Mapping[int, object]) -> tuple[Tensor, Tensor]:
    """The rows that are ``named``: as an index, and what they hold."""
    rows = send(torch.tensor(list(named)), weights.device)
    return rows, weights if len(named) == len(weights) else weights.index_select(0, rows)


def _keep(weights: Tensor, least: Tensor) -> None:
    """Those of at least so much, by row."""
    weights.mul_(weights.clone().ge_(least[:, None]))


def _cumulated(weights: Tensor) -> Tensor:
    """[rows, blocks]. In float64: a float32 sum over a vocabulary would be off by more than many a token weighs."""
    return weights.view(len(weights), -1, BLOCK).sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)


def _pick(weights: Tensor, draws: Sequence[Draw]) -> Tensor:
    numbers = send(torch.tensor([[draw.number] for draw in draws], dtype=torch.float64), weights.device)
    cumulated = _cumulated(weights)
    sought = numbers * cumulated[:, -1:]
    block = _place(cumulated, sought)
    sought -= pad(cumulated, (1, 0)).gather(-1, block)
    within = weights.view(len(weights), -1, BLOCK)[torch.arange(len(draws), device=weights.device), block.squeeze(-1)]
    return (block * BLOCK + _place(within.double().cumsum(dim=-1), sought)).squeeze(-1)


def _place(cumulated: Tensor, sought: Tensor) -> Tensor:
    """[rows, 1]: where ``cumulated`` [rows, n] first passes ``sought`` [rows, 1]; at the latest where it grows last."""
    place = torch.searchsorted(cumulated, sought, right=True)
    last = torch.searchsorted(cumulated, cumulated[:, -1:].contiguous())  # rounding may seek what lies at the end
    return torch.minimum(place, last)


# --- log-probabilities ------------------------------------------------------------------------------------------------


class TopLogprobs(NamedTuple):
    """Of one token its own log-probability, and the likeliest beside it, best first."""

    own: float
    top_ids: tuple[int, ...]
    top: tuple[float, ...]


def log_probabilities(logits: Tensor, tokens: Sequence[int], widths: Sequence[int]) -> list[TopLogprobs]:
    """Of the token of each row of ``logits`` [rows, vocabulary], whose best is finite, and of ``widths`` others.

    Which of equals come first must not depend on what other rows ask for, so as many are looked for always.
    """
    logs = torch.log_softmax(logits.float(), dim=-1).clamp_(min=LOWEST_LOGPROB)
    own = logs.gather(-1, torch.tensor(tokens, device=logs.device)[:, None]).squeeze(-1).tolist()
    top = logs.topk(min(MAX_TOP_LOGPROBS if any(widths) else 0, logs.shape[-1]), dim=-1)
    rows = zip(own, top.indices.tolist(), top.values.tolist(), widths, strict=True)
    return [TopLogprobs(mine, tuple(ids[:width]), tuple(values[:width])) for mine, ids, values, width in rows]
