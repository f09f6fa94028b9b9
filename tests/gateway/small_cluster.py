"""Gateways without their HTTP side, several in one process, over real sockets and a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from admission.presets import preset
from admission.queue import QueueBounds
from admission.redis_client import connect
from gateway.assembly import Assembly, AssemblyOptions
from gateway.dispatch import GenerationRequest, SequenceRequest, Tokens
from gateway.metrics import Metrics
from gateway.stream import Stream
from tests.gateway.counted import counted
from tests.support import wait_until
from workers.wire import Sampling

PROMPT = tuple(range(40, 60))


def echoed(num_tokens: int) -> tuple[int, ...]:
    """What an echoing worker says to ``PROMPT``."""
    return (PROMPT * (num_tokens // len(PROMPT) + 1))[:num_tokens]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One running gateway."""

    assembly: Assembly
    metrics: Metrics

    def value(self, name: str, **labels: str) -> float:
        return counted(self.metrics.registry, name, **labels)

    async def submit(self, **changes: Any) -> Stream:
        (stream,) = await self.assembly.machinery.submit(request(**changes))
        return stream

    async def submit_all(self, *sequences: SequenceRequest, **changes: Any) -> tuple[Stream, ...]:
        """One request for all of these."""
        asked = replace(request(**changes), sequences=sequences)
        return await self.assembly.machinery.submit(asked)

    async def ready(self) -> None:
        await wait_until(lambda: self.assembly.machinery.readiness().ready, "the gateway becomes ready")


@contextlib.asynccontextmanager
async def member(redis_url: str, run_dir: Path, name: str = "g0", **changes: Any) -> AsyncIterator[Member]:
    """A gateway that runs until the end of the block."""
    options: dict[str, Any] = {
        "gateway_id": name,
        "relay_address": f"unix:{run_dir}/{name}.relay",
        "workers": (),
        "preset": preset("sluicegate"),
        "bounds": QueueBounds(max_requests=64),
        "unreachable_s": 0.5,
    }
    parts = {part: changes.pop(part) for part in ("clock", "recorder") if part in changes}
    client = connect(redis_url)
    metrics = Metrics(CollectorRegistry())
    assembly = Assembly(AssemblyOptions(**(options | changes)), client=client, metrics=metrics, **parts)
    await assembly.start()
    running = asyncio.create_task(assembly.run())
    try:
        yield Member(assembly=assembly, metrics=metrics)
        assert not running.done(), running
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await client.aclose()


@contextlib.asynccontextmanager
async def driver_and_origin(
    redis_url: str, run_dir: Path, worker: str, **changes: Any
) -> AsyncIterator[tuple[Member, Member]]:
    """Two gateways that are ready: the first drives the worker at that address, the other can only ask for it.

    The other comes once the model is served, so its first beat finds it: nothing waits for a second one.
    """
    async with member(redis_url, run_dir, "driver", workers=(worker,), **changes) as driver:
        await driver.ready()
        async with member(redis_url, run_dir, "origin", **changes) as origin:
            await origin.ready()
            yield driver, origin


SEQUENCE_FIELDS = frozenset({"prompt_ids", "max_tokens", "sampling"})


def request(**changes: Any) -> GenerationRequest:
    """A request for one sequence. ``changes`` are to the request, or to its sequence."""
    of_sequence = {name: value for name, value in changes.items() if name in SEQUENCE_FIELDS}
    of_request = {name: value for name, value in changes.items() if name not in SEQUENCE_FIELDS}
    values: dict[str, Any] = {"request_id": "req", "model": "fake", "class_name": "standard"}
    return GenerationRequest(sequences=(sequence(**of_sequence),), **(values | of_request))


def sequence(**changes: Any) -> SequenceRequest:
    values: dict[str, Any] = {
        "prompt_ids": tuple(range(5, 25)),
        "max_tokens": 8,
        "sampling": Sampling(ignore_eos=True),
    }
    return SequenceRequest(**(values | changes))


async def nothing_waits(gateway: Member) -> bool:
    return (await gateway.assembly.queues.of("fake").stats()).requests == 0


async def is_idle(gateway: Member) -> bool:
    """Nothing runs and nothing waits."""
    return await nothing_waits(gateway) and all(
        gateway.value(name) == 0 for name in ("sluicegate_slots_in_use", "sluicegate_kv_blocks_in_use")
    )


def choices(number: int, **changes: Any) -> tuple[SequenceRequest, ...]:
    """So many choices of one prompt."""
    sampling = changes.pop("sampling", Sampling(ignore_eos=True))
    return tuple(sequence(sampling=replace(sampling, choice=choice), **changes) for choice in range(number))


async def read_all(stream: Stream, timeout_s: float = 10.0) -> Tokens:
    """Everything of a stream, as one item."""
    items: list[Tokens] = []
    async with asyncio.timeout(timeout_s):
        async for tokens in stream:
            items.append(tokens)  # noqa: PERF401 (within the time)
    assert items, "the stream ended without an end"
    return replace(
        items[-1],
        token_ids=tuple(token for item in items for token in item.token_ids),
        logprobs=tuple(logprob for item in items for logprob in item.logprobs),
    )
