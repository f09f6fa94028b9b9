"""Acts on the waiting queue that nobody waits for: settle, give back, withdraw.

They happen in the order in which they were asked for, each until the store has answered. While the store is away they
wait, ``MOST_PENDING_IDS`` at most; beyond it the oldest are dropped and counted (what they leave in the store, such as
the entry of a finished sequence, is repaired by reconciling). Every act is idempotent, so one whose answer was lost is
simply done again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from admission.queue import StoreUnavailable
from admission.redis_queue import RedisQueue
from gateway.backoff import Backoff
from gateway.metrics import Metrics

MOST_PENDING_IDS = 65_536


@dataclass(frozen=True, slots=True)
class _Settle:
    queue: RedisQueue
    driver_id: str
    entry_ids: tuple[str, ...]

    async def do(self) -> None:
        await self.queue.settle(self.driver_id, self.entry_ids)


@dataclass(frozen=True, slots=True)
class _GiveBack:
    queue: RedisQueue
    driver_id: str
    entry_ids: tuple[str, ...]

    async def do(self) -> None:
        await self.queue.give_back(self.driver_id, self.entry_ids)


@dataclass(frozen=True, slots=True)
class _Withdraw:
    queue: RedisQueue
    entry_ids: tuple[str, ...]
    held_by: Callable[[str, str], None]

    async def do(self) -> None:
        for entry_id in self.entry_ids:
            withdrawal = await self.queue.withdraw(entry_id)
            if withdrawal.driver_id is not None:
                self.held_by(entry_id, withdrawal.driver_id)


_Act = _Settle | _GiveBack | _Withdraw


class StoreActs:
    """What is still to be done in the store, oldest first. ``run`` does it."""

    def __init__(self, *, metrics: Metrics, most_pending_ids: int = MOST_PENDING_IDS) -> None:
        self._metrics = metrics.queue
        self._most_pending_ids = most_pending_ids
        self._pending: deque[_Act] = deque()
        self._num_ids = 0
        self._doing = 0  # 1 while the oldest act is at the store: what it names can no longer grow
        self._stirred = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def settle(self, queue: RedisQueue, driver_id: str, entry_ids: Sequence[str]) -> None:
        """These have ended."""
        can_join = len(self._pending) > self._doing
        newest = self._pending[-1] if can_join else None
        if isinstance(newest, _Settle) and newest.queue is queue and newest.driver_id == driver_id:
            self._pending[-1] = _Settle(queue, driver_id, (*newest.entry_ids, *entry_ids))
            self._num_ids += len(entry_ids)
        else:
            self._add(_Settle(queue, driver_id, tuple(entry_ids)))

    def give_back(self, queue: RedisQueue, driver_id: str, entry_ids: Sequence[str]) -> None:
        """These are paused, and wait again."""
        self._add(_GiveBack(queue, driver_id, tuple(entry_ids)))

    def withdraw(self, queue: RedisQueue, entry_id: str, held_by: Callable[[str, str], None]) -> None:
        """Nobody waits for this any more; ``held_by(entry_id, driver_id)`` is called when a driver still has it."""
        self._add(_Withdraw(queue, (entry_id,), held_by))

    @property
    def is_pending(self) -> bool:
        return bool(self._pending)

    async def drained(self) -> None:
        """Everything asked for until now has been done."""
        await self._idle.wait()

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._pending:
                act = self._pending[0]
                self._doing = 1
                try:
                    await act.do()
                except StoreUnavailable:
                    await backoff.pause()
                    continue
                finally:
                    self._doing = 0
                backoff.reset()
                if self._pending and self._pending[0] is act:
                    self._remove_oldest()
            self._idle.set()

    def _add(self, act: _Act) -> None:
        self._pending.append(act)
        self._num_ids += len(act.entry_ids)
        while self._num_ids > self._most_pending_ids:
            self._metrics.acts_dropped.inc(self._remove_oldest())
        self._idle.clear()
        self._stirred.set()

    def _remove_oldest(self) -> int:
        num_ids = len(self._pending.popleft().entry_ids)
        self._num_ids -= num_ids
        return num_ids
