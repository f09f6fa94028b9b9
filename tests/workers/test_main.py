"""The worker as a process: it starts, is killed, and goes when it is told to or when nobody is left to tell it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.workers.executor_contract import NOTHING
from tests.workers.gateway_end import GatewayEnd
from workers.wire import ReportMessage

pytestmark = pytest.mark.system

Start = Callable[..., "Process"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}


class Process:
    """One worker process with a script."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.path = folder / "worker.sock"
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers", "--listen", f"unix:{self.path}", *flags],
                stderr=log,
                env=ENVIRONMENT,
            )

    async def until_ready(self) -> None:
        await wait_until(self.path.is_socket, "the worker listens", timeout_s=30.0)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def build(*flags: str) -> Process:
        started.append(Process(tmp_path, *flags))
        return started[-1]

    yield build
    for worker in started:
        worker.process.kill()
        worker.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly(start: Start, number: int) -> None:
    """While a driver is connected, too: code 0, no traceback, no socket left behind."""
    worker = start("--fake-worker", "default")
    await worker.until_ready()
    end = GatewayEnd(worker.path)
    end.drive()
    end.send(NOTHING)
    end.receive(ReportMessage)
    worker.process.send_signal(number)
    assert worker.process.wait(timeout=5.0) == 0
    assert not worker.path.exists()
    end.await_end()
    end.close()
    events = [json.loads(line)["event"] for line in worker.lines()]
    assert events == ["loading", "ready", "driver_connected"]


async def test_a_signal_ends_it_within_an_iteration(start: Start) -> None:
    """A hung iteration is no reason to stay."""
    worker = start("--fake-worker", '{"faults": [{"kind": "hang", "at": 2, "seconds": 600}]}')
    await worker.until_ready()
    end = GatewayEnd(worker.path)
    end.drive()
    end.send(NOTHING, NOTHING)
    end.receive(ReportMessage)
    worker.process.terminate()
    assert worker.process.wait(timeout=5.0) == 0
    end.close()


async def test_a_scripted_crash_is_one(start: Start) -> None:
    """What a driver has to live with: the link ends, and a new worker can take the address."""
    worker = start("--fake-worker", '{"faults": [{"kind": "crash", "at": 1}]}')
    await worker.until_ready()
    end = GatewayEnd(worker.path)
    end.drive()
    end.send(NOTHING)
    end.await_end()
    end.close()
    assert worker.process.wait(timeout=5.0) == -signal.SIGKILL
    worker.path.unlink()
    again = start("--fake-worker", "default", "--max-slots", "3", "--served-model-name", "actor")
    await again.until_ready()
    end = GatewayEnd(again.path)
    hello = end.drive()
    end.close()
    assert (hello.max_slots, hello.card.name) == (3, "actor")


async def test_it_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """A worker without a supervisor would hold its device for nobody."""
    path = tmp_path / "worker.sock"
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'workers', '--listen', 'unix:{path}', "
        "'--fake-worker', 'default'], stderr=subprocess.DEVNULL, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with _python(code) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        await wait_until(path.is_socket, "the worker listens", timeout_s=30.0)
        parent.kill()
    await wait_until(lambda: not _is_running(child), "the worker is gone with its parent")


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (["--nope", "3"], 2, "unrecognized arguments: --nope 3"),
        (["--fake-worker", "{}", "--listen", "unix:/no/such/folder/w.sock"], 1, "cannot listen on unix:/no/such"),
        (["--fake-worker", '{"speed": 1}'], 1, "the script of the fake worker is not valid: speed"),
    ],
)
def test_what_cannot_be_served_is_one_sentence_and_a_code(
    start: Start, flags: list[str], code: int, sentence: str
) -> None:
    """For the person, and for the supervisor."""
    worker = start(*flags)
    assert worker.process.wait(timeout=30.0) == code
    assert worker.lines()[-1].startswith(f"sluicegate worker: {sentence}")
    assert "Traceback" not in worker.log.read_text()


def test_the_scripted_worker_needs_no_torch() -> None:
    """Most tests, and gateways' images, have none."""
    code = "import sys, workers.__main__, workers.fake; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=ENVIRONMENT).returncode == 0


def _python(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=ENVIRONMENT)


def _is_running(pid: int) -> bool:
    """Whether the process still does anything (a zombie waits only for whoever adopted it)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
