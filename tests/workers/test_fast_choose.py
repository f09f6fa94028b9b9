"""Whose forward pass serves, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.engine_support import Options
from tests.workers.fast_support import FAMILY
from tests.workers.planner import GREEDY, Request, generate
from tests.workers.tiny_models import CONFIGS, save_tiny_model
from workers.errors import LoadError
from workers.fast import choose
from workers.fast.assemble import NotFast
from workers.fast.choose import choose_numbers
from workers.loading import load_engine

pytestmark = pytest.mark.torch

LLAMA = FAMILY["llama with tied embeddings"]
REQUESTS = [Request(prompt=tuple(range(2, 2 + length)), sampling=GREEDY, max_tokens=8) for length in (3, 20, 41)]


def said(folder: Path, **changes: Any) -> tuple[list[str], list[list[int]]]:
    """The lines of a start with these settings, and what it generates."""
    lines: list[str] = []
    engine = load_engine(Options(model=str(folder), block_size=16, **changes), lines.append)
    return lines, generate(engine, *REQUESTS)


def test_both_forwards_generate_the_same_and_the_log_says_which_computes(tmp_path: Path) -> None:
    """Nobody should have to guess why a worker is slower than the last one."""
    folder = save_tiny_model(tmp_path, LLAMA)
    fused, tokens = said(folder)
    generic, same = said(folder, forward="generic")
    assert tokens == same
    assert not any("transformers' own forward" in line for line in fused)
    assert any("transformers' own forward: --forward generic" in line for line in generic)


def test_beside_the_kernels_torch_computes_on_one_thread(tmp_path: Path) -> None:
    """Its teams wait for each other in every small operation, and for a core that a gateway keeps busy."""
    folder = save_tiny_model(tmp_path, LLAMA)
    said(folder, threads=2)
    assert torch.get_num_threads() == 1
    said(folder, threads=2, forward="generic")
    assert torch.get_num_threads() == 2


def test_where_kernels_cannot_be_built_transformers_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slim image has no compiler; a start that fails for that would be worse than a slower one."""

    def refuse(*_: object, **__: object) -> None:
        raise NotFast("there is no C++ compiler")

    folder = save_tiny_model(tmp_path, LLAMA)
    _, expected = said(folder)
    monkeypatch.setattr(choose, "fast_model", refuse)
    lines, tokens = said(folder)
    assert tokens == expected
    assert "Computing with transformers' own forward: there is no C++ compiler" in lines
    for asked in ({"forward": "fused"}, {"quantize": "int8", "dtype": "auto"}):
        with pytest.raises(LoadError, match=r"cannot be had: there is no C\+\+ compiler"):
            said(folder, **asked)


def test_what_was_asked_for_by_name_is_not_replaced_quietly(tmp_path: Path) -> None:
    """GPT-2 is not of the family."""
    folder = save_tiny_model(tmp_path, CONFIGS["gpt2 with learned positions"])
    with pytest.raises(LoadError, match=r"--forward fused cannot be had: GPT2LMHeadModel is not of the common family"):
        said(folder, forward="fused")


def test_eight_bits_are_multiplied_with_bfloat16(tmp_path: Path) -> None:
    """Asking for float32 beside them is a contradiction."""
    with pytest.raises(LoadError, match="cannot be combined with --dtype float32"):
        choose_numbers(Options(model=None, quantize="int8"), torch.device("cpu"))
    folder = save_tiny_model(tmp_path, LLAMA)
    engine = load_engine(Options(model=str(folder), block_size=16, dtype="auto", quantize="int8"), lambda _: None)
    assert engine.card.dtype == "bfloat16"
    assert [len(tokens) for tokens in generate(engine, *REQUESTS)] == [8, 8, 8]
