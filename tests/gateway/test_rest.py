"""When a driver has rested long enough for what is dear."""

from __future__ import annotations

import pytest

from gateway import rest
from gateway.rest import Rest
from tests.support import wait_until


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "LONG_S", 0.02)


class Turns:
    """Counts the turns that were asked for."""

    def __init__(self) -> None:
        self.num_stirred = 0
        self.rest = Rest(self.stir)

    def stir(self) -> None:
        self.num_stirred += 1


async def test_a_rest_after_work_becomes_long_once() -> None:
    """The books are checked after every burst of work, and not again and again while nothing happens."""
    turns = Turns()
    assert [turns.rest.is_long(slots_in_use=slots) for slots in (0, 2, 0)] == [False] * 3
    await wait_until(lambda: turns.num_stirred == 1, "the rest is long")
    assert [turns.rest.is_long(slots_in_use=0) for _ in range(3)] == [True, False, False]
    turns.rest.end()


async def test_work_ends_a_rest_before_it_is_long() -> None:
    """A lone client that asks again at once never waits for the books."""
    turns = Turns()
    turns.rest.is_long(slots_in_use=1)
    turns.rest.is_long(slots_in_use=0)
    assert turns.rest._timer is not None
    turns.rest.is_long(slots_in_use=1)
    assert turns.rest._timer is None
