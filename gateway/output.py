"""The output of one sequence: tokens in, text out, and log-probabilities with it where they are asked for."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

from gateway.detokenize import Detokenizer
from gateway.dispatch import Tokens
from gateway.stops import StopMatcher
from gateway.token_scores import Score, ScoreQueue


class Output(Protocol):
    """What came of a sequence so far.

    ``finish`` is set with the last text: ``stop`` or ``length``. ``stop_reason`` is then the stop string or the stop
    id that ended it, None where an eos or the bound did. ``num_tokens`` counts the tokens taken in, the one that
    completed a stop string included, those after it not.
    """

    num_tokens: int
    finish: str | None
    stop_reason: str | int | None

    @property
    def is_plain(self) -> bool:
        """Whether tokens can become text by ``take_tokens``: nothing in them can end the output, or has scores."""
        ...

    def take_tokens(self, token_ids: Sequence[int]) -> str:
        """The text that can be shown now, of a plain output that goes on."""
        ...

    def take(self, item: Tokens) -> str:
        """The text that can be shown now."""
        ...

    def take_scores(self) -> Sequence[Score]:
        """The scores that come with the text that was shown since the last call."""
        ...


class OutputText:
    """Puts text together from tokens, up to the first stop string in what comes after ``min_tokens``.

    ``scores``: where to keep the tokens' log-probabilities until their text comes out; None: they have none.
    ``eos_ids``: tokens that end the output as an eos does although the worker was told to count them.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopMatcher,
        *,
        min_tokens: int = 0,
        scores: ScoreQueue | None = None,
        eos_ids: Container[int] = (),
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._scores = scores
        self._eos_ids = eos_ids
        self._released: list[Score] = []
        self.num_tokens = 0
        self.finish: str | None = None
        self.stop_reason: str | int | None = None

    @property
    def is_plain(self) -> bool:
        return self._scores is None and not self._stops.is_active

    def take_tokens(self, token_ids: Sequence[int]) -> str:
        self.num_tokens += len(token_ids)
        if len(token_ids) == 1:
            return self._detokenizer.feed(token_ids[0])
        return "".join([self._detokenizer.feed(token_id) for token_id in token_ids])

    def take(self, item: Tokens) -> str:
        text = self._take_item(item)
        if self._scores is not None:
            self._released += self._scores.release(len(text))
            if self.finish is not None:
                self._released += self._scores.flush()
        return text

    def take_scores(self) -> Sequence[Score]:
        released, self._released = self._released, []
        return released

    def _take_item(self, item: Tokens) -> str:
        text = ""
        for index, token_id in enumerate(item.token_ids):
            self.num_tokens += 1
            piece = self._detokenizer.feed(token_id)
            if self._scores is not None:
                self._scores.add(token_id, item.logprobs[index], len(piece))
            text += piece if self.num_tokens <= self._min_tokens else self._stops.feed(piece)
            if self._stops.found is not None:
                self._end("stop", self._stops.found)
                return text
        if item.finish is not None:
            text += self._stops.feed(self._detokenizer.flush()) + self._stops.flush()
            if self._stops.found is not None:
                self._end("stop", self._stops.found)
            elif item.token_ids and item.token_ids[-1] in self._eos_ids:
                self._end("stop", None)
            else:
                self._end(item.finish, item.stop_id)
        return text

    def _end(self, finish: str, stop_reason: str | int | None) -> None:
        self.finish = finish
        self.stop_reason = stop_reason


class NoOutput:
    """Of a sequence that was run for its prompt's sake: its first token is the end, and is not shown."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.finish: str | None = None
        self.stop_reason: str | int | None = None

    @property
    def is_plain(self) -> bool:
        return False

    def take_tokens(self, token_ids: Sequence[int]) -> str:
        raise NotImplementedError("nothing is shown of it, and its first token is its last")

    def take(self, item: Tokens) -> str:
        if item.error is None:
            self.finish = "length"
        return ""

    def take_scores(self) -> Sequence[Score]:
        return ()
