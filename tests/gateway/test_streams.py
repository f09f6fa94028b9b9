"""Streams of an origin: every token once and in order, one end, and no memory without a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from admission.estimate import LEAST_SAMPLES
from gateway.dispatch import TokenLogprob, Tokens
from gateway.errors import Reason
from gateway.estimates import Estimates
from gateway.forecast import WaitForecast
from gateway.metrics import Metrics
from gateway.stream import Stream, StreamBounds
from gateway.streams import Streams
from tests.gateway.fake_queue import claim_of
from workers.wire import Delivery, PromptNews, Scores


class Setup:
    """A registry with a clock that the test moves."""

    def __init__(self, bounds: StreamBounds | None = None) -> None:
        self.now_us = 0
        self.metrics = Metrics(CollectorRegistry())
        self.cancelled: list[str] = []
        clock = lambda: self.now_us  # noqa: E731
        self.estimates = Estimates()
        self.streams = Streams(
            clock=clock,
            metrics=self.metrics,
            estimates=self.estimates,
            bounds=bounds,
        )

    def open(self, sequence_id: str = "a", *, deadline_us: int | None = None) -> Stream:
        return self.streams.open(
            claim_of(sequence_id).entry,
            model="m",
            on_cancel=lambda stream: self.cancelled.append(stream.sequence_id),
            on_lost=lambda stream: self.streams.cut(stream, Reason.WORKER_LOST, "The worker is gone."),
            deadline_us=deadline_us,
        )

    @property
    def stale(self) -> float | None:
        return self.metrics.registry.get_sample_value("sluicegate_stale_tokens_total")


def part(position: int, *token_ids: int, finish: str = "", error: str = "", sequence_id: str = "a") -> Delivery:
    return Delivery(sequence_id=sequence_id, position=position, token_ids=token_ids, finish=finish, error=error)


async def read(stream: Stream) -> Tokens:
    items = [tokens async for tokens in stream]
    token_ids = tuple(token for item in items for token in item.token_ids)
    return Tokens(token_ids=token_ids, finish=items[-1].finish, error=items[-1].error)


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


@given(pieces=st.lists(st.tuples(st.integers(0, 11), st.integers(1, 6), st.sampled_from(["g/w", "h/w"])), max_size=40))
def test_whatever_comes_twice_or_too_soon_the_tokens_are_those_of_the_sequence(
    pieces: list[tuple[int, int, str]],
) -> None:
    """Exactly once and in order is the registry's promise alone; links and drivers may repeat."""
    setup = Setup()
    stream = setup.open()
    for position, length, driver_id in pieces:
        setup.streams.deliver(driver_id, [part(position, *range(position, position + length))])
    before = stream.next_position
    setup.streams.deliver("g/w", [part(before, finish="stop")])
    answer = asyncio.run(read(stream))
    assert (answer.token_ids, answer.finish) == (tuple(range(before)), "stop")


def scores(start: int, stop: int) -> Scores:
    """Those of the tokens ``start`` to ``stop``, which say of which they are."""
    own = tuple(-float(token) for token in range(start, stop))
    return Scores(own=own, top_ids=tuple(range(start, stop)), top=own)


def logprobs(start: int, stop: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(own=-float(token), top=((token, -float(token)),)) for token in range(start, stop))


@given(pieces=st.lists(st.tuples(st.integers(0, 11), st.integers(1, 6), st.sampled_from(["g/w", "h/w"])), max_size=40))
def test_log_probabilities_stay_beside_their_tokens_whatever_comes_twice(pieces: list[tuple[int, int, str]]) -> None:
    """They are cut with the tokens: of what is repeated only the new ones are taken."""
    setup = Setup()
    stream = setup.open()
    for position, length, driver_id in pieces:
        told = part(position, *range(position, position + length))
        setup.streams.deliver(driver_id, [told._replace(scores=scores(position, position + length))])
    setup.streams.deliver("g/w", [part(stream.next_position, finish="stop")])
    length = stream.next_position

    async def read_logprobs() -> list[TokenLogprob]:
        return [logprob async for tokens in stream for logprob in tokens.logprobs]

    assert tuple(asyncio.run(read_logprobs())) == logprobs(0, length)


