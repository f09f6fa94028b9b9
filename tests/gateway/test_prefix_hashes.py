"""Hashes of prompt blocks: equal exactly when everything up to their end is equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.prefix_hashes import HASH_BYTES, block_hashes

ids = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(ids, ids, ids, st.integers(1, 8))
def test_prompts_share_as_many_hashes_as_full_blocks(
    common: list[int], one: list[int], other: list[int], size: int
) -> None:
    """One hash too many shares wrong KV; one too few computes it again."""
    first, second = [*common, *one], [*common, *other]
    equal = 0
    while equal < min(len(first), len(second)) and first[equal] == second[equal]:
        equal += 1
    hashes = [block_hashes(prompt, block_size=size, tenant="") for prompt in (first, second)]
    assert [len(named) for named in hashes] == [len(first) // size, len(second) // size]
    shared = [a == b for a, b in zip(*hashes, strict=False)]
    assert shared == [index < equal // size for index in range(len(shared))]


def test_tenants_share_nothing() -> None:
    """A first token that comes too soon would tell what somebody else has asked."""
    mine, theirs = (block_hashes(range(64), block_size=16, tenant=tenant) for tenant in ("mine", "theirs"))
    assert not set(mine) & set(theirs)
    assert {len(name) for name in mine} == {HASH_BYTES}


def test_equal_blocks_at_different_places_have_different_names() -> None:
    """The KV of a token depends on all before it."""
    assert len(set(block_hashes([7] * 64, block_size=16, tenant=""))) == 4
