"""Cases of one request that must not hold up the others, against a whole gateway: too large, too many, or broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.record import RequestRecord
from gateway.request_ids import ID_HEADER
from gateway.sse import SseResponse
from gateway.stops import StopMatcher
from gateway.tokens import ChatTokenizer
from tests.gateway.front_door import Door, door
from tests.gateway.worker_peer import WorkerPeer
from workers.fake_script import Echo, FakeScript, Rule, Text

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MARK = "marked"
STORIES = tuple(f"story-{number:02d}" for number in range(15))


def small_pool(*, blocks: int, slots: int) -> WorkerPeer:
    return WorkerPeer(FakeScript(output=Echo(kind="echo"), slots=slots, blocks=blocks, block_size=16))


async def test_what_can_never_fit_the_pool_is_refused_with_the_true_limit(url: str, run_dir: Path) -> None:
    """E01: at the head of the queue it would wait for ever, and all others behind it; what just fits is served."""
    async with door(url, run_dir, worker=small_pool(blocks=16, slots=8)) as served:
        for prompt_tokens, max_tokens in ((257, 8), (248, 64)):
            refused = await served.complete(prompt=[5] * prompt_tokens, max_tokens=max_tokens)
            assert (refused.status, refused.json["error"]["code"]) == (400, "context_length_exceeded")
            assert "256" in refused.json["error"]["message"]
        asked = [served.complete(prompt=[5] * 248, max_tokens=8), *(served.complete() for _ in range(10))]
        async with asyncio.timeout(20):
            assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 11
        await served.idle()


async def test_more_than_fits_the_pool_is_served_with_few_preemptions(url: str, run_dir: Path) -> None:
    """E03: three of 64 and 64 tokens where two fit; engines were seen to restart the third for ever."""
    async with door(url, run_dir, worker=small_pool(blocks=18, slots=3)) as served:
        asked = [served.complete(prompt=[number] * 64, max_tokens=64) for number in (5, 6, 7)]
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*asked)
        assert [answer.json["usage"]["completion_tokens"] for answer in answers] == [64] * 3
        assert served.gateway.value("sluicegate_preemptions_total") <= 4
        assert len(served.worker.plans) < 2 * 3 * 64
        await served.idle()


async def tell(served: Door, name: str, path: str) -> str:
    """All that a stream brings, of a request that is ``name`` in whatever could be marked."""
    asked: dict[str, Any] = {
        "model": "fake",
        "max_tokens": 60,
        "ignore_eos": True,
        "stream": True,
        "stop": [name + "!"],
    }
    asked |= {"prompt": name} if path == COMPLETIONS else {"messages": [{"role": "user", "content": name}]}
    async with served.http.post(path, json=asked, headers={ID_HEADER: name}) as answer:
        return await answer.text()


def text_of(told: str) -> str:
    """The text of a stream that ended well."""
    *events, done = told.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    choices = [choice for event in events for choice in json.loads(event.removeprefix("data: "))["choices"]]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


def raising(function: Callable[..., Any], is_marked: Callable[..., bool]) -> Callable[..., Any]:
    """The function, but for the marked request, for which it has a fault."""

    def wrapped(*arguments: Any, **options: Any) -> Any:
        if is_marked(*arguments):
            raise ZeroDivisionError("the test's fault")
        return function(*arguments, **options)

    return wrapped


FAULTS: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "template": (ChatTokenizer, "encode_chat", lambda _, messages, *__: MARK in messages[0]["content"]),
    "tokenizer": (ChatTokenizer, "encode_text", lambda _, text: MARK in text),
    "stop matcher": (StopMatcher, "feed", lambda self, _: self._stops == (MARK + "!",)),
    "writer": (SseResponse, "write", lambda self, _: self._request.headers[ID_HEADER] == MARK),
    "metrics": (RequestRecord, "tokens_arrived", lambda self: self._client_request_id == MARK),
}


@pytest.mark.parametrize("where", [*FAULTS, "sampler"])
async def test_a_fault_in_one_request_of_sixteen_is_the_end_of_that_one_alone(
    url: str, run_dir: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E06: one exception stopped the loop, and everybody else hung behind it."""
    rules: tuple[Rule, ...] = ()
    if where == "sampler":  # as it reports a row whose logits are no numbers
        rules = (Rule(contains=MARK, output=Text(kind="text", text="It ra", then="fail")),)
    else:
        owner, name, is_marked = FAULTS[where]
        monkeypatch.setattr(owner, name, raising(getattr(owner, name), is_marked))
    worker = WorkerPeer(FakeScript(output=Echo(kind="echo"), rules=rules, slots=4))
    async with door(url, run_dir, worker=worker) as served:
        with capture_logs() as logs:
            path = CHAT if where == "template" else COMPLETIONS
            *sound, broken = await asyncio.gather(*(tell(served, name, path) for name in (*STORIES, MARK)))
        assert [name for name, told in zip(STORIES, sound, strict=True) if name not in text_of(told)] == []
        assert "internal_error" in broken
        assert "[DONE]" not in broken
        assert (served.outcome("completed"), served.outcome("internal_error")) == (15, 1)
        assert len([line for line in logs if "exc_info" in line]) == (0 if where == "sampler" else 1)
        assert (await served.complete()).status == 200
        await served.idle()
