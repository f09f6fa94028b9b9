"""Sequences that are preempted for a slot or for memory, and go on where they were."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from admission.presets import SLUICEGATE, KvAdmission
from tests.gateway.small_cluster import PROMPT, echoed, is_idle, member, nothing_waits, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript


async def test_a_better_class_takes_the_slot_of_a_lesser_one_which_then_continues(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """The exchange: the victim waits with its tokens, comes back, and goes on where it was."""
    async with member(url, run_dir, workers=(worker.address,), max_slots=1) as gateway:
        await gateway.ready()
        batch = await gateway.submit(class_name="batch", max_tokens=600, prompt_ids=PROMPT)
        first = await anext(batch)
        urgent = await read_all(await gateway.submit(class_name="interactive", max_tokens=20, prompt_ids=PROMPT))
        assert (urgent.token_ids, urgent.finish) == (echoed(20), "length")
        rest = await read_all(batch)
        assert (first.token_ids + rest.token_ids, rest.finish) == (echoed(600), "length")
        assert gateway.value("sluicegate_preemptions_total", reason="slot") == 1
        assert gateway.value("sluicegate_stale_tokens_total") == 0
        await wait_until(lambda: is_idle(gateway), "everything is free again")


@pytest.mark.parametrize("host_blocks", [0, 2, 64])
async def test_sequences_paused_for_memory_continue_where_they_were(url: str, run_dir: Path, host_blocks: int) -> None:
    """A pool that is too small for all of them makes some wait, not fail, and no token is lost.

    They come back from host memory, where the worker has some; what finds no room there is computed again.
    """
    greedy = replace(SLUICEGATE, kv_admission=KvAdmission.PROMPT, watermark_percent=0)  # starts whatever fits now
    script = FakeScript(output=Echo(kind="echo"), slots=4, blocks=16, block_size=4, host_blocks=host_blocks)
    peer = WorkerPeer(script)
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,), preset=greedy) as gateway:
        await gateway.ready()
        peer.gate.clear()
        streams = [await gateway.submit(max_tokens=24, prompt_ids=PROMPT[:4]) for _ in range(4)]
        await wait_until(lambda: nothing_waits(gateway), "all are claimed")
        peer.gate.set()
        answers = await asyncio.gather(*[read_all(stream) for stream in streams])
        assert [(answer.token_ids, answer.finish) for answer in answers] == [(PROMPT[:4] * 6, "length")] * 4
        assert gateway.value("sluicegate_preemptions_total", reason="kv") > 0
        swapped = gateway.value("sluicegate_swapped_tokens_total")
        assert swapped > 0 if host_blocks == 64 else host_blocks > 0 or swapped == 0
        await wait_until(lambda: is_idle(gateway), "everything is free again")
    await peer.kill()
