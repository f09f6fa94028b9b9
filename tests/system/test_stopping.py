"""How everything ends: by a signal, by accident, or before it began."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.support import wait_until
from tests.system.cluster import (
    ROOT,
    Cluster,
    consecutive_free_ports,
    descendants,
    script,
    start_cluster,
    still_running,
)

pytestmark = pytest.mark.system

SLOW = script(output={"kind": "words"}, delays={"base_us": 20_000})


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    """The command, when it is expected to end by itself."""
    command = [sys.executable, "-m", "gateway", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


class Story:
    """A client that reads a stream to its end, however it ends."""

    def __init__(self, cluster: Cluster, *, max_tokens: int = 1500) -> None:
        self.text = ""
        self._url = f"{cluster.base_url}/completions"
        self._body = {"model": "fake", "prompt": "a long story", "max_tokens": max_tokens, "stream": True, "seed": 3}

    async def read(self) -> None:
        async with aiohttp.ClientSession() as session, session.post(self._url, json=self._body) as answer:
            async for chunk in answer.content.iter_any():
                self.text += chunk.decode()

    async def has_begun(self) -> bool:
        return "data: " in self.text

    @property
    def words(self) -> str:
        """What has been told, without the form in which it came."""
        events = [event for event in self.text.split("\n\n") if event.startswith("data: {")]
        choices = [choice for event in events for choice in json.loads(event.removeprefix("data: "))["choices"]]
        return "".join(choice["text"] for choice in choices)

    @property
    def last_event(self) -> str:
        return self.text.strip().rpartition("data: ")[2]


async def test_ctrl_c_while_streaming_leaves_nothing_behind(tmp_path: Path) -> None:
    """D14: no orphan, no traceback, exit code 0; and the stream that was cut says so."""
    async with start_cluster(tmp_path, "--fake-worker", SLOW, "--drain-s", "0.5") as cluster:
        story = Story(cluster)
        reading = asyncio.create_task(story.read())
        await wait_until(story.has_begun, "the stream has begun")
        children = descendants(cluster.process.pid)
        assert len(children) == 3  # gateway, worker, Redis

        assert await cluster.interrupt() == 0

        await asyncio.wait_for(reading, 5)
        assert "error" in json.loads(story.last_event)
        assert still_running(children) == set()
        assert "Traceback" not in cluster.out + cluster.err
        assert '"exception"' not in cluster.err


async def test_a_short_stream_finishes_while_draining(tmp_path: Path) -> None:
    """A restart of a gateway must not cut what needs only a moment more."""
    async with start_cluster(tmp_path, "--fake-worker", SLOW, "--drain-s", "20") as cluster:
        story = Story(cluster, max_tokens=60)
        reading = asyncio.create_task(story.read())
        await wait_until(story.has_begun, "the stream has begun")

        assert await cluster.interrupt() == 0

        await asyncio.wait_for(reading, 5)
        assert story.last_event == "[DONE]"


async def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    """After kill -9 nobody is there to stop them, and a forgotten worker holds gigabytes."""
    async with start_cluster(tmp_path, "--fake-worker", "default") as cluster:
        children = descendants(cluster.process.pid)
        run_dir = run_directory_of(cluster)
        cluster.process.kill()
        await cluster.process.wait()
        await wait_until(lambda: not still_running(children), "every child has ended")
        shutil.rmtree(run_dir)  # the one thing that stays behind


RUN_OF_TESTS = """
import asyncio, pathlib, sys
from tests.system.cluster import descendants, start_cluster

async def run():
    async with start_cluster(pathlib.Path(sys.argv[1]), "--fake-worker", "default") as cluster:
        print(cluster.process.pid, *descendants(cluster.process.pid), flush=True)
        await asyncio.sleep(600)

asyncio.run(run())
"""


async def test_a_run_of_tests_that_is_killed_leaves_nothing(tmp_path: Path, run_dir: Path) -> None:
    """Whoever ends it with -9 is seldom somebody who looks for what it had started."""
    tests = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN_OF_TESTS, str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(run_dir)},  # for the one thing that stays behind
    )
    assert tests.stdout is not None
    started = {int(pid) for pid in (await tests.stdout.readline()).split()}
    assert len(started) == 4, "up, gateway, worker, Redis"
    tests.kill()
    await tests.wait()
    await wait_until(lambda: not still_running(started), "all have ended")


async def test_the_stream_of_a_worker_that_is_killed_goes_on_when_it_is_back(tmp_path: Path) -> None:
    """Its client notices a pause, and gets the very text that it would have got."""
    async with start_cluster(tmp_path, "--fake-worker", SLOW) as cluster:
        undisturbed = Story(cluster, max_tokens=100)
        await undisturbed.read()
        story = Story(cluster, max_tokens=100)
        reading = asyncio.create_task(story.read())
        await wait_until(story.has_begun, "the stream has begun")

        os.kill(worker_of(cluster), signal.SIGKILL)

        await asyncio.wait_for(reading, 30)
        assert story.last_event == "[DONE]"
        assert story.words == undisturbed.words
        assert await cluster.metric("sluicegate_moves_total") == 1
        await wait_until(cluster.is_idle, "everything is given back")


def test_an_unknown_flag_is_one_line() -> None:
    """A misspelt limit must not leave the default in force."""
    result = run("up", "--queue-request", "8")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "sluicegate up: unrecognized arguments: --queue-request 8\n"


def test_a_script_that_cannot_be_read_ends_the_start_with_its_sentence() -> None:
    """The reason is the last line, not somewhere in a traceback."""
    result = run("up", "--port", str(consecutive_free_ports(1)[0]), "--fake-worker", '{"speed": 1}')
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "the script of the fake worker is not valid: speed" in result.stderr.splitlines()[-1]


@pytest.mark.torch
def test_a_model_that_does_not_exist_ends_the_start_with_its_sentence() -> None:
    """The same for the mistake that everybody makes once."""
    result = run("up", "--port", str(consecutive_free_ports(1)[0]), "--model", "/no/such/model")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "/no/such/model" in result.stderr.splitlines()[-1]


async def test_a_taken_port_is_one_line_and_nothing_is_started(tmp_path: Path) -> None:
    """Found before a model is loaded for nothing."""
    async with start_cluster(tmp_path, "--fake-worker", "default") as cluster:
        port = cluster.addresses[0].rpartition(":")[2]
        result = await asyncio.to_thread(run, "up", "--port", port, "--fake-worker", "default")
    assert result.returncode == 1
    assert result.stderr == f"sluicegate up: cannot listen on port {port} of 127.0.0.1: address already in use\n"


def worker_of(cluster: Cluster) -> int:
    (worker,) = (
        pid for pid in descendants(cluster.process.pid) if b"\0workers\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return worker


def run_directory_of(cluster: Cluster) -> Path:
    words = Path(f"/proc/{worker_of(cluster)}/cmdline").read_text().split("\0")
    return Path(words[words.index("--listen") + 1].removeprefix("unix:")).parent
