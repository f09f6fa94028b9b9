"""Stop strings in streamed text.

The rule does not depend on how the text is cut: output ends before the leftmost place where a stop string occurs (of
several there, the shortest counts, as it is complete first), and everything before it is given out. So text is withheld
exactly while it could still turn out to be that place: when a suffix of it begins a stop string that starts further
left than any complete match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto


class StopText(Enum):
    """Whether the stop string itself is given out."""

    LEFT_OUT = auto()
    INCLUDED = auto()


class StopMatcher:
    """Feed text, get back what may be shown. After ``found`` is set nothing more comes out."""

    def __init__(self, stops: Sequence[str], stop_text: StopText = StopText.LEFT_OUT) -> None:
        self._stops = tuple(stops)
        self._stop_text = stop_text
        # The first alternative that fits at a place counts there.
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._stops, key=len))))
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops), default=0)
        self._withheld = ""
        self.found: str | None = None

    @property
    def is_active(self) -> bool:
        """Whether anything is looked for."""
        return bool(self._stops)

    def feed(self, text: str) -> str:
        """Take in more text; return what is now known to lie before any stop string."""
        if not self._stops:
            return text
        if self.found is not None or not text:
            return ""
        text = self._withheld + text
        match = self._pattern.search(text)
        end = len(text) if match is None else match.start()
        possible = self._possible_start(text, end)
        if possible is None and match is not None:
            return self._stop_at(match)
        end = end if possible is None else possible
        self._withheld = text[end:]
        return text[:end]

    def flush(self) -> str:
        """No more text comes: return what was withheld, up to a stop string in it."""
        text, self._withheld = self._withheld, ""
        # A complete match can lie in withheld text: it waited for a longer one further left.
        match = self._pattern.search(text) if self._stops and text else None
        return text if match is None else self._stop_at(match)

    def _stop_at(self, match: re.Match[str]) -> str:
        self.found, self._withheld = match[0], ""
        return match.string[: match.end() if self._stop_text is StopText.INCLUDED else match.start()]

    def _possible_start(self, text: str, before: int) -> int | None:
        """The leftmost place before ``before`` from which the rest of ``text`` is the beginning of a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), before):
            if text[start] in self._first_chars:
                tail = text[start:]
                if any(stop.startswith(tail) for stop in self._stops):
                    return start
        return None
