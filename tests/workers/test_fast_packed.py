"""The forward in torch alone against transformers: the logits of every position, in every kind of batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch

from tests.workers.fast_support import CPU, FAMILY, Bench, square_distances
from tests.workers.tiny_models import CONFIGS, save_tiny_model
from workers.fast import packed as packed_module
from workers.fast.decoder import NotFast, Projection
from workers.fast.packed import PackedModel, packed_model
from workers.fast.products import Product, choose_products, packed, usual
from workers.model import load_model

pytestmark = pytest.mark.torch

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
WAYS = {"laid out ahead": packed, "as they lie": usual}


def make_packed(folder: Path, name: str, dtype: torch.dtype) -> PackedModel:
    return packed_model(load_model(save_tiny_model(folder, FAMILY[name]), CPU, dtype))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAMILY)
def test_logits_are_those_of_transformers(name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sequences advance by random steps in shared batches, through scattered blocks."""
    monkeypatch.setattr(packed_module, "choose_products", lambda _: WAYS[way])
    bench = Bench(tmp_path, make_packed(tmp_path, name, torch.float32))
    compared = 0
    for works in bench.advance(Random(3)):
        emitting, logits = bench.passes.emitted(works)
        for work, row in zip(emitting, logits, strict=True):
            torch.testing.assert_close(row, bench.expected(work), **CLOSE)
            compared += 1
    assert compared > 40


@pytest.mark.parametrize("name", FAMILY)
def test_in_bfloat16_logits_are_no_farther_from_the_exact_ones_than_transformers_are(name: str, tmp_path: Path) -> None:
    """The same bound as the fused forward's: a machine without a compiler answers no worse."""
    ours_off, theirs_off = square_distances(Bench(tmp_path, make_packed(tmp_path, name, torch.bfloat16)), tmp_path)
    print(f"{name}: mean square distance {ours_off:.2e}, transformers' {theirs_off:.2e}")
    assert ours_off < 1.1 * theirs_off


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_ways_to_multiply_are_one(dtype: torch.dtype) -> None:
    """Which of them serves is up to the machine; with biases and without, for any number of rows."""
    weight, bias = torch.randn(40, 66, dtype=dtype), torch.randn(40, dtype=dtype)
    for projection in (Projection(weight=weight, bias=bias), Projection(weight=weight, bias=None)):
        for rows in (0, 1, 7, 130):
            inputs = torch.randn(rows, 66, dtype=dtype)
            torch.testing.assert_close(packed(projection)(inputs), usual(projection)(inputs))


def _lacking(_: Projection) -> Product:
    raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")


def _refusing(_: Projection) -> Product:
    raise RuntimeError("mkldnn_linear: bf16 path needs the cpu support avx512")


def _wrong(_: Projection) -> Product:
    return torch.zeros_like


@pytest.mark.parametrize("broken", [_lacking, _refusing, _wrong])
def test_where_weights_cannot_be_laid_out_ahead_products_are_the_usual_ones(
    broken: Callable[[Projection], Product], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch on macOS has no oneDNN, and older processors have no bfloat16 for it."""
    assert choose_products(torch.float32) is (packed if torch.backends.mkldnn.is_available() else usual)
    monkeypatch.setattr("workers.fast.products.packed", broken)
    assert choose_products(torch.float32) is usual


def test_other_architectures_are_left_to_transformers(tmp_path: Path) -> None:
    """The model must be whole afterwards: it is served all the same."""
    model = load_model(save_tiny_model(tmp_path, CONFIGS["gpt-neox"]), CPU, torch.float32)
    with pytest.raises(NotFast, match="GPTNeoXForCausalLM is not of the common family"):
        packed_model(model)
