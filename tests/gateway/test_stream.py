"""One stream and its reader: how it is read, how far it may lag, and the short cut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.dispatch import Tokens
from gateway.errors import Reason
from gateway.stream import Stream, StreamBounds
from tests.gateway.stream_setup import Setup, part, read, scores


async def test_tokens_that_came_together_are_read_together() -> None:
    """A reader that lags gets fewer and longer items, not a longer queue."""
    setup = Setup()
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, 1), part(1, 2)])
    assert await anext(stream) == Tokens(token_ids=(1, 2))
    setup.streams.deliver("g/w", [part(2, 3, finish="length")])
    assert await anext(stream) == Tokens(token_ids=(3,), finish="length")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_cancel_is_said_once_and_ends_the_reading() -> None:
    """The HTTP side cancels wherever it notices, perhaps twice."""
    setup = Setup()
    stream = setup.open()
    reading = asyncio.create_task(read_items(stream))
    await asyncio.sleep(0)
    stream.cancel("gone")
    stream.cancel("gone")
    assert await reading == []
    assert setup.cancelled == ["a"]
    assert setup.streams.deliver("g/w", [part(0, 1)]) == ("a",)


async def read_items(stream: Stream) -> list[Tokens]:
    return [tokens async for tokens in stream]


async def test_a_reader_that_stays_too_far_behind_is_cut_and_its_sequence_stopped() -> None:
    """Memory per stream is bounded; one slow client costs nobody else anything."""
    setup = Setup(StreamBounds(unread_tokens=4, slow_us=1_000, most_unread_tokens=100))
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, 1, 2, 3, 4)])
    assert stream.is_open, "it has its time"
    setup.now_us = 1_000
    setup.streams.deliver("g/w", [part(4, 5)])
    assert setup.cancelled == ["a"]
    assert await read(stream) == Tokens(token_ids=(1, 2, 3, 4, 5), error=Reason.SLOW_CLIENT)


async def test_a_burst_beyond_the_last_bound_is_cut_at_once() -> None:
    """A fast worker fills memory before any time has passed."""
    setup = Setup(StreamBounds(unread_tokens=4, slow_us=1_000, most_unread_tokens=6))
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, *range(6))])
    assert (await read(stream)).error is Reason.SLOW_CLIENT


async def test_a_reader_that_keeps_reading_is_never_cut() -> None:
    """Only a backlog that stays counts, not the length of an answer."""
    setup = Setup(StreamBounds(unread_tokens=4, slow_us=1_000, most_unread_tokens=100))
    stream = setup.open()
    for position in range(0, 40, 4):
        setup.streams.deliver("g/w", [part(position, 1, 2, 3, 4)])
        setup.now_us += 900
        await anext(stream)
    assert stream.is_open


async def test_unread_log_probabilities_count_as_unread() -> None:
    """A slow reader that asked for twenty beside each token holds more memory sooner."""
    setup = Setup(StreamBounds(unread_tokens=4, slow_us=1_000, most_unread_tokens=6))
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, 1)._replace(scores=scores(0, 1))])
    assert stream.is_open
    setup.streams.deliver("g/w", [part(1, 2)._replace(scores=scores(1, 2))])
    assert (await read(stream)).error is Reason.SLOW_CLIENT


class Reader:
    """Reads a stream whose plain tokens may be taken at once."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.at_once: list[int] = []
        self.items: list[Tokens] = []
        self.takes = True
        stream.shorten(self.take)
        self.task = asyncio.create_task(self.read())

    def take(self, token_ids: Sequence[int]) -> bool:
        if self.takes:
            self.at_once += token_ids
        return self.takes

    async def read(self) -> None:
        async for item in self.stream:
            self.items.append(item)


async def test_the_next_tokens_are_taken_at_once_while_the_reader_waits() -> None:
    """The reader is woken for the first token, by which the driver is known, and for the end."""
    setup = Setup()
    reader = Reader(setup.open())
    await asyncio.sleep(0)
    for position in range(3):
        setup.streams.deliver("g/w", [part(position, 10 + position)])
        await asyncio.sleep(0)
    setup.streams.deliver("g/w", [part(3, 13, finish="length")])
    await reader.task
    assert reader.at_once == [11, 12]
    assert reader.items == [Tokens(token_ids=(10,)), Tokens(token_ids=(13,), finish="length")]
    assert reader.stream.output == [10, 11, 12, 13]


async def test_nothing_overtakes_what_the_reader_has_not_read() -> None:
    """Between its waking and its reading, tokens queue."""
    setup = Setup()
    reader = Reader(setup.open())
    await asyncio.sleep(0)
    setup.streams.deliver("g/w", [part(0, 10), part(1, 11)])
    setup.streams.deliver("g/w", [part(2, 12)])
    await asyncio.sleep(0)
    reader.takes = False
    setup.streams.deliver("g/w", [part(3, 13)])
    reader.takes = True
    setup.streams.deliver("g/w", [part(4, 14)])
    await asyncio.sleep(0)
    setup.streams.deliver("g/w", [part(5, 15)])
    assert (reader.at_once, reader.items) == ([15], [Tokens(token_ids=(10, 11, 12)), Tokens(token_ids=(13, 14))])
    reader.task.cancel()


async def test_only_the_next_tokens_of_the_current_driver_take_the_short_cut() -> None:
    """What is stale, beyond a gap or from another driver is looked at with care."""
    setup = Setup()
    reader = Reader(setup.open())
    await asyncio.sleep(0)
    setup.streams.deliver("g/w", [part(0, 10)])
    await asyncio.sleep(0)
    setup.streams.deliver("g/w", [part(0, 10), part(2, 12)])
    assert (reader.at_once, setup.stale) == ([], 2)
    setup.streams.deliver("h/w", [part(0, 10, 11)])
    await asyncio.sleep(0)
    assert (reader.at_once, reader.stream.driver_id) == ([], "h/w")
    setup.streams.deliver("h/w", [part(2, 12)])
    assert reader.at_once == [12]
    reader.task.cancel()
