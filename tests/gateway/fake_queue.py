"""A queue that does what a test says, for the tasks that speak to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from admission.queue import Asked, Claim, Entry, StoreUnavailable, Withdrawal, Withdrawn
from admission.standing import HeadStart, Standing


class FakeQueue:
    """``acts`` is what was done, in order. While ``is_away`` every call fails."""

    def __init__(self) -> None:
        self.is_away = False
        self.attempts = 0
        self.acts: list[tuple[str, ...]] = []
        self.asked: list[Asked] = []
        self.to_claim: deque[tuple[Claim, ...]] = deque()
        self.handed: asyncio.Queue[tuple[Claim, ...]] = asyncio.Queue()
        self.withdrawals: dict[str, Withdrawal] = {}

    async def settle(self, driver_id: str, entry_ids: Sequence[str]) -> None:
        await self._answer()
        self.acts.append(("settle", driver_id, *entry_ids))

    async def give_back(self, driver_id: str, entry_ids: Sequence[str]) -> None:
        await self._answer()
        self.acts.append(("give back", driver_id, *entry_ids))

    async def withdraw(self, entry_id: str) -> Withdrawal:
        await self._answer()
        self.acts.append(("withdraw", entry_id))
        return self.withdrawals.get(entry_id, Withdrawal(outcome=Withdrawn.WITHDRAWN))

    async def claim(self, driver_id: str, asked: Asked | Callable[[], Asked]) -> tuple[Claim, ...]:
        await self._answer()
        assert driver_id
        self.asked.append(asked() if callable(asked) else asked)
        return self.to_claim.popleft() if self.to_claim else ()

    async def next_handed(self, driver_id: str, timeout_s: float) -> tuple[Claim, ...]:
        assert driver_id
        assert timeout_s > 0
        await self._answer()
        return await self.handed.get()

    async def _answer(self) -> None:
        self.attempts += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailable("away")


def claim_of(entry_id: str, *, tokens: int = 10, victim_id: str | None = None) -> Claim:
    standing = Standing(scored_by=HeadStart(us=0), lane="standard")
    entry = Entry(entry_id=entry_id, class_name="standard", rank=1, standing=standing, tokens=tokens, payload=b"")
    return Claim(entry=entry, arrival_us=0, score=0, victim_id=victim_id)
