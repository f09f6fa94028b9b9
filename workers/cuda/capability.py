"""Whether attention can read pages in place here: asked of the installed torch by its signature, of the GPU by a trial.

What ``varlen_attn`` can do has changed from version to version, and depends on the kernels behind it:

* torch 2.11 has no ``block_table``;
* torch 2.12 and 2.13 have one. With FlashAttention 3 (a package of its own, on GPUs of compute capability 9) pages may
  have any size; FlashAttention 4 pages on capability 10 alone; FlashAttention 2, which comes with torch, knew pages of
  multiples of 256 tokens where it paged at all;
* all of them compute in half precision, with keys as wide as values, and without soft caps.

Nothing of this is decided by version numbers. What the signature allows is tried, on a few made-up tokens of the
model's shapes, against attention as it is written; the first page size that gives the right numbers is taken.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from workers.attention import Arguments, attend_plainly
from workers.batch import mask_of
from workers.cuda.varlen import KeyOffsets, PagedKernel, Pages, Ragged, attend_to_pages
from workers.errors import first_line
from workers.kv_cache import LayerShape

NEEDED_PARAMETERS = frozenset({"scale", "window_size", "enable_gqa", "seqused_k", "block_table"})

HALF = (torch.bfloat16, torch.float16)

LARGEST_HEAD = 256

PAGE_SIZES = (16, 32, 64, 128, 256)
"""Tried in this order after the size that was asked for: small pages waste less."""

FLASH_ATTENTION = {9: ("FA3", "flash_attn_interface"), 10: ("FA4", "flash_attn.cute.interface")}
"""By the GPU's major compute capability: the kernels to activate where their package is installed."""

TOLERANCE = 2e-2
"""Of the trial's outputs, which are about 1: bfloat16 has 8 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The kernel to use, or None; and why, for the log."""

    kernel: PagedKernel | None
    why: str


def find_kernel(
    layers: Sequence[LayerShape],
    *,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    function: Callable[..., Any] | None,
) -> Finding:
    """How ``function`` (torch's ``varlen_attn``, or None where there is none) serves these layers, if it does."""
    if objection := _objection(layers, dtype) or missing_in(function):
        return Finding(kernel=None, why=objection)
    assert function is not None  # noqa: S101 -- else it would be missing
    failures = []
    for size in dict.fromkeys((block_size, *PAGE_SIZES)):
        for offsets in KeyOffsets:
            kernel = PagedKernel(function=function, page_size=size, key_offsets=offsets)
            failure = try_kernel(kernel, layers, dtype=dtype, device=device)
            if failure is None:
                return Finding(kernel=kernel, why=f"varlen_attn reads pages of {size} tokens in place")
            failures.append(failure)
    return Finding(kernel=None, why=f"varlen_attn failed its trial: {failures[-1]}")


def missing_in(function: Callable[..., Any] | None) -> str | None:
    """What its signature lacks; None if nothing."""
    if function is None:
        return "this torch has no varlen_attn"
    missing = sorted(NEEDED_PARAMETERS - set(inspect.signature(function).parameters))
    return f"this torch's varlen_attn has no {', '.join(missing)}" if missing else None


def torchs_varlen_attn() -> Callable[..., Any] | None:
    try:
        module: ModuleType = importlib.import_module("torch.nn.attention.varlen")
    except ImportError:
        return None
    return getattr(module, "varlen_attn", None)


def activate_kernels(major: int) -> str:
    """Let torch use the best FlashAttention that is installed for this compute capability; what came of it."""
    name, package = FLASH_ATTENTION.get(major, ("", ""))
    if not name or not _is_installed(package):
        return "torch's own kernels"
    try:
        torch.nn.attention.activate_flash_attention_impl(name)
    except (ImportError, RuntimeError, ValueError, AttributeError) as error:
        return f"torch's own kernels, as {name} cannot be activated ({first_line(error)})"
    return name


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # a parent package is missing
        return False


