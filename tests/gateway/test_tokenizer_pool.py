"""Tokenizers that are kept, and the threads in which they work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.errors import Refused
from gateway.tokenizer_pool import MAX_TOKENIZERS, MOST_READY, TokenizerPool
from tests.gateway.fakes import FakeDispatcher
from tests.gateway.tiny_tokenizer import tokenizer_files
from tests.support import wait_until
from workers.wire import TokenizerFiles


@pytest.fixture
def dispatcher() -> FakeDispatcher:
    return FakeDispatcher()


async def test_a_tokenizer_is_built_once_for_all_who_wait(dispatcher: FakeDispatcher) -> None:
    """Building takes a second for a large vocabulary."""
    fetched: list[str] = []

    async def fetch(digest: str) -> TokenizerFiles:
        fetched.append(digest)
        return await dispatcher.tokenizer_files(digest)

    pool = TokenizerPool(fetch=fetch, num_threads=2)
    built = await asyncio.gather(*(pool.get(dispatcher.files.digest) for _ in range(5)))
    assert len(set(map(id, built))) == 1
    assert len(fetched) == 1
    pool.close()


async def test_the_least_used_tokenizer_leaves_first() -> None:
    """Models come and go; their tokenizers must not stay for ever."""
    by_digest = {f"{index}": tokenizer_files(template=f"{index}") for index in range(MAX_TOKENIZERS + 1)}
    fetched: list[str] = []

    async def fetch(digest: str) -> TokenizerFiles:
        fetched.append(digest)
        return by_digest[digest]

    pool = TokenizerPool(fetch=fetch, num_threads=1)
    first, *rest = by_digest
    for digest in (first, *rest[:-1], first, rest[-1], first, rest[0]):
        await pool.get(digest)
    assert fetched == [*by_digest, rest[0]]
    pool.close()


async def test_a_missing_tokenizer_is_asked_for_again(dispatcher: FakeDispatcher) -> None:
    """Its worker may come back."""
    pool = TokenizerPool(fetch=dispatcher.tokenizer_files, num_threads=1)
    with pytest.raises(Refused):
        await pool.get("unknown")
    assert await pool.get(dispatcher.files.digest)
    pool.close()


async def test_no_more_runs_at_once_than_there_are_threads(dispatcher: FakeDispatcher) -> None:
    """Also when those who asked have left: a thread cannot be stopped."""
    pool = TokenizerPool(fetch=dispatcher.tokenizer_files, num_threads=1)
    started, release = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        release.wait(5)

    leaver = asyncio.create_task(pool.run(hold))
    await wait_until(started.is_set, "the thread works")
    leaver.cancel()
    waiting = [asyncio.create_task(pool.run(len, "abc")) for _ in range(MOST_READY + 10)]
    left_waiting = asyncio.create_task(pool.run(len, "abc"))
    await asyncio.sleep(0)
    # The rest waits for its turn outside the executor's queue, where what was cancelled would lie on.
    assert pool._executor._work_queue.qsize() == MOST_READY
    left_waiting.cancel()
    await asyncio.wait([leaver, left_waiting])
    assert leaver.cancelled()
    assert not any(task.done() for task in waiting)
    release.set()
    assert await asyncio.gather(*waiting) == [3] * (MOST_READY + 10)
    pool.close()
