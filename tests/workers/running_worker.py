"""A server over the scripted executor, on a thread of the test, with its log kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from tests.workers.gateway_end import GatewayEnd
from tests.workers.planner import Planner, Request
from workers.fake import FakeExecutor, Host
from workers.fake_script import FakeScript
from workers.link import LinkTimes
from workers.listener import listen, stop_listening
from workers.server import Server
from workers.wire import (
    ReportMessage,
    UnixAddress,
)

BRIEF = LinkTimes(handshake_s=0.2, welcome_s=0.2, frame_s=0.2, send_s=0.2)


class Worker:
    """A server on its own thread, over an executor that can be held within an iteration."""

    def __init__(
        self,
        folder: Path,
        log: list[MutableMapping[str, Any]],
        *,
        secret: bytes,
        times: LinkTimes | None,
        faults: Sequence[Mapping[str, object]],
    ) -> None:
        self.log = log
        self.address = UnixAddress(str(folder / "worker.sock"))
        self.path = Path(self.address.path)
        self.go_on = threading.Event()
        self.is_held = threading.Event()
        script = FakeScript.model_validate({"slots": 4, "blocks": 64, "faults": list(faults)})
        self.executor = FakeExecutor(script, Host(sleep=lambda _: self._hold()))
        self.listener = listen(self.address)
        self.server = Server(self.executor, listener=self.listener, worker_id="worker-0", secret=secret, times=times)
        self._thread = threading.Thread(target=self.server.run)
        self._ends: list[GatewayEnd] = []

    def start(self) -> None:
        self._thread.start()

    def connect(self, *, peer: str = "gateway-0") -> GatewayEnd:
        end = GatewayEnd(self.path, peer=peer)
        self._ends.append(end)
        return end

    def stop(self) -> None:
        self.go_on.set()
        self.server.stop()
        self._thread.join(timeout=5.0)
        assert not self._thread.is_alive()
        stop_listening(self.listener, self.address)
        for end in self._ends:
            end.close()

    def lines(self, event: str) -> list[str]:
        return [str(line.get("reason")) for line in self.log if line["event"] == event]

    def wait_until_held(self) -> None:
        """Until an iteration has begun that a fault of the script holds."""
        assert self.is_held.wait(5.0)

    def _hold(self) -> None:
        self.is_held.set()
        assert self.go_on.wait(5.0)


Start = Callable[..., Worker]
"""Starts a worker that the test's fixture stops: ``start(secret=..., times=..., faults=...)``."""


def assert_serves(worker: Worker, *, epoch: int) -> None:
    """The canary: a new driver gets tokens from an empty worker."""
    end = worker.connect(peer="canary")
    end.drive(epoch=epoch)
    end.send(planner_of(worker, epoch).plan(starts=[Request(prompt=(10, 11, 12))]))
    report = end.receive(ReportMessage)
    assert len(report.tokens) == 1
    assert report.live_blocks == 1
    end.close()


def planner_of(worker: Worker, epoch: int = 1) -> Planner:
    return Planner(worker.executor, epoch=epoch)