@given(pieces=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), max_size=30))
def test_those_of_the_prompt_are_taken_once_and_in_order(pieces: list[tuple[int, int]]) -> None:
    """They come in parts, again after a preemption or from another driver, and from a journal after a gap."""
    setup = Setup()
    stream = setup.open()
    known = 1
    for start, length in pieces:
        news = PromptNews(start=start, scores=scores(start, start + length))
        setup.streams.deliver("g/w", [part(0)._replace(prompt=news)])
        known = max(known, start + length) if start <= known else known
    assert stream.prompt_logprobs == logprobs(1, known)
    setup.streams.deliver("g/w", [part(0, 1)])
    setup.streams.deliver("h/w", [part(0)._replace(prompt=PromptNews(start=known, scores=scores(known, known + 2)))])
    assert stream.prompt_logprobs == logprobs(1, known), "after the first token they are whole"


async def test_log_probabilities_of_a_prompt_are_no_item_but_tell_who_runs_it() -> None:
    """The reader waits for tokens; the origin knows whom to cancel, and that the wait has ended."""
    setup = Setup()
    stream = setup.open()
    assert setup.streams.waiting() == (stream,)
    setup.streams.deliver("g/w", [part(0)._replace(prompt=PromptNews(start=1, scores=scores(1, 3)))])
    assert (setup.streams.waiting(), setup.streams.driven_by("g")) == ((), (stream,))
    setup.streams.deliver("g/w", [part(0, 7)])
    assert await anext(stream) == Tokens(token_ids=(7,))


async def test_cached_tokens_are_those_of_whoever_gave_the_first_token() -> None:
    """A preemption or another driver may find more of the prompt; its client's first token did not."""
    setup = Setup()
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, 1)._replace(prompt=PromptNews(cached_tokens=16))])
    setup.streams.deliver("h/w", [part(0, 1, 2)._replace(prompt=PromptNews(cached_tokens=32))])
    assert stream.cached_tokens == 16


async def test_unread_log_probabilities_count_as_unread() -> None:
    """A slow reader that asked for twenty beside each token holds more memory sooner."""
    setup = Setup(StreamBounds(unread_tokens=4, slow_us=1_000, most_unread_tokens=6))
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, 1)._replace(scores=scores(0, 1))])
    assert stream.is_open
    setup.streams.deliver("g/w", [part(1, 2)._replace(scores=scores(1, 2))])
    assert (await read(stream)).error is Reason.SLOW_CLIENT


async def test_a_finish_beyond_a_gap_ends_nothing() -> None:
    """The missing tokens come with the journal, and the finish once more with them."""
    setup = Setup()
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, 1), part(5, 6, finish="length")])
    assert stream.is_open
    setup.streams.deliver("g/w", [part(0, 1, 2, 3, 4, 5, 6, finish="length")])
    assert await read(stream) == Tokens(token_ids=(1, 2, 3, 4, 5, 6), finish="length")
    assert setup.stale == 2


async def test_an_error_counts_only_from_the_current_driver() -> None:
    """A driver that has lost the sequence to another must not end it."""
    setup = Setup()
    stream = setup.open()
    setup.streams.deliver("old/w", [part(0, 1)])
    setup.streams.deliver("new/w", [part(0, 1, 2)])
    setup.streams.deliver("old/w", [part(1, error="worker_lost")])
    assert stream.is_open
    setup.streams.deliver("new/w", [part(2, error="worker_lost")])
    assert (await read(stream)).error is Reason.WORKER_LOST


async def test_an_error_that_this_version_does_not_know_is_an_internal_one() -> None:
    """Gateways of two versions run side by side during an upgrade."""
    setup = Setup()
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, error="of tomorrow")])
    assert (await read(stream)).error is Reason.INTERNAL_ERROR


async def test_a_delivery_for_nobody_is_answered_with_its_id_unless_it_ends_there() -> None:
    """That stops what a crashed gateway or a lost cancel left running."""
    setup = Setup()
    assert setup.streams.deliver("g/w", [part(0, 1), part(0, 1, finish="stop", sequence_id="b")]) == ("a",)


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


async def test_a_cancel_after_the_end_means_nothing() -> None:
    """It crossed the finish: there is nothing to stop."""
    setup = Setup()
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, 1, finish="stop")])
    stream.cancel("gone")
    assert setup.cancelled == []
    assert await read(stream) == Tokens(token_ids=(1,), finish="stop")


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


