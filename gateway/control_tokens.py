"""Who may write control tokens: the chat template, never the people whose words it is filled with.

Control tokens (``<|im_start|>`` and the like) are text to a template and ids to a model. In what users wrote, each such
literal is wrapped in two marker characters before the template runs; afterwards a marked literal is encoded as ordinary
text, and all other text as usual, so the template's own literals become control ids. Markers wrap literals rather than
whole messages: templates that trim, split or join content still work, and text without such literals takes the common
path, untouched and equal to what transformers computes.

A literal can also be put together across a border: one message ends with ``<|im_`` and the next text begins with
``end|>``. So the end of a message that begins a control literal is marked too, with a lone marker, which cuts the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_NOTHING = "(?!)"
"""A pattern that matches nowhere."""
_PRIVATE_USE = range(0xF0000, 0xFFFFE)
"""Characters that no text needs. The two markers are the first two of these that the conversation does not contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of a rendered conversation. ``literal``: a control literal that a user wrote, to encode as text."""

    text: str
    literal: bool


class ControlTokens:
    """The control literals of one tokenizer."""

    def __init__(self, literals: Iterable[str]) -> None:
        # Longest first, so that a literal is found whole where one contains another.
        self._literals = sorted((literal for literal in set(literals) if literal), key=lambda text: (-len(text), text))
        self._alternatives = "|".join(map(re.escape, self._literals)) or _NOTHING
        self._pattern = re.compile(self._alternatives)
        self._beginnings = frozenset(
            literal[:length] for literal in self._literals for length in range(1, len(literal))
        )
        self._longest = max(map(len, self._literals), default=0)

    def occur_in(self, texts: Iterable[str]) -> bool:
        """Whether any of the texts contains a control literal, or ends in the beginning of one."""
        return any(self._pattern.search(text) is not None or self._open_end(text) for text in texts)

    def neutralise(self, text: str) -> str:
        """The text with a plain word for every literal: what the conversation would be without them."""
        plain = self._pattern.sub("x", text)
        return f"{plain}x" if self._open_end(plain) else plain

    def mark(self, text: str, markers: tuple[str, str]) -> str:
        """The text with its literals wrapped in markers."""
        opening, closing = markers
        marked = self._pattern.sub(f"{opening}\\g<0>{closing}", text)
        # The closing marker: an opening one would claim a literal that the template writes next.
        return marked + closing if self._open_end(text) else marked

    def pieces(self, rendered: str, markers: tuple[str, str]) -> Iterator[Piece]:
        """Cut rendered text at the markers. A literal is the user's if either of its markers is still there."""
        opening, closing = map(re.escape, markers)
        cut = re.compile(
            f"{opening}(?P<left>{self._alternatives}){closing}?|(?P<right>{self._alternatives}){closing}"
            f"|{opening}|{closing}"
        )
        start = 0
        for match in cut.finditer(rendered):
            if match.start() > start:
                yield Piece(text=rendered[start : match.start()], literal=False)
            if literal := match["left"] or match["right"]:
                yield Piece(text=literal, literal=True)
            start = match.end()
        if start < len(rendered):
            yield Piece(text=rendered[start:], literal=False)

    def _open_end(self, text: str) -> bool:
        return any(text[-length:] in self._beginnings for length in range(1, min(self._longest, len(text) + 1)))


def unused_markers(texts: Iterable[str]) -> tuple[str, str] | None:
    """Two characters that occur in none of the texts, None when the texts use up all there are."""
    used = set("".join(texts))
    free = (char for char in map(chr, _PRIVATE_USE) if char not in used)
    opening, closing = next(free, None), next(free, None)
    return None if opening is None or closing is None else (opening, closing)


def control_literals(added_tokens: Iterable[Mapping[str, Any]], template_literals: str) -> list[str]:
    """The literals to guard: every special token, and every other added token that the chat template itself writes.

    ``added_tokens`` as in ``tokenizer.json``. Whitespace is never guarded: some vocabularies add runs of spaces.
    """
    return [
        token["content"]
        for token in added_tokens
        if token["content"].strip() and (token["special"] or token["content"] in template_literals)
    ]
