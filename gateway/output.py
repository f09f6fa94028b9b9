"""The output of one sequence: tokens in, text out."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.detokenize import Detokenizer
from gateway.dispatch import Tokens
from gateway.stops import StopMatcher


class OutputText:
    """Puts text together from tokens, up to the first stop string.

    ``finish`` is set with the last text: ``stop`` or ``length``. ``num_tokens`` counts the tokens taken in, the one
    that completed a stop string included, those after it not.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)
        self.num_tokens = 0
        self.finish: str | None = None

    def take(self, item: Tokens) -> str:
        """The text that can be shown now."""
        text = ""
        for token_id in item.token_ids:
            self.num_tokens += 1
            text += self._stops.feed(self._detokenizer.feed(token_id))
            if self._stops.stopped:
                self.finish = "stop"
                return text
        if item.finish is not None:
            text += self._stops.feed(self._detokenizer.flush()) + self._stops.flush()
            self.finish = "stop" if self._stops.stopped else item.finish
        return text
