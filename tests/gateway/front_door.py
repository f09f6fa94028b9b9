"""A whole gateway in this process: HTTP in front, the machinery behind it, a worker that a test holds in its hand."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from admission.classes import DEFAULT_CLASSES
from gateway.api_keys import ApiKeys
from gateway.app import HttpSettings, build_app, make_runner
from gateway.class_table import ClassTable
from tests.gateway.raw_http import post
from tests.gateway.small_cluster import Member, is_idle, member
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript

PATH = "/v1/completions"


@dataclass(frozen=True, kw_only=True)
class Door:
    """One gateway with one worker. ``http`` is a client of it."""

    gateway: Member
    worker: WorkerPeer
    port: int
    http: aiohttp.ClientSession

    def outcome(self, name: str) -> float:
        return self.gateway.value("sluicegate_requests_total", outcome=name)

    @property
    def slots(self) -> float:
        return self.gateway.value("sluicegate_slots_in_use")

    async def waiting(self) -> int:
        return (await self.gateway.assembly.queues.of("fake").stats()).requests

    async def is_idle(self) -> bool:
        return await is_idle(self.gateway)

    async def idle(self) -> None:
        await wait_until(self.is_idle, "slots, blocks and queue are free again")

    async def complete(self, **fields: Any) -> Answer:
        async with self.http.post(PATH, json=body(**fields)) as answer:
            return Answer(answer.status, dict(answer.headers), await answer.json())


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    json: Any

    @property
    def text(self) -> str:
        return str(self.json["choices"][0]["text"])


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": "tell me a story", "max_tokens": 8, "ignore_eos": True} | fields


def posted(**fields: Any) -> bytes:
    """The same as the bytes of a request."""
    return post(PATH, json.dumps(body(**fields)).encode())


@contextlib.asynccontextmanager
async def door(
    redis_url: str,
    run_dir: Path,
    *,
    worker: WorkerPeer | None = None,
    http_bounds: HttpSettings | None = None,
    **options: Any,
) -> AsyncIterator[Door]:
    """A gateway that is ready, over ``worker``, or one that echoes its prompts."""
    worker = worker or WorkerPeer(FakeScript(output=Echo(kind="echo"), slots=4, blocks=256))
    await worker.start(f"unix:{run_dir}/w0")
    async with member(redis_url, run_dir, workers=(worker.address,), **options) as gateway:
        await gateway.ready()
        async with front_of(gateway, http_bounds) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            yield Door(gateway=gateway, worker=worker, port=port, http=http)
        worker.gate.set()
    await worker.kill()


@contextlib.asynccontextmanager
async def front_of(gateway: Member, bounds: HttpSettings | None = None) -> AsyncIterator[int]:
    """The HTTP side of ``gateway``: the port on which it listens."""
    settings = replace(bounds or HttpSettings(), shutdown_s=0.2, linger_s=0.2)
    app = build_app(
        dispatcher=gateway.assembly.machinery,
        metrics=gateway.metrics,
        settings=settings,
        classes=ClassTable(DEFAULT_CLASSES),
        keys=ApiKeys(),
    )
    runner = make_runner(app, settings)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
