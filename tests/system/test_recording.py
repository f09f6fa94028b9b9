"""A live run of everything at once, recorded, and read again: replayed, explained and drawn."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from admission.record.entries import Answered, OfferMade
from admission.record.story import Story
from admission.record.verify import DriverReplay
from gateway.log_files import Logs, read_logs
from gateway.log_stories import read_stories
from gateway.request_ids import ID_HEADER
from tests.system.cluster import ROOT, Cluster, script, start_cluster

pytestmark = pytest.mark.system

NUM_REQUESTS = 240
FEW_SLOTS = script(
    slots=3, blocks=40, block_size=4, context_length=256, delays={"base_us": 3_000, "prefill_token_us": 20}
)
FLAGS = (
    *("--fake-worker", FEW_SLOTS, "--workers", "2", "--queue-requests", "24"),
    *("--token-budget", "32", "--prefill-chunk", "16", "--record-mib", "2"),
)


@dataclass(slots=True)
class Recorded:
    """What the clients saw, and where it was recorded."""

    folder: Path
    outcomes: Counter[str] = field(default_factory=Counter)
    ids: dict[str, str] = field(default_factory=dict)  # an outcome, and the id of one request that had it
    logged_ids: set[str] = field(default_factory=set)


async def ask(session: aiohttp.ClientSession, cluster: Cluster, number: int, chance: random.Random) -> tuple[str, str]:
    """One request of many kinds: how it ended, as its client sees it, and the id in the answer's header."""
    body = {
        "model": "fake",
        "prompt": f"Request {number}, " + "word " * chance.randrange(1, 12),
        "max_tokens": chance.randrange(4, 60),
        "stream": True,
        "n": 2 if number % 23 == 0 else 1,
    }
    if number % 29 == 0:
        body["max_tokens"] = 10_000  # more than fits
    headers = {"x-priority-class": chance.choice(["interactive", "standard", "batch", "batch"])}
    if number % 7 == 0:
        headers["x-request-deadline-ms"] = str(chance.randrange(20, 200))
    leaves = number % 11 == 0
    url = f"{cluster.addresses[number % 2]}/v1/completions"
    async with session.post(url, json=body, headers=headers) as answer:
        request_id = answer.headers[ID_HEADER]
        if answer.status != 200:
            return (await answer.json())["error"]["code"], request_id
        async for line in answer.content:
            if leaves:
                return "left", request_id
            if line.startswith(b'data: {"error"'):
                return json.loads(line[6:])["error"]["code"], request_id
            if line.startswith(b"data: [DONE]"):
                return "completed", request_id
    return "cut", request_id


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recorded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Recorded]:
    """Bursts of more than two workers can take, by two gateways, with a quiet moment between them."""
    folder = tmp_path_factory.mktemp("recorded")
    chance = random.Random(8)
    run = Recorded(folder / "logs")
    async with start_cluster(folder, *FLAGS, "--record", str(run.folder), gateways=2) as cluster:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:

            async def later(number: int) -> None:
                await asyncio.sleep(number % 80 * 0.012)  # the arrival itself: a burst, not a wall
                outcome, request_id = await ask(session, cluster, number, chance)
                run.outcomes[outcome] += 1
                run.ids.setdefault(outcome, request_id)

            for burst in range(0, NUM_REQUESTS, 80):
                await asyncio.gather(*(later(number) for number in range(burst, burst + 80)))
        await cluster.interrupt()
        run.logged_ids = {line["request_id"] for line in _json_lines(cluster.err) if line.get("event") == "request"}
    yield run


def _json_lines(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


@pytest.fixture(scope="module")
def logs(recorded: Recorded) -> Logs:
    return read_logs([recorded.folder])


def test_everything_happened(recorded: Recorded, logs: Logs) -> None:
    """Else the other tests would say little: each kind of end, and both kinds of preemption."""
    assert recorded.outcomes.total() == NUM_REQUESTS
    for outcome in ("completed", "queue_full", "left", "deadline_exceeded", "context_length_exceeded"):
        assert recorded.outcomes[outcome] >= 3, recorded.outcomes
    assert len(logs.drivers) == 2
    assert len(logs.doors) == 2
    stories = read_stories([recorded.folder]).drivers
    pauses = Counter(pause.reason for life in _lives(stories) for pause in life.pauses)
    assert pauses.total() >= 10, pauses
    assert sum(life.cancelled_us is not None for life in _lives(stories)) >= 10
    assert sum(len(segments) for segments in logs.drivers) >= 4, "at least one log was rotated"


def _lives(stories: tuple[Story, ...]) -> Iterator:  # type: ignore[type-arg]
    return (life for story in stories for life in story.lives.values())


@pytest.mark.parametrize("seed", ["1", "77"])
def test_every_plan_comes_out_as_it_was(recorded: Recorded, seed: str) -> None:
    """In another process, with other hashes of strings: nothing but the events decides."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "replay", str(recorded.folder)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, queue, _, _ = done.stdout.splitlines()
    assert len(lines) == 2, "two drivers, and no remark: nothing is missing"
    assert queue.startswith("queue of fake: all is the same in ")
    assert all("are the same, byte for byte" in line for line in lines)


def test_the_log_can_be_cut_at_any_rotation(logs: Logs) -> None:
    """Each segment has all that its own replay needs."""
    num_cuts = 0
    for segments in logs.drivers:
        for first in range(1, len(segments)):
            replay = DriverReplay()
            assert [replay.segment(segment.entries) for segment in segments[first:]] == [None] * (len(segments) - first)
            assert replay.covered().steps > 0
            num_cuts += 1
    assert num_cuts >= 2


def test_the_doors_know_every_request(recorded: Recorded, logs: Logs) -> None:
    """Whatever its end: its id is in the answer's header, in the log line and in the door's log."""
    entries = [entry for door in logs.doors for segment in door for entry in segment.entries]
    answered = {entry.request_id for entry in entries if isinstance(entry, Answered)}
    assert len(answered) == NUM_REQUESTS
    assert answered == recorded.logged_ids
    assert set(recorded.ids.values()) <= answered
    acts = [entry.act for entry in entries if isinstance(entry, OfferMade) and not entry.outcome.value.endswith("full")]
    assert len(set(acts)) > 100


def test_every_kind_of_request_is_explained(recorded: Recorded) -> None:
    """The sentence that its client would want to read is in it."""
    explainer = read_stories([recorded.folder]).explainer()
    wanted = {
        "completed": "the client had its whole answer",
        "queue_full": "was refused: the queue, of 24 places, was full",
        "left": "the client had left",
        "deadline_exceeded": "deadline_exceeded",
        "context_length_exceeded": "the client was told: context_length_exceeded (HTTP 400)",
    }
    for outcome, words in wanted.items():
        explained = explainer.request(recorded.ids[outcome])
        told = "\n".join([sentence.text for each in explained for sentence in each.sentences])
        assert words in told, told
    everything = [sentence.text for name in explainer.sequence_ids() for sentence in explainer.sequence(name).sentences]
    assert any("preempted it, as every slot was taken" in text for text in everything)
    assert any(text.startswith("resumed in slot") for text in everything)
