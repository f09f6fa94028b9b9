"""Workers that die, freeze or hang under their streams, in every moment of their life: each stream goes on, whole.

The scripted workers echo, so an answer that has every token of its own once and in order shows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.support import wait_until
from tests.system.cluster import Cluster, descendants, script, start_cluster
from tests.system.load import Outcome, Shot, fire

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

SLOTS = 16
TIMEOUT_S = 2.0
"""How long a worker may be silent: the flag of the clusters here."""


@asynccontextmanager
async def two_workers(folder: Path, **fields: object) -> AsyncIterator[Cluster]:
    """Their iterations take 10 ms, unless ``fields`` of the script say otherwise."""
    slow_echo = script(**{"output": {"kind": "echo"}, "delays": {"base_us": 10_000}, "slots": SLOTS} | fields)
    flags = ("--fake-worker", slow_echo, "--workers", "2", "--max-moves", "9")
    async with start_cluster(folder, *flags, "--worker-timeout-s", str(TIMEOUT_S)) as cluster:
        yield cluster


def workers_of(cluster: Cluster) -> dict[str, int]:
    """Process ids of the workers that run, by the name of their socket."""
    found = {}
    for pid in descendants(cluster.process.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "workers" in words:
                found[Path(words[words.index("--listen") + 1]).name] = pid
    return found


def kill(cluster: Cluster, *names: str) -> None:
    """Those of these names; all, if none is named."""
    running = workers_of(cluster)
    for name in names or running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(running[name], signal.SIGKILL)


def shots(cluster: Cluster, wave: str, *, number: int = 2 * SLOTS, max_tokens: int = 150) -> list[Shot]:
    url = f"{cluster.base_url}/completions"
    return [
        Shot(name=f"{wave}{index:02}", url=url, class_name="standard", max_tokens=max_tokens) for index in range(number)
    ]


async def is_ready(cluster: Cluster) -> bool:
    async with aiohttp.ClientSession() as session, session.get(f"{cluster.addresses[0]}/readyz") as answer:
        return answer.status == 200


async def output_tokens(cluster: Cluster) -> float:
    return await cluster.metric("sluicegate_output_tokens_total")


async def every_slot_is_taken(cluster: Cluster) -> bool:
    return await cluster.metric("sluicegate_slots_in_use") == 2 * SLOTS


def check_whole(outcomes: list[Outcome]) -> None:
    assert [outcome for outcome in outcomes if not outcome.is_served] == []


async def test_streams_of_killed_workers_go_on_whole_and_the_others_do_not_pause(tmp_path: Path) -> None:
    """F01: killed while decoding, while loading, and both at once: no answer cut, none doubled, nothing forgotten."""
    async with two_workers(tmp_path, delays={"base_us": 10_000, "load_s": 1.0}) as cluster:
        firing = asyncio.create_task(fire(shots(cluster, "a"), processes=2))
        await wait_until(lambda: every_slot_is_taken(cluster), "all decode", timeout_s=20)

        kill(cluster, "w0.sock")
        had = await output_tokens(cluster)
        await wait_until(lambda: "w0.sock" in workers_of(cluster), "it is started again", timeout_s=10)
        assert await output_tokens(cluster) >= had + 10 * SLOTS, "the other's streams advance meanwhile"
        kill(cluster, "w0.sock")  # which loads
        assert await is_ready(cluster), "half the capacity is there"
        check_whole(await firing)

        firing = asyncio.create_task(fire(shots(cluster, "b"), processes=2))
        await wait_until(lambda: every_slot_is_taken(cluster), "all decode again", timeout_s=20)

        async def none_is_left() -> bool:
            """Also killed as soon as they are started again, until the gateway has given up on them."""
            kill(cluster)
            return not await is_ready(cluster)

        await wait_until(none_is_left, "no worker serves", timeout_s=20)
        (refused,) = await fire(shots(cluster, "c", number=1), processes=1)
        assert (refused.status, refused.code) == (503, "no_worker")
        assert refused.end_s < 1.0
        check_whole(await firing)
        await wait_until(cluster.is_idle, "everything is given back")


async def test_prompts_of_a_killed_worker_are_computed_again_elsewhere(tmp_path: Path) -> None:
    """F01: nothing has been emitted yet, and nothing may come twice."""
    delays = {"base_us": 10_000, "prefill_token_us": 2_000}
    async with two_workers(tmp_path, delays=delays) as cluster:
        firing = asyncio.create_task(fire(shots(cluster, "a", max_tokens=20), processes=2))
        await wait_until(lambda: every_slot_is_taken(cluster), "all have started", timeout_s=20)
        kill(cluster, "w1.sock")
        check_whole(await firing)
        assert await cluster.metric("sluicegate_moves_total") > 0
        await wait_until(cluster.is_idle, "everything is given back")


async def test_a_frozen_worker_counts_as_lost_and_what_it_says_later_counts_nothing(tmp_path: Path) -> None:
    """F02: its process lives, its socket is open, and only the lack of progress tells."""
    async with two_workers(tmp_path) as cluster:
        firing = asyncio.create_task(fire(shots(cluster, "a"), processes=2))
        await wait_until(lambda: every_slot_is_taken(cluster), "all decode", timeout_s=20)
        frozen = workers_of(cluster)["w0.sock"]
        os.kill(frozen, signal.SIGSTOP)
        try:
            outcomes = await firing
            check_whole(outcomes)
            assert await is_ready(cluster), "the other makes progress"
            check_whole(await fire(shots(cluster, "b"), processes=2))
        finally:
            os.kill(frozen, signal.SIGCONT)
        assert await cluster.metric("sluicegate_moves_total") >= SLOTS
        firing = asyncio.create_task(fire(shots(cluster, "c"), processes=2))
        await wait_until(lambda: every_slot_is_taken(cluster), "it is driven again", timeout_s=20)
        check_whole(await firing)
        assert workers_of(cluster)["w0.sock"] == frozen
        assert await cluster.metric("sluicegate_stale_tokens_total") == 0
        await wait_until(cluster.is_idle, "everything is given back")


async def test_a_worker_that_hangs_in_an_iteration_is_left_alone_until_it_is_back(tmp_path: Path) -> None:
    """F02: it answers handshakes, so it must say by itself that it can take nothing: each try would cost a move."""
    hang = {"kind": "hang", "at": 20, "seconds": 5.0}
    async with two_workers(tmp_path, faults=[hang]) as cluster:
        check_whole(await fire(shots(cluster, "a", number=4 * SLOTS), processes=2))
        assert await cluster.metric("sluicegate_moves_total") <= 2 * SLOTS
        assert await cluster.metric("sluicegate_stale_tokens_total") == 0
        await wait_until(cluster.is_idle, "everything is given back", timeout_s=20)


NO_PLACE_ON_THE_WIRE = {
    "seed": "18446744073709551616",
    "temperature": "NaN",
    "min_tokens": "9223372036854775808",
    "prompt": r'"half a pair: \ud83d"',
    "stop": r'"\ud83d"',
    "logit_bias": '{"18446744073709551616": 1}',
    "metadata": "[" * 2000 + "]" * 2000,
    "max_tokens": "1e400",
}


async def test_values_that_no_message_can_hold_end_at_the_door(tmp_path: Path) -> None:
    """F05: one that got into a plan would end the link, and with it everybody's stream."""
    async with two_workers(tmp_path) as cluster:
        firing = asyncio.create_task(fire(shots(cluster, "a", number=8), processes=1))
        await wait_until(lambda: has_output(cluster), "the neighbours decode", timeout_s=20)
        for field, value in NO_PLACE_ON_THE_WIRE.items():
            fields = {"model": '"fake"', "prompt": '"hi"', "max_tokens": "4"} | {field: value}
            body = "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}"
            assert await status_of(cluster, body) == 400, field
        check_whole(await firing)
        assert await cluster.metric("sluicegate_moves_total") == 0


async def has_output(cluster: Cluster) -> bool:
    return await output_tokens(cluster) > 0


async def status_of(cluster: Cluster, body: str) -> int:
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{cluster.base_url}/completions", data=body, headers=headers) as answer,
    ):
        return answer.status
