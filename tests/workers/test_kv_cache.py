"""The KV pool: what is written comes back, block by block, and its size is what memory allows."""

from __future__ import annotations

import pytest
import torch

from workers.errors import LoadError
from workers.kv_cache import SPARE_BLOCKS, KVPool, LayerShape, block_bytes, size_pool

pytestmark = pytest.mark.torch

LAYER = LayerShape(kv_heads=2, key_dim=3, value_dim=5, window=None)
KIB = 1024


def small_pool(dtype: torch.dtype = torch.float32) -> KVPool:
    return KVPool(layers=[LAYER, LAYER], num_blocks=4, block_size=2, dtype=dtype, device=torch.device("cpu"))


def fill(pool: KVPool, layer: int, block: int, value: float) -> None:
    """Put ``value`` into every key and value of a block."""
    rows = torch.tensor([(block * 2 + head) * 2 + offset for head in range(2) for offset in range(2)])
    pool.write(layer, rows, torch.full((2, 2, 3), value), torch.full((2, 2, 5), value))


def content(pool: KVPool, layer: int, block: int) -> list[float]:
    keys, values = pool.gather(layer, torch.tensor([block * 2, block * 2 + 1]), heads=2)
    assert (keys.shape, values.shape) == ((2, 2, 3), (2, 2, 5))
    return sorted(set(keys.flatten().tolist()) | set(values.flatten().tolist()))


def test_heads_come_back_apart_and_in_order() -> None:
    """Keys of one head lie together, token by token: that is what the matrix products want."""
    pool = small_pool()
    keys = torch.arange(12.0).view(2, 2, 3)
    values = torch.arange(20.0).view(2, 2, 5)
    rows = torch.tensor([2 * 2 * 2 + 0, 2 * 2 * 2 + 1, (2 * 2 + 1) * 2, (2 * 2 + 1) * 2 + 1])  # block 2
    pool.write(0, rows, keys, values)
    read_keys, read_values = pool.gather(0, torch.tensor([4, 5]), heads=2)
    assert torch.equal(read_keys, keys)
    assert torch.equal(read_values, values)


def test_copies_go_through_every_layer() -> None:
    """A block is the same tokens in all layers."""
    pool = small_pool()
    fill(pool, 0, 1, 10.0)
    fill(pool, 1, 1, 11.0)
    pool.copy(((1, 3),))
    assert [content(pool, layer, 3) for layer in (0, 1)] == [[10.0], [11.0]]


def test_scrubbing_takes_only_what_is_not_finite() -> None:
    """Blocks of a broken sequence may be shared with sound ones."""
    pool = small_pool()
    fill(pool, 0, 0, float("nan"))
    fill(pool, 1, 0, 7.0)
    fill(pool, 0, 1, float("inf"))
    pool.scrub((0, 1))
    assert [content(pool, 0, 0), content(pool, 1, 0), content(pool, 0, 1)] == [[0.0], [7.0], [0.0]]


def test_a_new_pool_is_zero_and_its_null_block_lies_beyond_the_others() -> None:
    """Padding reads it: it must hold numbers, and nobody's."""
    pool = small_pool(torch.bfloat16)
    assert pool.null_block == 4
    assert content(pool, 1, pool.null_block) == [0.0]


def test_tokens_written_by_place_lie_in_their_page_all_heads_together() -> None:
    """The layout of attention on pages; whole blocks are copied, kept and brought back in it as in the other."""
    pool = small_pool()
    keys, values = torch.arange(12.0).view(2, 2, 3), torch.arange(20.0).view(2, 2, 5)
    pool.write_tokens(1, torch.tensor([2 * 2 + 1, 3 * 2]), keys, values)
    key_pages, value_pages = pool.pages(1)
    assert key_pages.shape == (4 + SPARE_BLOCKS, 2, 2, 3)
    assert torch.equal(key_pages[2, 1], keys[0])
    assert torch.equal(value_pages[3, 0], values[1])
    pool.copy(((2, 0),))
    kept = pool.take_out((0, 3))
    pool.put_back((1,), kept, first=1)
    assert torch.equal(pool.pages(1)[0][1, 0], keys[1])
    assert torch.equal(pool.pages(1)[1][0, 1], values[0])


def test_the_scratch_block_is_nobodys_and_not_the_null_block() -> None:
    """Padding writes to the one and reads the other, which has to stay zero."""
    pool = small_pool()
    pool.write_tokens(0, torch.tensor([pool.scratch_block * 2]), torch.ones(1, 2, 3), torch.ones(1, 2, 5))
    assert content(pool, 0, pool.scratch_block) == [0.0, 1.0]
    assert content(pool, 0, pool.null_block) == [0.0]


class LateTransfer:
    """Copies that arrive when they are waited for, as those of a stream of their own."""

    def __init__(self) -> None:
        self._coming: list[tuple[torch.Tensor, torch.Tensor]] = []

    def to_host(self, rows: torch.Tensor) -> torch.Tensor:
        return self._begin(rows)

    def to_device(self, rows: torch.Tensor) -> torch.Tensor:
        return self._begin(rows)

    def wait(self) -> None:
        for target, source in self._coming:
            target.copy_(source)
        self._coming.clear()

    def _begin(self, rows: torch.Tensor) -> torch.Tensor:
        target = torch.full_like(rows, float("nan"))
        self._coming.append((target, rows))
        return target


def test_blocks_that_come_back_are_waited_for() -> None:
    """Transfers run beside the computation; what is used too early would be whatever lay there."""
    pool = KVPool(
        layers=[LAYER, LAYER],
        num_blocks=4,
        block_size=2,
        dtype=torch.float32,
        device=torch.device("cpu"),
        transfer=LateTransfer(),
    )
    fill(pool, 0, 2, 5.0)
    fill(pool, 1, 2, 6.0)
    pool.put_back((1,), pool.take_out((3, 2)), first=1)
    assert [content(pool, layer, 1) for layer in (0, 1)] == [[5.0], [6.0]]


def size(kv_blocks: int | None = None, *, available_bytes: int = 1000 * KIB, context_length: int = 100) -> object:
    return size_pool(
        kv_blocks=kv_blocks,
        available_bytes=available_bytes,
        share=0.25,
        bytes_per_block=KIB,
        max_slots=4,
        context_length=context_length,
        block_size=16,
    )


def test_the_pool_holds_all_slots_when_memory_allows() -> None:
    """More than every slot's whole context could never be used."""
    found = size()
    assert (found.num_blocks, found.context_length) == (4 * 7, 100)


def test_the_pool_takes_only_its_share_of_memory() -> None:
    """The rest of the machine needs memory too."""
    assert size(available_bytes=40 * KIB).num_blocks == 10


def test_a_context_that_the_pool_cannot_hold_is_lowered() -> None:
    """Otherwise a prompt could be accepted that can never be computed."""
    assert size(kv_blocks=3).context_length == 48


@pytest.mark.parametrize(("kv_blocks", "available"), [(None, 2 * KIB), (100, 50 * KIB)])
def test_a_pool_that_does_not_fit_is_refused_in_a_sentence(kv_blocks: int | None, available: int) -> None:
    """At load, not by the system's memory killer hours later."""
    with pytest.raises(LoadError, match="not enough memory for the KV pool"):
        size(kv_blocks, available_bytes=available)


def test_a_block_counts_keys_and_values_of_all_layers() -> None:
    """2 layers, 2 heads, 3 + 5 numbers, 16 tokens, 2 bytes."""
    assert block_bytes([LAYER, LAYER], 16, torch.bfloat16) == 2 * 2 * 8 * 16 * 2
