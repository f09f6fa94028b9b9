"""`sluicegate up` over small stand-in programs: the order of things, and how they end."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from gateway.console import Console
from gateway.fleet import Fleet
from gateway.probe import Probe
from gateway.process import Child, ChildSpec
from gateway.supervise import Service
from gateway.up import Up
from tests.gateway.test_probe import free_port
from tests.support import wait_until

# Notes its name when told to stop, then ends.
STAND_IN = """
import pathlib, signal, sys
name, journal = sys.argv[1:3]
def stop(*_):
    with open(journal, "a") as file: file.write(name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
"""
WORKER = STAND_IN + "signal.pause()"
GATEWAY = (
    STAND_IN
    + """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": "stand-in"}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()
"""
)
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"


class Stage:
    """One `up` over stand-ins, with all that it said and in which order they stopped."""

    def __init__(self, tmp_path: Path) -> None:
        self.port = free_port()
        self.out = io.StringIO()
        self.err = io.StringIO()
        self._console = Console(self.out, self.err)
        self._journal = tmp_path / "journal"

    def service(self, name: str, program: str, *args: str) -> Service:
        argv = (sys.executable, "-c", program, name, str(self._journal), *args)
        spec = ChildSpec(name=name, argv=argv, env=dict(os.environ), stop_grace_s=20.0)
        return Service(name, partial(Child.start, spec, self._console.child_line))

    def gateway(self, program: str = GATEWAY) -> Service:
        return self.service("gateway 0", program, str(self.port))

    def up(self, probe: Probe, *, worker: str = WORKER, gateway: str = GATEWAY, start_timeout_s: float = 20.0) -> Up:
        fleet = Fleet(
            redis=self.service("redis", WORKER),
            workers=(self.service("worker 0", worker),),
            gateways=(self.gateway(gateway),),
        )
        return Up(fleet, probe, self._console, model="stand-in", start_timeout_s=start_timeout_s)

    @property
    def stopped(self) -> list[str]:
        return self._journal.read_text().split("\n")[:-1] if self._journal.exists() else []


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
async def probe(stage: Stage) -> AsyncIterator[Probe]:
    async with Probe("127.0.0.1", [stage.port]) as probe:
        yield probe


async def test_it_tells_the_address_when_ready_and_stops_in_order(stage: Stage, probe: Probe) -> None:
    """Streams drain through workers, so these go after the gateways; Redis holds the books to the end."""
    up = stage.up(probe)
    run = asyncio.create_task(up.run())
    await wait_until(lambda: "Ctrl-C stops it." in stage.out.getvalue(), "it is ready", timeout_s=20)
    assert "Serving stand-in after" in stage.out.getvalue()
    assert f"curl -N http://127.0.0.1:{stage.port}/v1/chat/completions" in stage.out.getvalue()

    up.interrupt()

    assert await asyncio.wait_for(run, 20) == 0
    assert stage.stopped == ["gateway 0", "worker 0", "redis"]
    assert stage.err.getvalue() == ""


async def test_a_worker_that_cannot_load_ends_it_with_the_workers_sentence(stage: Stage, probe: Probe) -> None:
    """The person typed a wrong model name; what they need is that sentence, and their prompt back."""
    up = stage.up(probe, worker="import sys; sys.exit('there is no model named nope')", gateway=WORKER)

    assert await asyncio.wait_for(up.run(), 20) == 1

    last = stage.err.getvalue().splitlines()[-1]
    assert last == "sluicegate up: worker 0 ended (exit code 1): there is no model named nope"


async def test_an_interrupt_while_loading_is_an_orderly_stop(stage: Stage, probe: Probe) -> None:
    """Loading a large model takes minutes, and people change their minds."""
    up = stage.up(probe, gateway=WORKER)
    run = asyncio.create_task(up.run())
    await wait_until(lambda: "loading stand-in" in stage.out.getvalue(), "it loads", timeout_s=20)

    up.interrupt()

    assert await asyncio.wait_for(run, 20) == 0
    assert "Serving" not in stage.out.getvalue()


async def test_a_start_that_takes_too_long_is_given_up(stage: Stage, probe: Probe) -> None:
    """Nothing waits without a bound."""
    up = stage.up(probe, gateway=WORKER, start_timeout_s=0.5)

    assert await asyncio.wait_for(up.run(), 20) == 1
    assert "gave up" in stage.err.getvalue()


async def test_a_second_interrupt_kills_what_does_not_stop(stage: Stage, probe: Probe) -> None:
    """Whoever presses Ctrl-C twice wants the prompt back now."""
    up = stage.up(probe, worker=DEAF)
    run = asyncio.create_task(up.run())
    await wait_until(lambda: "Ctrl-C stops it." in stage.out.getvalue(), "it is ready", timeout_s=20)
    await wait_until(lambda: "deaf" in stage.err.getvalue(), "the worker ignores signals", timeout_s=20)

    up.interrupt()
    up.interrupt()

    assert await asyncio.wait_for(run, 5) == 1
