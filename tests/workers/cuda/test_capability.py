"""Whether pages are read in place: by what the installed torch says of itself, and by what a trial shows."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from tests.workers.cuda.fake_varlen import FLASH_2, FLASH_3, NONSENSE, POSITIONAL, VARLEN_2_11, WITHOUT_PAGES
from workers.cuda import capability
from workers.cuda.capability import Finding, activate_kernels, find_kernel, missing_in, torchs_varlen_attn
from workers.cuda.varlen import KeyOffsets
from workers.kv_cache import LayerShape

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
FULL = LayerShape(kv_heads=2, key_dim=16, value_dim=16, window=None)
WINDOWED = LayerShape(kv_heads=1, key_dim=8, value_dim=8, window=4)


def find(function: Any, *layers: LayerShape, dtype: torch.dtype = torch.bfloat16, block_size: int = 16) -> Finding:
    return find_kernel(layers or (FULL, WINDOWED), dtype=dtype, device=CPU, block_size=block_size, function=function)


def test_torch_2_11_has_no_pages() -> None:
    """Its varlen_attn is for whole sequences."""
    found = find(VARLEN_2_11)
    assert found == Finding(kernel=None, why="this torch's varlen_attn has no block_table, enable_gqa, seqused_k")


@pytest.mark.parametrize("block_size", [16, 4, 24])
def test_flash_attention_3_takes_the_page_size_that_was_asked_for(block_size: int) -> None:
    """It has pages of any size; its lengths of keys are omitted."""
    kernel = find(FLASH_3, block_size=block_size).kernel
    assert kernel is not None
    assert (kernel.page_size, kernel.key_offsets) == (block_size, KeyOffsets.OMITTED)


@pytest.mark.parametrize(("asked", "page_size"), [(16, 256), (512, 512)])
def test_flash_attention_2_decides_the_page_size(asked: int, page_size: int) -> None:
    """Then that is the worker's block size, and announced as such."""
    kernel = find(FLASH_2, block_size=asked).kernel
    assert kernel is not None
    assert (kernel.page_size, kernel.key_offsets) == (page_size, KeyOffsets.GIVEN)


def test_a_kernel_that_refuses_its_trial_is_not_used() -> None:
    """The signature promises more than the GPU's kernels hold; the log says what they said, in a line."""
    assert find(WITHOUT_PAGES).why == "varlen_attn failed its trial: block_table is only supported by FlashAttention 3"


def test_a_kernel_with_wrong_numbers_is_not_used() -> None:
    """That it runs is not enough."""
    found = find(NONSENSE)
    assert found.kernel is None
    assert "its numbers are off by" in found.why


@pytest.mark.parametrize(
    ("layer", "dtype", "why"),
    [
        (FULL, torch.float32, "half precision, the model in float32"),
        (LayerShape(kv_heads=1, key_dim=16, value_dim=16, window=None, softcap=5.0), torch.bfloat16, "no soft caps"),
        (LayerShape(kv_heads=1, key_dim=16, value_dim=8, window=None), torch.bfloat16, "keys as wide as values"),
        (LayerShape(kv_heads=1, key_dim=12, value_dim=12, window=None), torch.bfloat16, "no heads of 12"),
        (LayerShape(kv_heads=1, key_dim=512, value_dim=512, window=None), torch.bfloat16, "no heads of 512"),
    ],
)
def test_what_no_version_can_do_is_not_tried(layer: LayerShape, dtype: torch.dtype, why: str) -> None:
    """Such models gather."""
    found = find(FLASH_3, FULL, layer, dtype=dtype)
    assert found.kernel is None
    assert why in found.why


def test_a_torch_without_the_function_gathers() -> None:
    """It is young, and may move."""
    assert find(None).why == "this torch has no varlen_attn"


def test_the_installed_torch_has_the_signature_that_the_fakes_have() -> None:
    """Or these tests would be about something else. (Of torch 2.12 and later.)"""
    function = torchs_varlen_attn()
    assert function is not None
    assert missing_in(function) is None
    parameters = inspect.signature(function).parameters
    assert tuple(parameters)[: len(POSITIONAL)] == POSITIONAL
    assert set(parameters) == set(inspect.signature(FLASH_3).parameters)


def test_the_installed_torch_refuses_on_a_cpu_and_that_is_no_accident() -> None:
    """Whatever its kernels raise, the trial ends in a reason and not in a traceback."""
    found = find(torchs_varlen_attn())
    assert found.kernel is None
    assert found.why.startswith("varlen_attn failed its trial: ")


@pytest.mark.parametrize(("major", "name"), [(9, "FA3"), (10, "FA4")])
def test_the_best_kernels_that_are_installed_are_activated(
    monkeypatch: pytest.MonkeyPatch, major: int, name: str
) -> None:
    """FlashAttention 3 and 4 are packages of their own, each for one kind of GPU."""
    activated: list[str] = []
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", activated.append)
    monkeypatch.setattr(capability, "find_spec", lambda _: object())
    assert activate_kernels(major) == name
    assert activated == [name]


def test_without_their_package_torchs_own_kernels_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the package is there and does not work."""
    assert activate_kernels(8) == "torch's own kernels"
    assert activate_kernels(9) == "torch's own kernels"

    def fail(_: str) -> None:
        raise RuntimeError("does not expose FA3 kernels")

    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", fail)
    monkeypatch.setattr(capability, "find_spec", lambda _: object())
    assert activate_kernels(9) == ("torch's own kernels, as FA3 cannot be activated (does not expose FA3 kernels)")
