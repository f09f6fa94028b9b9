"""A gateway's HTTP side over a fake dispatcher, on a real socket."""

from __future__ import annotations

import asyncio
import functools
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import redis.asyncio
from aiohttp import web
from prometheus_client import CollectorRegistry

from admission.classes import DEFAULT_CLASSES, PriorityClass
from gateway.api_keys import ApiKeys
from gateway.app import HttpSettings, MetricsAt, build_app, make_runner
from gateway.class_table import ClassTable
from gateway.metrics import Metrics
from gateway.redis_server import RedisServer
from tests.gateway.counted import counted
from tests.gateway.fakes import MODEL, FakeDispatcher
from tests.gateway.worker_peer import WorkerPeer
from workers.fake_script import Echo, FakeScript


@dataclass
class Gateway:
    """The server under test, and two clients of it: plain HTTP and the official SDK."""

    port: int
    dispatcher: FakeDispatcher
    metrics: Metrics
    http: aiohttp.ClientSession
    runner: web.AppRunner
    closing: AsyncExitStack

    @functools.cached_property
    def sdk(self) -> openai.AsyncOpenAI:
        """Made when a test first uses it: it reads all of the machine's certificates, in 15 ms, and few tests do."""
        sdk = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0)
        self.closing.push_async_exit(sdk)
        return sdk

    def transports(self) -> list[asyncio.Transport]:
        """The server's side of every open connection."""
        server = self.runner.server
        assert server is not None
        return [connection.transport for connection in server.connections if connection.transport is not None]

    def outcome(self, name: str) -> float:
        return counted(self.metrics.registry, "sluicegate_requests_total", outcome=name)

    @property
    def num_requests(self) -> float:
        """All requests counted, whatever their outcome."""
        return counted(self.metrics.registry, "sluicegate_requests_total")

    @property
    def num_open(self) -> float | None:
        return self.metrics.registry.get_sample_value("sluicegate_streams_open")

    async def post(self, path: str, body: Any, **options: Any) -> Reply:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        headers = {"Content-Type": "application/json"} | options.pop("headers", {})
        async with self.http.post(path, data=data, headers=headers, **options) as response:
            return Reply(response.status, response.headers, await response.read())

    async def chat(self, content: Any = "Hi", **fields: Any) -> Reply:
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]} | fields
        return await self.post("/v1/chat/completions", body)

    async def complete(self, prompt: Any = "Hi", **fields: Any) -> Reply:
        return await self.post("/v1/completions", {"model": MODEL, "prompt": prompt} | fields)


@dataclass
class Reply:
    """A whole answer."""

    status: int
    headers: Any
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The error, its shape checked."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return error

    @property
    def events(self) -> list[Any]:
        """The events of a stream, read strictly: ``data:`` lines, each followed by a blank one."""
        text = self.body.decode()
        assert text.endswith("\n\n")
        blocks = text[:-2].split("\n\n")
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
        payloads = [block.removeprefix("data: ") for block in blocks]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]

    @property
    def chunks(self) -> list[Any]:
        """The events of a stream that ended well, without the final ``[DONE]``."""
        events = self.events
        assert events.count("[DONE]") == 1
        assert events[-1] == "[DONE]"
        return events[:-1]


ServeGateway = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def serve() -> AsyncIterator[ServeGateway]:
    """A function that starts gateways, over a dispatcher and with bounds of the test's choice."""
    async with AsyncExitStack() as stack:

        async def start(
            dispatcher: FakeDispatcher | None = None,
            classes: Iterable[PriorityClass] = DEFAULT_CLASSES,
            keys: ApiKeys | None = None,
            metrics_at: MetricsAt = MetricsAt.API,
            **bounds: Any,
        ) -> Gateway:
            settings = HttpSettings(**{"shutdown_s": 0.2, "linger_s": 0.2} | bounds)
            metrics = Metrics(CollectorRegistry())
            machinery = dispatcher or FakeDispatcher()
            app = build_app(
                dispatcher=machinery,
                metrics=metrics,
                settings=settings,
                classes=ClassTable(classes),
                keys=keys or ApiKeys(),
                metrics_at=metrics_at,
            )
            runner = make_runner(app, settings)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            http = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
            return Gateway(port, machinery, metrics, http, runner, stack)

        yield start


@pytest.fixture
async def gateway(serve: ServeGateway) -> Gateway:
    """A gateway with the default bounds, whose model says "Hello world"."""
    return await serve()


@pytest.fixture
async def url(redis_client: redis.asyncio.Redis, redis_server: RedisServer) -> str:
    """An empty Redis."""
    assert await redis_client.dbsize() == 0
    return redis_server.url


@pytest.fixture
async def worker(run_dir: Path) -> AsyncIterator[WorkerPeer]:
    """A worker with two slots that echoes its prompts."""
    peer = WorkerPeer(FakeScript(output=Echo(kind="echo"), slots=2))
    await peer.start(f"unix:{run_dir}/w0")
    yield peer
    peer.gate.set()
    await peer.kill()
