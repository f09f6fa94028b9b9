"""Log-probabilities on their way from worker to client: runs of them cut, joined and taken apart.

They travel as flat runs of numbers (``workers.wire.Scores``) and become values of their own only where they are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.dispatch import TokenLogprob
from workers.wire import Delivery, Scores


def is_whole(scores: Scores) -> bool:
    """Whether it has as many of the likeliest for every token."""
    num_tokens, num_top = len(scores.own), len(scores.top)
    return num_tokens > 0 and num_top % num_tokens == 0 and num_top == len(scores.top_ids)


def num_values(scores: Scores) -> int:
    """How many log-probabilities it holds; each takes 8 bytes on the wire, those of the likeliest 12 with their ids."""
    return len(scores.own) + len(scores.top)


def values_of(delivery: Delivery) -> int:
    """How many log-probabilities come with it, of its tokens and of its prompt's."""
    told = (delivery.scores, None if delivery.prompt is None else delivery.prompt.scores)
    return sum(num_values(scores) for scores in told if scores is not None)


def between(scores: Scores, start: int, stop: int) -> Scores:
    """Those of its tokens ``start`` to ``stop``, counted from 0."""
    width = len(scores.top) // len(scores.own) if scores.own else 0
    return Scores(
        own=scores.own[start:stop],
        top_ids=scores.top_ids[start * width : stop * width],
        top=scores.top[start * width : stop * width],
    )


def since(scores: Scores, start: int) -> Scores:
    """Those of its tokens from ``start`` on."""
    return scores if start == 0 else between(scores, start, len(scores.own))


def joined(parts: Sequence[Scores]) -> Scores:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    return Scores(
        own=tuple([value for part in parts for value in part.own]),
        top_ids=tuple([token for part in parts for token in part.top_ids]),
        top=tuple([value for part in parts for value in part.top]),
    )


def token_logprobs(parts: Sequence[Scores]) -> tuple[TokenLogprob, ...]:
    """One value for each token."""
    return tuple([logprob for part in parts for logprob in _each(part)])


def _each(scores: Scores) -> list[TokenLogprob]:
    width = len(scores.top) // len(scores.own) if scores.own else 0
    pairs = tuple(zip(scores.top_ids, scores.top, strict=True))
    return [TokenLogprob(own=own, top=pairs[at * width : (at + 1) * width]) for at, own in enumerate(scores.own)]
