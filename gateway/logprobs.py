"""Log-probabilities as each API writes them.

All of it is plain values for JSON; numbers are finite (the worker writes ``LOWEST_LOGPROB`` for a probability of zero).
Of the likeliest tokens a request gets as many as it asked for, though its prompt may have been scored with more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.dispatch import TokenLogprob
from gateway.token_names import TokenNames
from gateway.token_scores import Score


def chat_logprobs(scores: Sequence[Score], names: TokenNames, num_top: int) -> dict[str, Any]:
    """The ``logprobs`` of a choice of the chat endpoint; of output tokens only."""
    return {"content": [_chat_entry(score, names, num_top) for score in scores], "refusal": None}


def completion_logprobs(scores: Sequence[Score], names: TokenNames, num_top: int) -> dict[str, Any]:
    """The ``logprobs`` of a choice of the completions endpoint."""
    return {
        "tokens": [names.text_of(score.token_id) for score in scores],
        "token_logprobs": [None if score.logprob is None else score.logprob.own for score in scores],
        "top_logprobs": [
            None if score.logprob is None else _by_text(score.token_id, score.logprob, names, num_top)
            for score in scores
        ],
        "text_offset": [score.offset for score in scores],
    }


def prompt_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprob], names: TokenNames, num_top: int
) -> list[dict[str, Any] | None]:
    """The ``prompt_logprobs`` of vLLM: a member for each token of the prompt, null for the first."""
    of_first: list[dict[str, Any] | None] = [None]
    return of_first + [
        _by_id(token_id, logprob, names, num_top) for token_id, logprob in zip(token_ids[1:], logprobs, strict=True)
    ]


def _chat_entry(score: Score, names: TokenNames, num_top: int) -> dict[str, Any]:
    logprob = score.logprob
    if logprob is None:
        raise ValueError("an output token has a log-probability")
    top = [_chat_token(token_id, value, names) for token_id, value in logprob.top[:num_top]]
    return _chat_token(score.token_id, logprob.own, names) | {"top_logprobs": top}


def _chat_token(token_id: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    return {"token": names.text_of(token_id), "logprob": logprob, "bytes": list(names.bytes_of(token_id))}


def _by_text(token_id: int, logprob: TokenLogprob, names: TokenNames, num_top: int) -> dict[str, float]:
    """The likeliest, and the token itself. Of tokens of the same text the likeliest counts."""
    by_text: dict[str, float] = {}
    for top_id, value in (*logprob.top[:num_top], (token_id, logprob.own)):
        by_text.setdefault(names.text_of(top_id), value)
    return by_text


def _by_id(token_id: int, logprob: TokenLogprob, names: TokenNames, num_top: int) -> dict[str, Any]:
    """The token itself, then the likeliest beside it."""
    top = logprob.top[:num_top]
    ranks = {top_id: rank for rank, (top_id, _) in enumerate(top, start=1)}
    values = {token_id: logprob.own} | dict(top)
    return {
        str(named_id): {
            "logprob": value,
            "rank": ranks.get(named_id),
            "decoded_token": names.text_of(named_id),
        }
        for named_id, value in values.items()
    }
