"""Stand-ins for torch's ``varlen_attn`` on the CPU, with the signatures of its versions and the limits of its kernels.

The numbers are torch's own ``scaled_dot_product_attention``, sequence by sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

POSITIONAL = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k")
OF_2_11 = ("return_aux", "scale", "window_size")
OF_2_12 = (*OF_2_11, "enable_gqa", "seqused_k", "block_table", "num_splits")  # and of 2.13

Behaviour = Callable[..., Tensor]


class FakeVarlen:
    """Has the keywords of a version in its signature, and refuses others when called."""

    def __init__(self, keywords: tuple[str, ...], behaviour: Behaviour) -> None:
        self._keywords = keywords
        self._behaviour = behaviour
        self.__signature__ = Signature(
            [
                *(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in POSITIONAL),
                *(Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in keywords),
            ]
        )

    def __call__(self, *given: Any, **named: Any) -> Tensor:
        assert len(given) == len(POSITIONAL)
        assert set(named) <= set(self._keywords)
        return self._behaviour(**dict(zip(POSITIONAL, given, strict=True)), **named)


def flash_3(**given: Any) -> Tensor:
    """Pages of any size, and no lengths of keys beside them."""
    if given["cu_seq_k"] is not None:
        raise RuntimeError("If cu_seqlens_k is passed in, then page table is not supported")
    return attend(**given)


def flash_2(**given: Any) -> Tensor:
    """Large pages alone, and lengths of keys wanted."""
    if given["key"].shape[1] % 256:
        raise RuntimeError("Paged KV cache block size must be divisible by 256\nand more that nobody reads")
    if given["cu_seq_k"] is None:
        raise RuntimeError("cu_seqlens_k must have shape (batch_size + 1)")
    assert given["cu_seq_k"].diff().tolist() == given["seqused_k"].tolist()
    return attend(**given)


def refuse(**_: Any) -> Tensor:
    raise RuntimeError("block_table is only supported by FlashAttention 3")


def nonsense(**given: Any) -> Tensor:
    return torch.zeros_like(given["query"])


def attend(**given: Any) -> Tensor:
    offsets, lengths, tables = given["cu_seq_q"], given["seqused_k"], given["block_table"]
    left, right = given["window_size"]
    assert {offsets.dtype, lengths.dtype, tables.dtype} == {torch.int32}
    assert right == 0
    assert given["max_q"] >= offsets.diff().max()
    assert given["max_k"] >= lengths.max()
    outputs = []
    for row, length in enumerate(lengths.tolist()):
        begin, end = offsets[row : row + 2].tolist()
        keys, values = (given[name][tables[row].long()].flatten(0, 1)[:length] for name in ("key", "value"))
        back = torch.arange(length - (end - begin), length)[:, None] - torch.arange(length)
        seen = (back >= 0) & (back <= left) if left >= 0 else back >= 0
        heads_first = (part.transpose(0, 1)[None] for part in (given["query"][begin:end], keys, values))
        attended = scaled_dot_product_attention(
            *heads_first, attn_mask=seen, scale=given["scale"], enable_gqa=given["enable_gqa"]
        )
        outputs.append(attended[0].transpose(0, 1))
    return torch.cat(outputs)


VARLEN_2_11 = FakeVarlen(OF_2_11, refuse)
FLASH_3 = FakeVarlen(OF_2_12, flash_3)
FLASH_2 = FakeVarlen(OF_2_12, flash_2)
WITHOUT_PAGES = FakeVarlen(OF_2_12, refuse)
NONSENSE = FakeVarlen(OF_2_12, nonsense)
