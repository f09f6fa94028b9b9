"""Deadlines: read strictly, counted from receipt, kept on time wherever the request is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.clock import monotonic_us
from gateway.deadlines import DEADLINE_HEADER, MOST_DEADLINE_MS, Deadline, header_deadline_ms
from gateway.dispatch import Tokens
from gateway.errors import Reason, Refused
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import FakeDispatcher
from tests.gateway.talk import PATHS, body_for
from tests.support import wait_until


def exceeded_at(gateway: Gateway, place: str) -> float:
    return gateway.metrics.registry.get_sample_value("sluicegate_deadlines_exceeded_total", {"place": place}) or 0.0


@pytest.mark.parametrize(
    ("values", "expected"), [((), None), (("1",), 1), ((str(MOST_DEADLINE_MS),), MOST_DEADLINE_MS)]
)
def test_the_header_is_a_whole_number_of_milliseconds(values: Sequence[str], expected: int | None) -> None:
    """Both ends of the range count."""
    assert header_deadline_ms(values) == expected


@pytest.mark.parametrize(
    "values",
    [
        ("0",),
        ("-1",),
        ("1.5",),
        ("1e3",),
        ("soon",),
        ("",),
        ("\u0661",),
        (str(MOST_DEADLINE_MS + 1),),
        ("5", "6"),
        ("9" * 99,),
    ],
)
def test_a_header_that_is_no_deadline_is_refused_by_name(values: Sequence[str]) -> None:
    """Ignored, it would let a client wait that has said that it will not."""
    with pytest.raises(Refused) as refused:
        header_deadline_ms(values)
    assert (refused.value.reason, refused.value.param) == (Reason.INVALID_VALUE, DEADLINE_HEADER)


@pytest.mark.parametrize("value", [0, -1, 1.5, "100", True, MOST_DEADLINE_MS + 1])
async def test_a_field_that_is_no_deadline_is_refused_by_name(gateway: Gateway, value: object) -> None:
    """The same for the body."""
    reply = await gateway.complete(deadline_ms=value)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_value", "deadline_ms")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("header", "field", "least"), [(9000, 5000, 5000), (4000, 7000, 4000), (None, 3000, 3000)])
async def test_the_smallest_deadline_counts_from_receipt(
    gateway: Gateway, path: str, header: int | None, field: int, least: int
) -> None:
    """A balancer may set one, an application another; reading and tokenising are on the clock already."""
    before_us = monotonic_us()
    headers = {} if header is None else {DEADLINE_HEADER: str(header)}
    await gateway.post(path, body_for(path, deadline_ms=field), headers=headers)
    deadline_us = gateway.dispatcher.last.request.deadline_us
    assert deadline_us is not None
    assert before_us <= deadline_us - 1000 * least <= monotonic_us()


async def test_without_a_deadline_there_is_none(gateway: Gateway) -> None:
    """None of the default classes sets one: how long an answer is of use only its client knows."""
    await gateway.complete()
    assert gateway.dispatcher.last.request.deadline_us is None


async def test_a_deadline_that_passes_at_the_door_is_a_504_on_time(serve: ServeGateway) -> None:
    """However long tokenising or the store take; and the SDK is told not to try again."""
    gateway = await serve(FakeDispatcher(hold_submit=asyncio.Event()))
    async with asyncio.timeout(5):
        reply = await gateway.complete(deadline_ms=30)
    assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
    assert reply.headers["x-should-retry"] == "false"
    assert gateway.dispatcher.streams == []
    assert exceeded_at(gateway, "door") == 1


async def test_a_deadline_of_the_header_counts_while_the_body_arrives(gateway: Gateway) -> None:
    """A slow body is the client's own time, and on the clock all the same."""

    async def slow_body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    headers = {DEADLINE_HEADER: "30", "Content-Type": "application/json"}
    async with (
        asyncio.timeout(5),
        gateway.http.post(PATHS[0], data=slow_body(), headers=headers) as response,
    ):
        assert response.status == 504


@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_first_token_a_passed_deadline_is_a_504(serve: ServeGateway, stream: bool) -> None:
    """No header has been sent, so the status can still say it; and it counts as one of the queue."""
    over = Tokens(token_ids=(), error=Reason.DEADLINE_EXCEEDED, message="Over.")
    gateway = await serve(FakeDispatcher(script=lambda _: [over]))
    reply = await gateway.complete(stream=stream)
    assert (reply.status, reply.error["code"], reply.headers["x-should-retry"]) == (504, "deadline_exceeded", "false")
    assert exceeded_at(gateway, "queue") == 1


async def test_after_the_first_token_a_passed_deadline_is_an_error_event(serve: ServeGateway) -> None:
    """A cut answer never looks whole."""
    over = Tokens(token_ids=(), error=Reason.DEADLINE_EXCEEDED, message="Over.")
    gateway = await serve(FakeDispatcher(script=lambda _: [Tokens(token_ids=(100,)), over]))
    reply = await gateway.complete(stream=True)
    assert reply.status == 200
    assert reply.events[-1]["error"]["code"] == "deadline_exceeded"
    assert exceeded_at(gateway, "running") == 1


async def test_a_fault_that_times_out_is_not_taken_for_the_deadline() -> None:
    """Only its own clock may end a request with this reason."""
    deadline = Deadline(monotonic_us)
    deadline.within_ms(60_000)
    with pytest.raises(TimeoutError, match="another"):
        async with deadline.held():
            raise TimeoutError("another")


async def test_a_deadline_only_becomes_earlier_and_a_later_part_of_it_is_held_too() -> None:
    """Its parts become known one after the other, while the request is already on its way."""
    deadline = Deadline(monotonic_us)
    deadline.within_ms(60_000)

    async def learn_and_wait() -> None:
        async with asyncio.timeout(5), deadline.held():
            deadline.within_us(None)
            deadline.within_ms(10)
            deadline.within_ms(50_000)
            await asyncio.Event().wait()

    with pytest.raises(Refused, match="deadline"):
        await learn_and_wait()


async def test_a_client_that_leaves_before_its_deadline_is_a_client_that_left(serve: ServeGateway) -> None:
    """Two ends of one request: the first one counts."""
    gateway = await serve(FakeDispatcher(hold_submit=asyncio.Event()))
    task = asyncio.create_task(gateway.complete(deadline_ms=60_000))
    await wait_until(lambda: gateway.num_open == 1, "the request is open")
    task.cancel()
    await wait_until(lambda: gateway.outcome("cancelled") == 1, "the request is counted")
    assert exceeded_at(gateway, "door") == 0
