"""The KV pool: the keys and values of every sequence, in blocks that the scheduler hands out.

A block holds ``block_size`` tokens of one sequence, in every layer. Within a layer the pool is a matrix whose row
``block * kv_heads + head`` holds the keys (or values) of one head for a whole block:

    keys[layer]   [(num_blocks + 1) * kv_heads, block_size * key_dim]

So gathering a sequence's rows, head by head, gives ``[kv_heads, tokens, key_dim]`` without a transposition: one
``index_select`` of long contiguous rows, then matrix products on contiguous operands (on a CPU they are a third faster
than on operands strided by token). A token is written through a view of the same memory, one row per head and token.

An attention that reads pages in place wants each block token by token instead, all heads of a token side by side
(``pages``). That is another way to look at the same memory of a block: a pool is used in one of the two ways for as
long as it lives, and what moves whole blocks need not know in which.

The block after the last, ``null_block``, is nobody's and always zero: block tables are padded with it. Padding is
masked, but a mask cannot stop a NaN (``0 * NaN`` is NaN), so no padding may ever point at a block that a broken
sequence wrote; for the same reason ``scrub`` takes what is not finite out of blocks that get a new owner, where that
may be needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from workers import host_memory
from workers.device import send
from workers.errors import LoadError
from workers.host import free_memory

CPU_FRACTION = 0.25
"""Of the memory available: on a CPU the gateway, Redis, other workers and the user's programs want theirs too."""

CUDA_FRACTION = 0.92
"""Of the memory that weights, activations and graphs leave (``workers/cuda/memory.py``); the rest is for fragments."""


SPARE_BLOCKS = 2
"""Of every pool, beyond those that the scheduler hands out: the null block and the scratch block."""


class LayerKind(NamedTuple):
    """Layers of one kind can share a step's index tensors and masks."""

    kv_heads: int
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What one attention layer keeps per token, and how far back it looks (``window`` tokens; None: to the start)."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    softcap: float | None = None

    @property
    def kind(self) -> LayerKind:
        return LayerKind(self.kv_heads, self.window)

    @property
    def elements_per_token(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim)


class HostTransfer(Protocol):
    """How copies of blocks get to host memory and back."""

    def to_host(self, rows: Tensor) -> Tensor:
        """``rows``, which are nobody else's, in host memory; there may be more to come before they are there."""
        ...

    def to_device(self, rows: Tensor) -> Tensor:
        """What ``to_host`` gave, or a part of it, back where the pool is; not to be used before ``wait``."""
        ...

    def wait(self) -> None:
        """Let the pool's own work from here on come after the transfers until here."""
        ...


class PlainTransfer:
    """Where the pool lies in host memory."""

    def to_host(self, rows: Tensor) -> Tensor:
        return rows

    def to_device(self, rows: Tensor) -> Tensor:
        return rows

    def wait(self) -> None:
        return


