"""Streams of an origin: every token once and in order, one end, and no memory without a bound."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from admission.estimate import LEAST_SAMPLES
from gateway.dispatch import TokenLogprob, Tokens
from gateway.errors import Reason
from gateway.forecast import WaitForecast
from tests.gateway.stream_setup import Setup, logprobs, part, read, scores
from workers.wire import PromptNews


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


async def test_a_cancel_after_the_end_means_nothing() -> None:
    """It crossed the finish: there is nothing to stop."""
    setup = Setup()
    stream = setup.open()
    setup.streams.deliver("g/w", [part(0, 1, finish="stop")])
    stream.cancel("gone")
    assert setup.cancelled == []
    assert await read(stream) == Tokens(token_ids=(1,), finish="stop")


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
