"""How one sequence chooses its tokens: its parameters, and what they need to know of its past.

A chooser is made when its sequence starts and told of every token that the sequence emits. It is made of the tokens in
full, so a sequence that was preempted or has moved chooses as if it had been here all along. All its numbers lie in
short arrays on the host; ``sampler.py`` joins those of a whole batch and works on them at once.

A sequence that takes the best token, and asks for nothing else, needs no chooser.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from workers.randomness import uniform
from workers.wire import MAX_TOP_LOGPROBS, Sampling

Ids: TypeAlias = "NDArray[np.int64]"
Floats: TypeAlias = "NDArray[np.float32]"

GREEDY_BELOW = 1e-4
"""At this temperature a lead of 0.01 in logits already outweighs all else by e^100, and dividing further overflows."""

HOTTEST = 1e6
"""At this temperature every token is as likely as any other."""


class BadSampling(Exception):
    """Parameters that no gateway lets through: this sequence cannot be sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Values to add to the logits of ``ids``."""

    ids: Ids
    values: Floats


class SeenTokens:
    """The distinct tokens that penalties look at, and how often each came in the output (0: in the prompt alone)."""

    def __init__(self, *, prompt: Sequence[int], output: Sequence[int], vocab_size: int) -> None:
        places: dict[int, int] = {}
        for token in (*prompt, *output):
            if token < vocab_size:  # one beyond it fails its sequence elsewhere, but must not index a row of logits
                places.setdefault(token, len(places))
        self._places = places
        self._ids: Ids = np.fromiter(places, dtype=np.int64, count=len(places))
        self._counts: Floats = np.zeros(len(places), dtype=np.float32)
        for token in output:
            if token in places:
                self._counts[places[token]] += 1

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Floats:
        return self._counts[: len(self._places)]

    def note(self, token: int) -> None:
        """One more token of the output."""
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._ids):  # doubled, so that a long output costs no copy per token
                self._ids = np.resize(self._ids, max(16, 2 * place))
                self._counts = np.resize(self._counts, max(16, 2 * place))
            self._ids[place] = token
            self._counts[place] = 0
        self._counts[place] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How to choose one token: ``number`` is its random number in [0, 1), ``banned`` tokens may not come."""

    sampling: Sampling
    number: float = 0.0
    bias: Bias | None = None
    banned: Ids | None = None
    seen: SeenTokens | None = None

    @property
    def is_greedy(self) -> bool:
        sampling = self.sampling
        return sampling.temperature <= GREEDY_BELOW or sampling.top_p <= GREEDY_BELOW or sampling.top_k == 1


class Chooser:
    """One sequence's way to choose: ``prompt`` and ``output`` are what it has at its start.

    ``sampling`` was checked. ``ending_ids`` are the tokens that would end it.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        prompt: Sequence[int],
        output: Sequence[int],
        ending_ids: Collection[int],
        vocab_size: int,
    ) -> None:
        self._sampling = sampling
        self._bias = _bias_of(sampling)
        self._ending = np.array([token for token in sorted(ending_ids) if token < vocab_size], dtype=np.int64)
        self._seen: SeenTokens | None = None
        if sampling.repetition_penalty != 1.0:
            self._seen = SeenTokens(prompt=prompt, output=output, vocab_size=vocab_size)
        elif _has_penalties(sampling):
            self._seen = SeenTokens(prompt=(), output=output, vocab_size=vocab_size)

    @property
    def looks_back(self) -> bool:
        """Whether a draw depends on the tokens so far."""
        return self._seen is not None

    def draw(self, position: int) -> Draw:
        """How to choose the token of output ``position``."""
        sampling = self._sampling
        return Draw(
            sampling=sampling,
            number=uniform(sampling.seed, sampling.choice, position),
            bias=self._bias,
            banned=self._ending if position < sampling.min_tokens and len(self._ending) else None,
            seen=self._seen,
        )

    def note(self, token: int) -> None:
        """The sequence has emitted this token."""
        if self._seen is not None:
            self._seen.note(token)


def needs_chooser(sampling: Sampling) -> bool:
    """Whether more is asked for than the best token by the model's own logits."""
    asks_for_edits = bool(sampling.logit_bias or sampling.min_tokens or _has_penalties(sampling))
    return sampling.temperature > GREEDY_BELOW or asks_for_edits


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Raises ``BadSampling``. The gateway has checked, but a worker lets nothing poison its arithmetic."""
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
        *(value for _, value in sampling.logit_bias),
    )
    widths = [width for width in (sampling.top_logprobs, sampling.prompt_logprobs) if width is not None]
    problems = {
        "a number that is none": not all(map(math.isfinite, numbers)),
        "temperature": not 0.0 <= sampling.temperature <= HOTTEST,
        "top_p": not 0.0 <= sampling.top_p <= 1.0,
        "min_p": not 0.0 <= sampling.min_p <= 1.0,
        "top_k": sampling.top_k is not None and sampling.top_k < 1,
        "repetition_penalty": sampling.repetition_penalty <= 0.0,
        "logit_bias": any(not 0 <= token < vocab_size for token, _ in sampling.logit_bias),
        "log-probabilities": any(not 0 <= width <= MAX_TOP_LOGPROBS for width in widths),
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise BadSampling(f"out of range: {', '.join(wrong)}")


def _has_penalties(sampling: Sampling) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)


def _bias_of(sampling: Sampling) -> Bias | None:
    values = dict(sampling.logit_bias)  # of a token that is named twice, the last counts
    if not values:
        return None
    return Bias(
        ids=np.fromiter(values, dtype=np.int64, count=len(values)),
        values=np.array(list(values.values()), dtype=np.float32),
    )
