"""The pool of KV blocks: references, and contents that outlive their sequence."""

from __future__ import annotations

import pytest

from admission.blocks import BlockPool, LedgerError


def filled(pool: BlockPool, *names: str) -> list[int]:
    """Blocks that hold ``names``, published, still held."""
    blocks = [pool.take() for _ in names]
    for block, name in zip(blocks, names, strict=True):
        pool.publish(block, name.encode())
    return blocks


def let_go(pool: BlockPool, blocks: list[int]) -> None:
    pool.retire(blocks)
    pool.release(blocks)


def test_a_free_block_is_found_by_its_content_until_its_memory_is_needed() -> None:
    """Blank blocks go first: contents are given up only when there is nothing else."""
    pool = BlockPool(3)
    blocks = filled(pool, "a")
    let_go(pool, blocks)
    assert pool.num_free == 3
    assert [pool.take(), pool.take()] == [1, 2]
    assert pool.find(b"a") == 0
    assert pool.take() == 0
    assert pool.find(b"a") is None


def test_the_least_recently_used_content_goes_first_and_of_one_sequence_its_end() -> None:
    """A prefix without its beginning helps nobody."""
    pool = BlockPool(4)
    old, new = filled(pool, "a1", "a2"), filled(pool, "b1", "b2")
    let_go(pool, old)
    let_go(pool, new)
    pool.share(old[0])  # used again, so it is now the newest
    let_go(pool, [old[0]])
    assert [pool.take() for _ in range(4)] == [old[1], new[1], new[0], old[0]]


def test_a_shared_block_is_free_when_the_last_holder_lets_go() -> None:
    """Freeing it with the first would hand one sequence's memory to another."""
    pool = BlockPool(2)
    blocks = filled(pool, "a")
    pool.share(blocks[0])
    let_go(pool, blocks)
    assert pool.is_held(blocks[0])
    let_go(pool, blocks)
    assert not pool.is_held(blocks[0])
    with pytest.raises(LedgerError, match="nobody holds"):
        pool.release(blocks)


def test_only_blocks_without_a_running_holder_count_as_returning() -> None:
    """Whoever waits for memory to return must not wait for blocks that another sequence keeps."""
    pool = BlockPool(2)
    blocks = filled(pool, "a", "b")
    pool.share(blocks[0])
    pool.retire(blocks)
    assert pool.returning == 1
    pool.share(blocks[1])
    assert pool.returning == 0
    pool.check([(blocks, 0), (blocks, 1)])


def test_of_two_blocks_with_one_content_the_first_stays_to_be_found() -> None:
    """Two sequences may compute the same side by side; a table that changed its mind would leave keys behind."""
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    pool.publish(first, b"a")
    pool.publish(second, b"a")
    assert pool.find(b"a") == first
    let_go(pool, [second])
    pool.check([([first], 1)])


def test_forgotten_content_is_blank_at_once_or_when_it_is_let_go() -> None:
    """What must not be found again takes no part in the order of use."""
    pool = BlockPool(3)
    blocks = filled(pool, "a", "b")
    pool.forget(b"a")
    let_go(pool, blocks)
    pool.forget(b"b")
    pool.forget(b"unknown")
    assert [pool.find(b"a"), pool.find(b"b")] == [None, None]
    pool.check([])
    assert sorted(pool.take() for _ in range(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("holders", "message"),
    [([], "sequences hold"), ([([0], 1), ([0], 1)], "sequences hold"), ([([0], 0)], "sequences hold")],
)
def test_the_check_finds_holders_that_are_missing_or_too_many(
    holders: list[tuple[list[int], int]], message: str
) -> None:
    """The check is what tests and idle times rely on."""
    pool = BlockPool(2)
    pool.take()
    with pytest.raises(LedgerError, match=message):
        pool.check(holders)
