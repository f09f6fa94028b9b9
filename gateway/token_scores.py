"""Log-probabilities on their way to a client, each with its token and the place of that token's text.

Those of output tokens come out with their text, not before: while text is withheld (half a character, what may begin a
stop string), so are they. None is lost: at the end come those whose text never came out, as a stop string's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.dispatch import TokenLogprob


class Score(NamedTuple):
    """A token's log-probability; None for the first token of a prompt, which nothing predicts.

    ``offset``: where the token's text begins, in characters of the choice's text.
    """

    token_id: int
    offset: int
    logprob: TokenLogprob | None


class ScoreQueue:
    """Scores of one output, whose text begins at ``offset``."""

    def __init__(self, offset: int = 0) -> None:
        self._made = offset  # where the text of the next token begins
        self._shown = offset  # so far the text has come out
        self._textless: list[Score] = []  # their character is not complete
        self._waiting: list[tuple[int, Score]] = []  # behind the end of their text

    def add(self, token_id: int, logprob: TokenLogprob, num_chars: int) -> None:
        """Take in a token with which ``num_chars`` of text became complete."""
        self._textless.append(Score(token_id, self._made, logprob))
        if num_chars:
            self._made += num_chars
            self._waiting += [(self._made, score) for score in self._textless]
            self._textless.clear()

    def release(self, num_chars: int) -> list[Score]:
        """So many more characters of text come out: the scores that come with them."""
        self._shown += num_chars
        ready = 0
        while ready < len(self._waiting) and self._waiting[ready][0] <= self._shown:
            ready += 1
        released = [score for _, score in self._waiting[:ready]]
        del self._waiting[:ready]
        return released

    def flush(self) -> list[Score]:
        """The output has ended: all that are left."""
        left = [score for _, score in self._waiting] + self._textless
        self._waiting.clear()
        self._textless.clear()
        return left


def prompt_scores(
    token_ids: Sequence[int], offsets: Sequence[int], logprobs: Sequence[TokenLogprob]
) -> Iterator[Score]:
    """Scores of a prompt; ``logprobs`` are those of all its tokens but the first."""
    for token_id, offset, logprob in zip(token_ids, offsets, (None, *logprobs), strict=True):
        yield Score(token_id, offset, logprob)
