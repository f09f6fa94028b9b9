"""How prompts are cut."""

from __future__ import annotations

import pytest

from admission.chunks import chunk_lengths


@pytest.mark.parametrize(
    ("tokens", "lengths"),
    [(128, (128,)), (512, (512,)), (1500, (512, 512, 476)), (3000, (512, 512, 512, 512, 512, 440)), (1, (1,))],
)
def test_a_prompt_is_cut_into_full_chunks_and_a_rest(tokens: int, lengths: tuple[int, ...]) -> None:
    """Neither an empty chunk at the end, nor a token lost or computed twice."""
    assert chunk_lengths(tokens, 512) == lengths


@pytest.mark.parametrize(("tokens", "chunk"), [(0, 512), (512, 0)])
def test_lengths_below_one_are_refused(tokens: int, chunk: int) -> None:
    """An empty prompt has no last chunk that could emit."""
    with pytest.raises(ValueError, match="at least 1"):
        chunk_lengths(tokens, chunk)
