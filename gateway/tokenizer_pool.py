"""Threads for tokenising: none of it runs on the event loop, and no more of it at once than there are threads.

Some work lies ready for the threads, so that they go from one piece to the next without the event loop: were it asked
each time, a loop that is some milliseconds late would keep them idle for as long after every prompt, and under overload
requests would wait here, whatever their class. What comes beyond that waits for its turn; one whose client leaves
meanwhile gives up its place. A thread cannot be stopped half way, so a turn ends when the work ends, not when its
waiter is gone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from gateway.tokens import ChatTokenizer
from workers.wire import TokenizerFiles

P = ParamSpec("P")
T = TypeVar("T")

MOST_READY = 64
"""Pieces of work that lie ready. A few are enough for any thread; those of clients that have left lie there on."""

MAX_TOKENIZERS = 8
"""Tokenizers kept, the least recently used leaving first. One takes some tens of megabytes."""


class TokenizerPool:
    """Tokenizers by digest, and the threads in which they work. ``fetch`` gets the files of a digest."""

    def __init__(self, *, fetch: Callable[[str], Awaitable[TokenizerFiles]], num_threads: int) -> None:
        self._fetch = fetch
        self._executor = ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix="tokenize")
        self._turns = asyncio.Semaphore(num_threads + MOST_READY)
        self._tokenizers: OrderedDict[str, ChatTokenizer] = OrderedDict()
        self._building = asyncio.Lock()

    async def get(self, digest: str) -> ChatTokenizer:
        """The tokenizer of this digest, built at its first use. Raises ``Refused`` when nobody has its files."""
        tokenizer = self._cached(digest)
        if tokenizer is not None:
            return tokenizer
        async with self._building:
            # Those who waited here find it built.
            tokenizer = self._cached(digest)
            if tokenizer is None:
                files = await self._fetch(digest)
                tokenizer = await self.run(ChatTokenizer, files)
                self._tokenizers[digest] = tokenizer
                if len(self._tokenizers) > MAX_TOKENIZERS:
                    self._tokenizers.popitem(last=False)
            return tokenizer

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the function in a thread, when it is its turn."""
        await self._turns.acquire()
        loop = asyncio.get_running_loop()
        work = self._executor.submit(function, *args, **kwargs)

        def give_turn_back(_: Future[T]) -> None:
            loop.call_soon_threadsafe(self._turns.release)

        work.add_done_callback(give_turn_back)
        return await asyncio.wrap_future(work)

    def close(self) -> None:
        """Wait for the work in the threads and end them."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _cached(self, digest: str) -> ChatTokenizer | None:
        tokenizer = self._tokenizers.get(digest)
        if tokenizer is not None:
            self._tokenizers.move_to_end(digest)
        return tokenizer