async def test_a_deadline_ends_a_stream_on_time_and_stops_its_sequence() -> None:
    """By the origin's own timer: nobody else has to notice, and what came before it is still read."""
    setup = Setup()
    stream = setup.open(deadline_us=20_000)
    setup.streams.deliver("g/w", [part(0, 1)])
    async with asyncio.timeout(5):
        assert await anext(stream) == Tokens(token_ids=(1,))
        answer = await read(stream)
    assert (answer.token_ids, answer.error) == ((), Reason.DEADLINE_EXCEEDED)
    assert setup.cancelled == ["a"]
    assert len(setup.streams) == 0


async def test_a_deadline_that_has_passed_ends_a_stream_at_once() -> None:
    """The time between a check and the offer belongs to the client too."""
    setup = Setup()
    setup.now_us = 5_000
    stream = setup.open(deadline_us=4_000)
    async with asyncio.timeout(5):
        assert (await read(stream)).error is Reason.DEADLINE_EXCEEDED


async def test_the_timer_of_a_stream_goes_with_it() -> None:
    """However it ends: a day's deadline must not keep a second's request in memory."""
    setup = Setup()
    finished, cancelled, refused = (setup.open(name, deadline_us=10**9) for name in "abc")
    timers = list(setup.streams._timers.values())
    setup.streams.deliver("g/w", [part(0, 1, finish="stop")])
    cancelled.cancel("gone")
    setup.streams.discard(refused)
    assert finished.next_position == 1
    assert len(timers) == 3
    assert all(timer.cancelled() for timer in timers)
    assert not setup.streams._timers


async def test_only_whole_answers_teach_what_to_expect() -> None:
    """A length that a client or a fault has cut short says nothing about the model."""
    setup = Setup()
    for number in range(LEAST_SAMPLES):
        whole, lost, left = (setup.open(f"{kind}{number}") for kind in ("whole", "lost", "left"))
        stopped = setup.open(f"stopped{number}")
        for stream in (whole, lost, left, stopped):
            setup.streams.deliver("g/w", [part(0, *range(1, 8), sequence_id=stream.sequence_id)])
        setup.streams.deliver("g/w", [part(7, 9, finish="stop", sequence_id=whole.sequence_id)])
        setup.streams.deliver("g/w", [part(7, error="worker_lost", sequence_id=lost.sequence_id)])
        left.cancel("gone")
        stopped.complete()
        assert left.cancel_reason == "gone"
        assert setup.estimates.expected("m", "standard", 100) == (100 if number < LEAST_SAMPLES // 2 - 1 else 8)
    assert setup.estimates.expected("m", "batch", 100) == 100


async def test_an_answer_that_is_complete_early_stops_its_sequence_once() -> None:
    """A stop string is found here: the worker knows nothing of it."""
    setup = Setup()
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, 1)])
    stream.complete()
    stream.complete()
    assert setup.cancelled == ["a"]


async def test_a_prediction_is_scored_once_when_the_first_token_comes() -> None:
    """By that the gateway knows how true its predictions are."""
    setup = Setup()
    predicted, other = setup.open("a"), setup.open("b")
    predicted.forecast = WaitForecast(made_us=0, wait_s=1.0)
    setup.now_us = 1_500_000
    setup.streams.deliver("g/w", [part(0, 1), part(0, 1, sequence_id="b")])
    setup.streams.deliver("g/w", [part(1, 2)])
    value = setup.metrics.registry.get_sample_value
    assert (value("sluicegate_wait_ratio_count"), value("sluicegate_wait_ratio_sum")) == (1.0, 1.5)
    assert other.next_position == 1


async def test_who_is_displaced_while_waiting_hears_when_to_come_back() -> None:
    """After about the time that it would have had to wait."""
    setup = Setup()
    stream = setup.open()
    stream.forecast = WaitForecast(made_us=0, wait_s=20.0)
    setup.streams.deliver("door", [part(0, error="shed")])
    (item,) = [tokens async for tokens in stream]
    assert item.error is Reason.SHED
    assert item.retry_after_s is not None
    assert 20 <= item.retry_after_s <= 25


# --- the short cut ----------------------------------------------------------------------------------------------------


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
