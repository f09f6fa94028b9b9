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
from workers.fast import build
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


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None on the PATH, and none installed for Python."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(build, "PACKAGED", "no_such_package")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_worker_computes_in_torch_alone_and_says_so(tmp_path: Path) -> None:
    """A slim image has none; a start that fails for that would be worse than a slower one."""
    folder = save_tiny_model(tmp_path, LLAMA)
    lines, tokens = said(folder)
    _, expected = said(folder, forward="generic")
    assert tokens == expected
    (line,) = [line for line in lines if line.startswith("Computing")]
    assert line.startswith("Computing with torch alone, without kernels of our own: there is no C++ compiler")
    for asked in ({"forward": "fused"}, {"quantize": "int8", "dtype": "auto"}):
        with pytest.raises(LoadError, match=r"cannot be had: there is no C\+\+ compiler"):
            said(folder, **asked)


@pytest.mark.usefixtures("no_compiler")
def test_torch_alone_serves_neither_other_models_nor_promises_of_bits(tmp_path: Path) -> None:
    """Its kernels choose the order of sums by the shape of a batch."""
    lines, _ = said(save_tiny_model(tmp_path / "llama", LLAMA), deterministic=True)
    assert any(line.startswith("Computing with transformers' own forward") for line in lines)
    lines, _ = said(save_tiny_model(tmp_path / "gpt2", CONFIGS["gpt2 with learned positions"]))
    assert any("own forward: GPT2LMHeadModel is not of the common family" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"deterministic": True}, "order of sums depends on the batch"), ({"quantize": "int8"}, "compiled kernels alone")],
)
def test_torch_alone_says_what_it_cannot_do(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Both at once is a contradiction that only the user can resolve."""
    folder = save_tiny_model(tmp_path, LLAMA)
    with pytest.raises(LoadError, match=reason):
        said(folder, forward="packed", dtype="auto", **changes)


def test_nor_does_transformers_own_forward_multiply_eight_bits(tmp_path: Path) -> None:
    """The reason is about eight bits, not about who asked for the forward."""
    folder = save_tiny_model(tmp_path, LLAMA)
    with pytest.raises(LoadError, match="--quantize cannot be had: weights of eight bits"):
        said(folder, forward="generic", dtype="auto", quantize="int8")


def test_torch_alone_can_be_asked_for(tmp_path: Path) -> None:
    """Where a processor has something for it that our kernels have not, it may be the faster one."""
    folder = save_tiny_model(tmp_path, LLAMA)
    lines, tokens = said(folder, forward="packed")
    assert "Computing with torch alone, without kernels of our own: --forward packed asks for it" in lines
    assert tokens == said(folder)[1]


def test_what_was_asked_for_by_name_is_not_replaced_quietly(tmp_path: Path) -> None:
    """GPT-2 is not of the family."""
    folder = save_tiny_model(tmp_path, CONFIGS["gpt2 with learned positions"])
    for asked in ("fused", "packed"):
        with pytest.raises(LoadError, match=f"--forward {asked} cannot be had: GPT2LMHeadModel is not of the common"):
            said(folder, forward=asked)


def test_eight_bits_are_multiplied_with_bfloat16(tmp_path: Path) -> None:
    """Asking for float32 beside them is a contradiction."""
    with pytest.raises(LoadError, match="cannot be combined with --dtype float32"):
        choose_numbers(Options(model=None, quantize="int8"), torch.device("cpu"))
    folder = save_tiny_model(tmp_path, LLAMA)
    engine = load_engine(Options(model=str(folder), block_size=16, dtype="auto", quantize="int8"), lambda _: None)
    assert engine.card.dtype == "bfloat16"
    assert [len(tokens) for tokens in generate(engine, *REQUESTS)] == [8, 8, 8]
