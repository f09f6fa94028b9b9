"""Turns at Redis: a storm waits for them, a Redis that is gone ends the waiting."""

from __future__ import annotations

import asyncio

import pytest

from admission import turns
from admission.queue import StoreUnavailable
from admission.turns import Turns
from tests.support import wait_until

MOST = 2


class Acts:
    """Acts that take turns, and end when the test says how."""

    def __init__(self) -> None:
        self.turns = Turns(MOST)
        self.under_way: dict[int, asyncio.Future[None]] = {}
        self.num_begun = 0

    def begin(self) -> asyncio.Task[None]:
        self.num_begun += 1
        return asyncio.create_task(self._act(self.num_begun))

    async def _act(self, number: int) -> None:
        async with self.turns.turn("act"):
            self.under_way[number] = asyncio.get_running_loop().create_future()
            await self.under_way[number]

    async def wait_for(self, *numbers: int) -> None:
        await wait_until(lambda: tuple(self.under_way) == numbers, f"{numbers} were let in, in this order")

    def answer(self, number: int) -> None:
        self.under_way[number].set_result(None)

    def fail(self, number: int) -> None:
        self.under_way[number].set_exception(StoreUnavailable("act: silence"))


async def test_those_beyond_the_most_wait_in_order() -> None:
    """The clock of an act begins with its turn, so a crowd of our own never looks like a silent Redis."""
    acts = Acts()
    begun = [acts.begin() for _ in range(4)]
    await acts.wait_for(1, 2)
    acts.answer(2)
    await acts.wait_for(1, 2, 3)
    acts.answer(1)
    await acts.wait_for(1, 2, 3, 4)
    acts.answer(3)
    acts.answer(4)
    await asyncio.gather(*begun)


async def test_when_no_act_is_answered_all_that_wait_hear_it_at_once() -> None:
    """A frozen Redis costs a second, not a second for every few that wait."""
    acts = Acts()
    begun = [acts.begin() for _ in range(10)]
    await acts.wait_for(1, 2)
    acts.fail(1)
    acts.fail(2)
    results = await asyncio.gather(*begun, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 10
    assert len(acts.under_way) < 5, "the others did not try"


async def test_one_act_that_fails_among_others_turns_nobody_away() -> None:
    """A connection may break; Redis answers the next one."""
    acts = Acts()
    begun = [acts.begin() for _ in range(4)]
    await acts.wait_for(1, 2)
    acts.answer(1)
    acts.fail(2)
    await acts.wait_for(1, 2, 3, 4)
    acts.answer(3)
    acts.answer(4)
    results = await asyncio.gather(*begun, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), StoreUnavailable, type(None), type(None)]


async def test_whoever_comes_later_tries_again() -> None:
    """Else nobody would find out that Redis is back."""
    acts = Acts()
    begun = [acts.begin() for _ in range(3)]
    await acts.wait_for(1, 2)
    acts.fail(1)
    acts.fail(2)
    await asyncio.gather(*begun, return_exceptions=True)
    later = acts.begin()
    await wait_until(lambda: 4 in acts.under_way, "it is let in")
    acts.answer(4)
    await later


async def test_one_that_leaves_while_it_waits_takes_no_turn_along() -> None:
    """Clients leave in the midst of a storm; each turn lost with one would be lost for good."""
    acts = Acts()
    begun = [acts.begin() for _ in range(5)]
    await acts.wait_for(1, 2)
    begun[2].cancel()
    begun[0].cancel()
    await acts.wait_for(1, 2, 4)
    acts.answer(2)
    await acts.wait_for(1, 2, 4, 5)
    acts.answer(4)
    acts.answer(5)
    await asyncio.gather(*begun, return_exceptions=True)


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait has an end, also behind acts that take long and succeed."""
    monkeypatch.setattr(turns, "MOST_WAIT_S", 0.01)
    acts = Acts()
    begun = [acts.begin() for _ in range(2)]
    await acts.wait_for(1, 2)
    with pytest.raises(StoreUnavailable, match=r"^act: "):
        await acts.begin()
    acts.answer(1)
    acts.answer(2)
    await asyncio.gather(*begun)
