"""What is answered when something fails, before the first token and after it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from gateway.dispatch import GenerationRequest, Tokens
from gateway.errors import ANSWERS, Reason, Refused, Retry
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import FakeDispatcher, FakeStream
from tests.gateway.talk import PATHS, body_for, scripted
from tests.gateway.tiny_tokenizer import ids_of_text


class CutStream(FakeStream):
    """Ends without saying how."""

    async def _iterate(self) -> AsyncIterator[Tokens]:
        yield Tokens(token_ids=ids_of_text("Some"))


class CuttingDispatcher(FakeDispatcher):
    async def submit(self, request: GenerationRequest) -> list[FakeStream]:
        return [CutStream(request, request.sequences[0])]


@pytest.mark.parametrize("reason", [reason for reason in Reason if ANSWERS[reason].retry is not Retry.NO])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_to_come_back_later_says_when(gateway: Gateway, reason: Reason, stream: bool) -> None:
    """With a stream asked for too: no refusal arrives as a 200."""
    gateway.dispatcher.refusal = Refused(reason, "Full.", retry_after_s=2.25)
    reply = await gateway.chat(stream=stream)
    assert reply.status == ANSWERS[reason].status
    assert reply.error == {"message": "Full.", "type": ANSWERS[reason].error_type, "param": None, "code": reason}
    assert reply.headers["x-sluicegate-reason"] == reason
    assert (reply.headers["Retry-After"], reply.headers["retry-after-ms"]) == ("3", "2250")
    assert reply.headers["x-sluicegate-class"] == "standard"
    assert "x-should-retry" not in reply.headers
    assert gateway.outcome(reason) == gateway.num_requests == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", [Reason.SHED, Reason.DEADLINE_EXCEEDED, Reason.WORKER_LOST])
async def test_a_failure_before_the_first_token_is_a_status(serve: ServeGateway, reason: Reason, stream: bool) -> None:
    """G03: a queued stream has sent no header, so it can still be refused like any request."""
    gateway = await serve(scripted(Tokens(token_ids=(), error=reason, message="No.")))
    reply = await gateway.chat(stream=stream)
    assert (reply.status, reply.error["code"]) == (ANSWERS[reason].status, reason)
    assert (reply.headers.get("x-should-retry") == "false") == (ANSWERS[reason].retry is Retry.NO)
    assert gateway.outcome(reason) == gateway.num_requests == 1


@pytest.mark.parametrize("path", PATHS)
async def test_a_failure_after_the_first_token_is_one_error_event_without_done(serve: ServeGateway, path: str) -> None:
    """The official SDK raises on it; a stream that just ended would pass for whole."""
    failure = Tokens(token_ids=ids_of_text(" more"), error=Reason.WORKER_LOST, message="The worker is gone.")
    gateway = await serve(scripted(Tokens(token_ids=ids_of_text("Some")), failure))
    reply = await gateway.post(path, body_for(path, stream=True))
    assert reply.status == 200
    assert reply.events[-1]["error"]["code"] == "worker_lost"
    assert b" more" in reply.body
    assert b"[DONE]" not in reply.body
    assert b'"finish_reason":"' not in reply.body
    assert gateway.outcome("worker_lost") == gateway.num_requests == 1


async def test_a_whole_answer_that_fails_half_way_is_an_error(serve: ServeGateway) -> None:
    """Never a half answer that looks whole."""
    failure = Tokens(token_ids=(), error=Reason.WORKER_LOST)
    gateway = await serve(scripted(Tokens(token_ids=ids_of_text("Some")), failure))
    reply = await gateway.complete()
    assert (reply.status, reply.error["code"]) == (500, "worker_lost")


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_of_ours_tells_the_client_nothing_and_the_log_everything(
    serve: ServeGateway, begun: bool, stream: bool
) -> None:
    """One log line with the cause; the path of a file is nobody's business outside."""
    items = [Tokens(token_ids=ids_of_text("Some"))] if begun else []
    gateway = await serve(scripted(*items, KeyError("/secret/path")))
    with capture_logs() as logs:
        reply = await gateway.complete(stream=stream)
    error = reply.events[-1]["error"] if begun and stream else reply.error
    assert error["code"] == "internal_error"
    assert b"secret" not in reply.body
    (fault,) = [line for line in logs if "exc_info" in line]
    assert isinstance(fault["exc_info"], KeyError)
    assert gateway.outcome("internal_error") == gateway.num_requests == 1
    assert gateway.dispatcher.last.cancels == ["the answer was given up"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_that_ends_without_an_end_is_a_fault(serve: ServeGateway, stream: bool) -> None:
    """It must not pass for a short answer."""
    gateway = await serve(CuttingDispatcher())
    reply = await gateway.complete(stream=stream)
    assert b"internal_error" in reply.body
    assert b"[DONE]" not in reply.body