def _objection(layers: Sequence[LayerShape], dtype: torch.dtype) -> str | None:
    if dtype not in HALF:
        return f"varlen_attn computes in half precision, the model in {str(dtype).removeprefix('torch.')}"
    for layer in layers:
        if layer.softcap is not None:
            return "varlen_attn has no soft caps"
        if layer.key_dim != layer.value_dim:
            return "varlen_attn wants keys as wide as values"
        if layer.key_dim % 8 or layer.key_dim > LARGEST_HEAD:
            return f"varlen_attn has no heads of {layer.key_dim}"
    return None


# --- the trial --------------------------------------------------------------------------------------------------------

_GROUP = 2  # query heads to a key head


def try_kernel(
    kernel: PagedKernel, layers: Sequence[LayerShape], *, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Attend with each kind of layer to two sequences on scattered pages; what went wrong, or None."""
    for layer in dict.fromkeys(layers):
        trial = _Trial.of(layer, kernel.page_size, dtype)
        ragged, query, pages = trial.on(device)
        try:
            found = attend_to_pages(kernel, ragged, query, pages, trial.arguments)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            return first_line(error)
        difference = (found.float().cpu() - trial.expected()).abs().max().item()
        if not difference < TOLERANCE:  # NaN is not, either
            return f"its numbers are off by {difference:.2g}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A decode with a past of a page and a bit, and a chunk of 5 behind a past of 3, their pages in no order."""

    arguments: Arguments
    ragged: Ragged
    query: Tensor
    pages: Pages

    @classmethod
    def of(cls, layer: LayerShape, page_size: int, dtype: torch.dtype) -> _Trial:
        generator = torch.Generator().manual_seed(1)
        lengths = (page_size + 3, 8)
        shape = (4, page_size, layer.kv_heads, layer.key_dim)
        return cls(
            arguments=Arguments(layer=0, scale=layer.key_dim**-0.5, softcap=None, window=layer.window),
            ragged=Ragged(
                query_offsets=torch.tensor([0, 1, 6], dtype=torch.int32),
                lengths=torch.tensor(lengths, dtype=torch.int32),
                tables=torch.tensor([[2, 0], [3, 1]], dtype=torch.int32),
                places=torch.empty(0, dtype=torch.int64),
                longest_query=5,
                longest=max(lengths),
            ),
            query=torch.randn(6, layer.kv_heads * _GROUP, layer.key_dim, generator=generator).to(dtype),
            pages=Pages(*torch.randn(2, *shape, generator=generator).to(dtype)),
        )

    def on(self, device: torch.device) -> tuple[Ragged, Tensor, Pages]:
        ragged = Ragged(
            query_offsets=self.ragged.query_offsets.to(device),
            lengths=self.ragged.lengths.to(device),
            tables=self.ragged.tables.to(device),
            places=self.ragged.places.to(device),
            longest_query=self.ragged.longest_query,
            longest=self.ragged.longest,
        )
        return ragged, self.query.to(device), Pages(*(part.to(device) for part in self.pages))

    def expected(self) -> Tensor:
        """[tokens, heads, dim], in float32 on the host."""
        return attend_densely(self.ragged, self.query, self.pages, self.arguments)


def attend_densely(ragged: Ragged, query: Tensor, pages: Pages, arguments: Arguments) -> Tensor:
    """What ``attend_to_pages`` has to give, written down sequence by sequence, in float32."""
    parts = []
    offsets, lengths = ragged.query_offsets.tolist(), ragged.lengths.tolist()
    for sequence, length in enumerate(lengths):
        mine = query[offsets[sequence] : offsets[sequence + 1]].float()
        group = mine.shape[1] // pages.keys.shape[2]
        keys, values = (
            part[ragged.tables[sequence].long()].flatten(0, 1)[:length].float().repeat_interleave(group, dim=1)
            for part in pages
        )
        mask = mask_of(torch.arange(length - len(mine), length), length, arguments.window, torch.float32)
        mine, keys, values = (part.transpose(0, 1) for part in (mine, keys, values))
        parts.append(attend_plainly(mine, keys, values, mask, arguments).transpose(0, 1))
    return torch.cat(parts)
