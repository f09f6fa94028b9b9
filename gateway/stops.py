"""Stop strings in streamed text.

The rule does not depend on how the text is cut: output ends before the leftmost place where a stop string occurs, and
everything before it is given out. So text is withheld exactly while it could still turn out to be that place: when a
suffix of it begins a stop string that starts further left than any complete match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class StopMatcher:
    """Feed text, get back what may be shown. After ``stopped`` nothing more comes out."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._pattern = re.compile("|".join(map(re.escape, self._stops)))
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops), default=0)
        self._withheld = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take in more text; return what is now known to lie before any stop string."""
        if not self._stops:
            return text
        if self.stopped or not text:
            return ""
        text = self._withheld + text
        match = self._pattern.search(text)
        end = len(text) if match is None else match.start()
        possible = self._possible_start(text, end)
        if possible is not None:
            end = possible
        elif match is not None:
            self.stopped = True
        self._withheld = "" if self.stopped else text[end:]
        return text[:end]

    def flush(self) -> str:
        """No more text comes: return what was withheld, up to a stop string in it."""
        text, self._withheld = self._withheld, ""
        # A complete match can lie in withheld text: it waited for a longer one further left.
        match = self._pattern.search(text) if self._stops and text else None
        if match is None:
            return text
        self.stopped = True
        return text[: match.start()]

    def _possible_start(self, text: str, before: int) -> int | None:
        """The leftmost place before ``before`` from which the rest of ``text`` is the beginning of a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), before):
            if text[start] in self._first_chars:
                tail = text[start:]
                if any(stop.startswith(tail) for stop in self._stops):
                    return start
        return None
