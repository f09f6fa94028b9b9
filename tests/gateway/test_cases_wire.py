"""What lies in Redis is data, whoever put it there."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from admission.keys import QueueKeys
from admission.queue import ClassRule
from tests.gateway.small_cluster import is_idle, member, read_all, request
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until


async def test_a_pickle_in_the_queue_runs_nothing_and_ends_alone(url: str, run_dir: Path, redis_client: Any) -> None:
    """F03: a driver that unpickled a payload would run whatever the store's other users wrote."""
    witness = run_dir / "witness"

    class Touch:
        def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
            return Path.touch, (witness,)

    async def store_is_empty() -> bool:
        return bool(await redis_client.hlen(QueueKeys.of("fake").entries) == 0)

    peer = WorkerPeer()
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,)) as gateway:
        await gateway.ready()
        machinery = gateway.assembly.machinery
        asked = request()
        entry = machinery._entry(asked, asked.sequences[0], None)
        for payload in (pickle.dumps(Touch()), len(pickle.dumps(Touch())).to_bytes(4, "big") + pickle.dumps(Touch())):
            queue = gateway.assembly.queues.of("fake")
            await queue.offer(replace(entry, payload=payload), ClassRule.of(machinery._parts.classes["standard"]))
            await wait_until(store_is_empty, "it has ended")
        assert not witness.exists()
        assert (await read_all(await gateway.submit(max_tokens=4))).finish == "length"
        await wait_until(lambda: is_idle(gateway), "everything is free again")
    await peer.kill()
