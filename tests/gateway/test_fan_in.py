"""Several streams read as one."""

from __future__ import annotations

import asyncio

import pytest

from gateway.dispatch import GenerationRequest, SequenceRequest, Tokens
from gateway.fan_in import StreamBroken, reading
from tests.gateway.fakes import FakeStream
from workers.wire import Sampling


def streams(count: int) -> list[FakeStream]:
    sequences = tuple(SequenceRequest(prompt_ids=(1,), max_tokens=9, sampling=Sampling(choice=i)) for i in range(count))
    request = GenerationRequest(request_id="r", model="m", class_name="c", sequences=sequences)
    return [FakeStream(request, sequence) for sequence in sequences]


def token(token_id: int) -> Tokens:
    return Tokens(token_ids=(token_id,))


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_what_has_come_together_is_read_together_in_order(count: int) -> None:
    """One iteration is one write."""
    sources = streams(count)
    async with reading(sources) as fan_in:
        for token_id in range(3):
            for source in reversed(sources):
                source.put(token(token_id))
            assert list(await fan_in.next()) == [(index, token(token_id)) for index in range(count)]


async def test_nobody_waits_for_a_stream_that_has_nothing() -> None:
    """A choice that is preempted must not hold up the others."""
    first, second = sources = streams(2)
    async with reading(sources) as fan_in:
        for token_id in range(3):
            second.put(token(token_id))
            assert list(await fan_in.next()) == [(1, token(token_id))]
        first.put(token(9))
        assert list(await fan_in.next()) == [(0, token(9))]


async def test_a_stream_keeps_what_its_reader_has_no_time_for() -> None:
    """It has the bound; here at most one item of each is on its way."""
    first, second = sources = streams(2)
    async with reading(sources) as fan_in:
        for token_id in range(100):
            second.put(token(token_id))
        first.put(token(0))
        await fan_in.next()
        for _ in range(10):
            await asyncio.sleep(0)
        assert second.num_taken <= 2


async def test_a_stream_that_was_left_is_not_read() -> None:
    """After its end nothing comes, and waiting for it would be for ever."""
    first, second = sources = streams(2)
    async with reading(sources) as fan_in:
        first.put(Tokens(token_ids=(), finish="stop"))
        ((index, _),) = await fan_in.next()
        fan_in.leave(index)
        second.put(Tokens(token_ids=(), finish="stop"))
        ((index, _),) = await fan_in.next()
        fan_in.leave(index)
        assert not fan_in.is_open


@pytest.mark.parametrize("count", [1, 3])
async def test_a_failing_stream_fails_the_reading_and_leaves_no_task(count: int) -> None:
    """Also when two fail at once: no error of theirs comes up later."""
    sources = streams(count)
    for source in sources:
        source.put(KeyError("fault"))
    before = asyncio.all_tasks()
    async with reading(sources) as fan_in:
        with pytest.raises(KeyError):
            await fan_in.next()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stream_that_ends_without_an_end_is_broken(count: int) -> None:
    """What it gave must not pass for a whole answer."""
    sources = streams(count)
    async with reading(sources) as fan_in:
        sources[0].put(Tokens(token_ids=(), finish="stop"))
        await fan_in.next()
        with pytest.raises(StreamBroken):
            await fan_in.next()


async def test_giving_up_while_waiting_leaves_no_task() -> None:
    """The client may leave at any time."""
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with reading(streams(3)) as fan_in, asyncio.timeout(0.01):
            await fan_in.next()
    assert asyncio.all_tasks() == before