class KVPool:
    """Keys and values of ``num_blocks`` blocks for every layer, of the null block, and of the scratch block.

    What nobody reads may be written to the ``scratch_block``: padding that computes like everybody else.
    """

    def __init__(
        self,
        *,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        transfer: HostTransfer | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._device = device
        self._transfer = PlainTransfer() if transfer is None else transfer
        self._all_blocks = num_blocks + SPARE_BLOCKS
        rows = self._all_blocks
        self._keys = [
            _zeros((rows * layer.kv_heads, block_size * layer.key_dim), dtype, device) for layer in self.layers
        ]
        self._values = [
            _zeros((rows * layer.kv_heads, block_size * layer.value_dim), dtype, device) for layer in self.layers
        ]

    @property
    def null_block(self) -> int:
        return self.num_blocks

    @property
    def matrices(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, for who keeps an order of its own within the blocks."""
        return list(zip(self._keys, self._values, strict=True))

    @property
    def scratch_block(self) -> int:
        return self.num_blocks + 1

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store ``keys`` [kv_heads, tokens, key_dim] and ``values`` at ``rows`` [kv_heads * tokens] of head-tokens."""
        shape = self.layers[layer]
        self._keys[layer].view(-1, shape.key_dim).index_copy_(0, rows, keys.reshape(-1, shape.key_dim))
        self._values[layer].view(-1, shape.value_dim).index_copy_(0, rows, values.reshape(-1, shape.value_dim))

    def gather(self, layer: int, rows: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        """Keys [heads, tokens, key_dim] and values of the pool's ``rows``, which come head by head."""
        shape = self.layers[layer]
        keys = self._keys[layer].index_select(0, rows).view(heads, -1, shape.key_dim)
        values = self._values[layer].index_select(0, rows).view(heads, -1, shape.value_dim)
        return keys, values

    def write_tokens(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store ``keys`` [tokens, kv_heads, key_dim] and ``values`` at ``places`` (block * block_size + offset)."""
        key_pages, value_pages = self.pages(layer)
        key_pages.flatten(0, 1).index_copy_(0, places, keys)
        value_pages.flatten(0, 1).index_copy_(0, places, values)

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys [blocks, block_size, kv_heads, key_dim] and values of all blocks, in place."""
        shape = self.layers[layer]
        common = (self._all_blocks, self.block_size, shape.kv_heads)
        return self._keys[layer].view(*common, shape.key_dim), self._values[layer].view(*common, shape.value_dim)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, each from source to target, in every layer."""
        if not pairs:
            return
        sources, targets = (self._index(blocks) for blocks in zip(*pairs, strict=True))
        for matrix, layer in self._matrices():
            blocks = matrix.view(self._all_blocks, layer.kv_heads, -1)
            blocks[targets] = blocks[sources]

    def take_out(self, blocks: Sequence[int]) -> list[Tensor]:
        """Copies of whole blocks in host memory, one tensor for each matrix."""
        index = self._index(blocks)
        return [
            self._transfer.to_host(matrix.view(self._all_blocks, layer.kv_heads, -1).index_select(0, index))
            for matrix, layer in self._matrices()
        ]

    def put_back(self, blocks: Sequence[int], copies: Sequence[Tensor], *, first: int) -> None:
        """The inverse of ``take_out``, from the copies' block ``first`` on, into other blocks."""
        index = self._index(blocks)
        back = [self._transfer.to_device(copy[first : first + len(blocks)]) for copy in copies]
        self._transfer.wait()
        for (matrix, layer), rows in zip(self._matrices(), back, strict=True):
            matrix.view(self._all_blocks, layer.kv_heads, -1).index_copy_(0, index, rows)

    def scrub(self, blocks: Sequence[int]) -> None:
        """Put zeros where ``blocks`` hold NaN or infinity."""
        if not blocks:
            return
        index = self._index(blocks)
        for matrix, layer in self._matrices():
            rows = matrix.view(self._all_blocks, layer.kv_heads, -1)
            rows[index] = torch.nan_to_num(rows[index], nan=0.0, posinf=0.0, neginf=0.0)

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return send(torch.tensor(blocks, dtype=torch.int64), self._device)

    def _matrices(self) -> list[tuple[Tensor, LayerShape]]:
        return [*zip(self._keys, self.layers, strict=True), *zip(self._values, self.layers, strict=True)]


def _zeros(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return host_memory.zeros(shape, dtype)


# --- how many blocks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """Blocks of the pool, and the context length that they allow."""

    num_blocks: int
    context_length: int


def block_bytes(layers: Sequence[LayerShape], block_size: int, dtype: torch.dtype) -> int:
    return sum(layer.elements_per_token for layer in layers) * block_size * dtype.itemsize


def size_pool(
    *,
    kv_blocks: int | None,
    available_bytes: int,
    share: float,
    bytes_per_block: int,
    max_slots: int,
    context_length: int,
    block_size: int,
) -> PoolSize:
    """The pool's size: ``kv_blocks`` if asked for, else what ``share`` of the memory holds, up to all slots full.

    A context that the pool cannot hold is lowered to what it can. Raises LoadError when the memory is not there.
    """
    if kv_blocks is None:
        blocks_per_context = -(-context_length // block_size)
        kv_blocks = min(int(available_bytes * share) // bytes_per_block, max_slots * blocks_per_context)
    needed = (max(kv_blocks, 1) + SPARE_BLOCKS) * bytes_per_block
    if kv_blocks < 1 or needed > available_bytes:
        raise LoadError(
            f"There is not enough memory for the KV pool: it needs {needed >> 20} MiB, and {available_bytes >> 20} MiB"
            " are free."
        )
    return PoolSize(num_blocks=kv_blocks, context_length=min(context_length, kv_blocks * block_size))


def size_host_pool(*, swap_mib: int | None, available_bytes: int, bytes_per_block: int) -> int:
    """Blocks' worth of host memory for sequences that are swapped out. Raises LoadError when it is not there."""
    wanted = (swap_mib or 0) << 20
    if wanted > available_bytes:
        raise LoadError(
            f"There is not enough memory to swap to: {wanted >> 20} MiB are asked for, and {available_bytes >> 20} MiB"
            " are free."
        )
    return wanted // bytes_per_block


def pool_share(device: torch.device) -> float:
    return CUDA_FRACTION if device.type == "cuda" else CPU_FRACTION


def available_memory(device: torch.device) -> int:
    """Bytes that can be had on ``device``."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_memory()
