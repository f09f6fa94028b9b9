"""What keeps a worker from starting, as far as a person has to know."""

from __future__ import annotations


class LoadError(Exception):
    """The worker cannot start with these settings. The text is one sentence: no such model, not enough memory ..."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text: libraries answer with essays, a person wants a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
