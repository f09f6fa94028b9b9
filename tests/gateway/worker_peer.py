"""A worker's end of the wire, under a test's control: it executes plans when the test lets it, and dies on demand."""

from __future__ import annotations

import asyncio

from gateway.frames import FrameConnection
from gateway.handshake import FrameListener
from workers.fake import FakeExecutor
from workers.fake_script import FakeScript
from workers.wire import Hello, PlanMessage, ReportMessage, TokenizerRequest, Welcome


class WorkerPeer:
    """Plays a ``FakeScript`` behind a real socket. ``plans`` is what came; ``gate`` lets plans through while set."""

    def __init__(self, script: FakeScript | None = None, *, secret: bytes = b"", last_epoch: int = 0) -> None:
        self.executor = FakeExecutor(script or FakeScript())
        self.plans: list[PlanMessage] = []
        self.executed = 0
        self.epochs: list[int] = []
        self.last_epoch = last_epoch
        self.gate = asyncio.Event()
        self.gate.set()
        self.address = ""
        self._secret = secret
        self._listener = FrameListener(secret=secret, serve=self._serve)

    async def start(self, address: str) -> None:
        self.address = await self._listener.start(address)

    async def kill(self) -> None:
        """As if the process had died: the connection breaks and nobody listens."""
        await self._listener.close()

    async def restart(self) -> None:
        self._listener = FrameListener(secret=self._secret, serve=self._serve)
        await self._listener.start(self.address)

    def report(self, connection: FrameConnection, report: ReportMessage) -> None:
        """What a test may do otherwise."""
        connection.send(report)

    async def _serve(self, connection: FrameConnection) -> None:
        executor = self.executor
        connection.send(
            Hello(
                worker_id="peer",
                card=executor.card,
                max_slots=executor.max_slots,
                kv_blocks=executor.kv_blocks,
                block_size=executor.block_size,
                last_epoch=self.last_epoch,
                host_blocks=executor.host_blocks,
            )
        )
        waiting: asyncio.Queue[PlanMessage] = asyncio.Queue()
        worker = asyncio.create_task(self._execute(connection, waiting))
        try:
            while True:
                match await connection.receive():
                    case TokenizerRequest():
                        connection.send(executor.tokenizer_files())
                    case Welcome(epoch=epoch):
                        self.last_epoch = epoch
                        self.epochs.append(epoch)
                    case PlanMessage() as plan:
                        self.plans.append(plan)
                        waiting.put_nowait(plan)
                    case other:
                        raise AssertionError(f"a worker got {other}")
        finally:
            worker.cancel()
            executor.reset()

    async def _execute(self, connection: FrameConnection, waiting: asyncio.Queue[PlanMessage]) -> None:
        while True:
            plan = await waiting.get()
            await self.gate.wait()
            self.report(connection, self.executor.execute(plan))
            self.executed += 1
            await asyncio.sleep(0)
