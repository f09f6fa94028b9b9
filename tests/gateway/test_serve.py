"""One whole gateway in this process, over HTTP, from its start to its stop by a signal."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.serve import serve
from gateway.settings import GatewaySettings
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[tuple[aiohttp.ClientSession, asyncio.Task[None]]]:
    """A gateway that is ready, and a client of it."""
    port = free_port()
    task = asyncio.create_task(serve(GatewaySettings(port=port, gateway_id="g0", **settings)))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:

        async def is_ready() -> bool:
            try:
                async with http.get("/readyz") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await wait_until(is_ready, "the gateway is ready")
        yield http, task
    if not task.done():
        os.kill(os.getpid(), signal.SIGTERM)
        await task


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": "Hello there", "ignore_eos": True} | fields


async def test_a_completion_streams_over_http_and_a_signal_drains_it(url: str, run_dir: Path) -> None:
    """D14: unready and refusing at once, yet the open stream ends as if nothing had happened."""
    peer = WorkerPeer()
    await peer.start(f"unix:{run_dir}/w0")
    async with served(redis=url, worker=(peer.address,), relay=f"unix:{run_dir}/r") as (http, task):
        async with http.post("/v1/completions", json=body(max_tokens=1500, stream=True)) as stream:
            assert stream.status == 200
            await stream.content.readline()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)

            async def is_draining() -> bool:
                async with http.get("/readyz") as answer:
                    return answer.status == 503

            await wait_until(is_draining, "the gateway is unready")
            async with http.post("/v1/completions", json=body(max_tokens=1)) as refused:
                assert (refused.status, refused.headers["x-sluicegate-reason"]) == (503, "draining")
            lines = [line async for line in stream.content]
        assert lines[-2].strip() == b"data: [DONE]"
        ends = [json.loads(line[6:])["choices"][0]["finish_reason"] for line in lines if line.startswith(b"data: {")]
        assert ends[-1] == "length"
        async with asyncio.timeout(5.0):
            await task
    await peer.kill()


async def test_a_client_that_goes_away_frees_its_slot(url: str, run_dir: Path) -> None:
    """Nothing is generated for nobody."""
    peer = WorkerPeer()
    await peer.start(f"unix:{run_dir}/w0")
    async with served(redis=url, worker=(peer.address,), relay=f"unix:{run_dir}/r") as (http, _):
        stream = await http.post("/v1/completions", json=body(max_tokens=2000, stream=True))
        await stream.content.readline()
        stream.close()

        async def is_free() -> bool:
            async with http.get("/metrics") as answer:
                text = await answer.text()
            return "sluicegate_slots_in_use 0.0" in text and "sluicegate_kv_blocks_in_use 0.0" in text

        await wait_until(is_free, "slot and blocks are free", timeout_s=2.0)
        assert len(peer.plans) < 2000
    await peer.kill()


async def test_keys_are_read_again_on_sighup_and_metrics_have_their_own_address(
    url: str, run_dir: Path, tmp_path: Path
) -> None:
    """A key is given out or taken back without a restart; operators ask where clients cannot."""
    peer = WorkerPeer()
    await peer.start(f"unix:{run_dir}/w0")
    file, admin = tmp_path / "keys.toml", f"127.0.0.1:{free_port()}"

    def write(secret: str) -> None:
        file.write_text(f'[web]\nsha256 = "{hashlib.sha256(secret.encode()).hexdigest()}"\n')

    write("first")
    settings = {"redis": url, "worker": (peer.address,), "relay": f"unix:{run_dir}/r", "api_keys": file, "admin": admin}
    async with served(**settings) as (http, _):

        async def status(secret: str) -> int:
            async with http.get("/v1/models", headers={"Authorization": f"Bearer {secret}"}) as answer:
                return answer.status

        async def second_is_known() -> bool:
            return await status("second") == 200

        assert (await status("first"), await status("second")) == (200, 401)
        write("second")
        os.kill(os.getpid(), signal.SIGHUP)
        await wait_until(second_is_known, "the new key is known")
        assert await status("first") == 401
        async with http.get("/metrics", headers={"Authorization": "Bearer second"}) as answer:
            assert answer.status == 404
        async with http.get(f"http://{admin}/metrics") as answer:
            page = await answer.text()
        assert "sluicegate_requests" in page
        assert "_created" not in page, "series that say only when the process began"
        async with http.get(f"http://{admin}/v1/models") as answer:
            assert answer.status == 404
    await peer.kill()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"secret_file": Path("/nothing/there")}, "cannot read"),
        ({"relay": "unix:/nothing/there"}, "cannot listen"),
    ],
)
async def test_what_makes_a_start_impossible_is_said_in_a_sentence(
    url: str, settings: dict[str, Any], problem: str
) -> None:
    """An operator reads one line, not a traceback."""
    with pytest.raises(SystemExit, match=problem):
        await serve(GatewaySettings(port=0, gateway_id="g0", **({"redis": url, "relay": "tcp:127.0.0.1:0"} | settings)))
