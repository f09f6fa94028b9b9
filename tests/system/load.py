"""Load as clients make it, from several processes: what to send and when, and what came of each request.

``fire`` starts the processes (``python -m tests.system.load``), deals the shots out among them and starts all at once.
Each prompt is its own name, so that against a worker that echoes every answer tells whose it is. Nothing is sent a
second time. Times are the clients' own monotonic ones, so they have the clients' delays in them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import aiohttp

from gateway.process import die_with_parent

CLIENT_TIMEOUT_S = 90.0
"""Longer than anything may take here: what is cut by it was never answered, and a test says so."""

LINE_LIMIT = 1 << 26

NO_END = "stream_without_end"
REFUSALS = ("queue_full", "class_full", "queue_tokens_full", "shed", "tenant_limit", "deadline_unreachable")
"""What comes as a 429, and never in an answer that has begun."""

ECHOING = "fake"
"""The scripted worker's model. What another one says is not known here."""

LOSSES = ("worker_lost", "store_unavailable", "deadline_exceeded")

_GO = b"go\n"
_READY = b"ready\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One request to ``url``, ``at_s`` after the start. ``class_name`` empty: a plain GET."""

    name: str
    url: str
    at_s: float = 0.0
    class_name: str = ""
    model: str = ECHOING
    max_tokens: int = 8
    stream: bool = True
    deadline_ms: int | None = None

    @property
    def prompt(self) -> str:
        return f"{self.name};"

    @property
    def echo(self) -> str:
        """The whole answer of an echoing worker: of such a prompt, each character is one token."""
        return (self.prompt * self.max_tokens)[: self.max_tokens]

    def may_be_answered(self, text: str) -> bool:
        """Whether ``text`` is, or begins, an answer to it."""
        return self.model != ECHOING or self.echo.startswith(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came. ``status`` None: no answer at all, ``code`` says why; else ``code`` is that of the error, if any.

    ``finish`` is set for a whole answer only. ``first_s`` and ``end_s`` count from the sending, which was ``sent_s``
    after the start.
    """

    shot: Shot
    status: int | None = None
    code: str = ""
    headers: dict[str, str] | None = None
    text: str = ""
    finish: str = ""
    sent_s: float = 0.0
    first_s: float | None = None
    end_s: float = 0.0

    @property
    def is_served(self) -> bool:
        """Whether the answer is whole: every token of its own, and none twice."""
        is_whole = self.shot.model != ECHOING or len(self.text) == self.shot.max_tokens
        return self.finish == "length" and is_whole and self.shot.may_be_answered(self.text)

    @property
    def is_lost(self) -> bool:
        """Whether it ended with one of the errors for what is lost on the way, and what came before is its own."""
        begun = self.status == 200 and bool(self.text)
        return (
            (begun or self.status in {500, 503, 504}) and self.code in LOSSES and self.shot.may_be_answered(self.text)
        )

    @property
    def is_refused(self) -> bool:
        """Whether it got a clear no, as it should be: a 429 with a reason and a time to come back, and no text."""
        headers = self.headers or {}
        return (
            self.status == 429
            and self.code in REFUSALS
            and self.code == headers.get("x-sluicegate-reason")
            and int(headers.get("retry-after", 0)) >= 1
            and int(headers.get("retry-after-ms", 0)) >= 1
            and not self.text
        )


async def fire(shots: Sequence[Shot], *, processes: int = 4) -> list[Outcome]:
    """Send all ``shots``, each at its time, from so many processes; their outcomes, one for each shot, in order."""
    hands = [shots[number::processes] for number in range(processes)]
    clients = [await _start_client(hand) for hand in hands]
    try:
        for client in clients:
            assert client.stdout is not None
            assert await client.stdout.readline() == _READY
        replies = await asyncio.gather(*(client.communicate(_GO) for client in clients))
    finally:
        for client in clients:
            if client.returncode is None:
                client.kill()
                await client.wait()
    by_name = {outcome.shot.name: outcome for out, _ in replies for outcome in map(_outcome, json.loads(out))}
    return [by_name[shot.name] for shot in shots]


async def _start_client(shots: Sequence[Shot]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "tests.system.load"]
    client = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, limit=LINE_LIMIT, preexec_fn=die_with_parent()
    )
    assert client.stdin is not None
    client.stdin.write(json.dumps([asdict(shot) for shot in shots]).encode() + b"\n")
    await client.stdin.drain()
    return client


def _outcome(fields: dict[str, Any]) -> Outcome:
    return Outcome(**fields | {"shot": Shot(**fields["shot"])})


# --- in a client's process --------------------------------------------------------------------------------------------


async def send_all(shots: Sequence[Shot]) -> list[Outcome]:
    """Send from this very process."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=CLIENT_TIMEOUT_S)
    began = time.perf_counter()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        return await asyncio.gather(*(_send(session, shot, began) for shot in shots))


async def _send(session: aiohttp.ClientSession, shot: Shot, began: float) -> Outcome:
    await asyncio.sleep(max(0.0, began + shot.at_s - time.perf_counter()))
    sent = time.perf_counter()

    def elapsed_s() -> float:
        return time.perf_counter() - sent

    outcome = Outcome(shot=shot, sent_s=sent - began)
    try:
        async with _request(session, shot) as answer:
            outcome = replace(
                outcome, status=answer.status, headers={name.lower(): value for name, value in answer.headers.items()}
            )
            outcome = await _read(answer, outcome, elapsed_s)
    except TimeoutError:
        outcome = replace(outcome, code="client_timeout")
    except (aiohttp.ClientError, OSError) as error:
        outcome = replace(outcome, code=f"connection: {type(error).__name__}")
    return replace(outcome, end_s=elapsed_s())


def _request(session: aiohttp.ClientSession, shot: Shot) -> Any:
    if not shot.class_name:
        return session.get(shot.url)
    body: dict[str, Any] = {"model": shot.model, "prompt": shot.prompt, "stream": shot.stream}
    body |= {"max_tokens": shot.max_tokens, "ignore_eos": True}
    if shot.deadline_ms is not None:
        body["deadline_ms"] = shot.deadline_ms
    return session.post(shot.url, json=body, headers={"x-priority-class": shot.class_name})


async def _read(answer: aiohttp.ClientResponse, outcome: Outcome, elapsed_s: Callable[[], float]) -> Outcome:
    if not outcome.shot.class_name:
        await answer.read()
        return outcome
    if answer.content_type != "text/event-stream":
        return _told(outcome, await answer.json())
    is_done = False
    async for line in answer.content:
        if line == b"data: [DONE]\n":
            is_done = True
        elif line.startswith(b"data: "):
            outcome = _told(outcome, json.loads(line[6:]))
            if outcome.text and outcome.first_s is None:
                outcome = replace(outcome, first_s=elapsed_s())
    return outcome if is_done else replace(outcome, finish="", code=outcome.code or NO_END)


def _told(outcome: Outcome, said: dict[str, Any]) -> Outcome:
    """With what one body, or one event of a stream, adds to it."""
    if "error" in said:
        return replace(outcome, code=said["error"]["code"])
    choice = said["choices"][0]
    return replace(
        outcome, text=outcome.text + choice.get("text", ""), finish=choice.get("finish_reason") or outcome.finish
    )


def main() -> None:
    shots = [Shot(**fields) for fields in json.loads(sys.stdin.buffer.readline())]
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    assert sys.stdin.buffer.readline() == _GO
    json.dump([asdict(outcome) for outcome in asyncio.run(send_all(shots))], sys.stdout)


if __name__ == "__main__":
    main()
