"""What keeps a worker from starting, as far as a person has to know."""

from __future__ import annotations


class LoadError(Exception):
    """The worker cannot start with these settings. The text is one sentence: no such model, not enough memory ..."""
