"""How a prompt is cut when nothing but the chunk cap bounds it."""

from __future__ import annotations


def chunk_lengths(tokens: int, chunk: int) -> tuple[int, ...]:
    """The lengths of the chunks of ``tokens`` prompt tokens: all ``chunk`` long save the last, which has the rest.

    The length of the result is the fewest iterations after which the first token can be out. Raises ``ValueError`` for
    numbers below one.
    """
    if tokens < 1 or chunk < 1:
        raise ValueError("tokens and chunk must be at least 1")
    return tuple(min(chunk, tokens - start) for start in range(0, tokens, chunk))
