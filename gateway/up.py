"""`sluicegate up`: Redis, workers and gateways as children of one command, until Ctrl-C.

Order matters twice. Workers start first, for they take longest, and gateways when Redis answers. Everything ends the
other way round: gateways drain their streams while the workers still serve them, then the workers, and Redis last.
Sockets lie in a run directory that only this user may enter and that goes away with the command.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from gateway.console import Console
from gateway.fleet import Fleet, build_fleet, run_directory
from gateway.logs import configure_logs
from gateway.probe import Probe, first_unusable_port, redis_problem
from gateway.settings import UpSettings
from gateway.supervise import StartFailed
from gateway.welcome import KEY_HEADER, welcome

PROBE_EVERY_S = 0.2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_up(settings: UpSettings) -> int:
    """Serve until a signal; the exit code: 0 after a stop, 1 when something could not start or had to be killed."""
    configure_logs("up")
    return asyncio.run(_up(settings))


async def _up(settings: UpSettings) -> int:
    console = Console()
    ports = range(settings.port, settings.port + settings.gateways)
    problem = first_unusable_port(settings.host, ports)
    if problem is None and settings.redis is not None:
        problem = await redis_problem(settings.redis)
    if problem is not None:
        console.complain(problem)
        return 1
    with run_directory() as run_dir:
        async with Probe(settings.host, ports) as probe:
            fleet = build_fleet(settings, run_dir, console.child_line)
            up = Up(
                fleet,
                probe,
                console,
                model=settings.served_model_name or settings.fake_worker or settings.model or "the model",
                headers=() if settings.api_keys is None else (KEY_HEADER,),
                start_timeout_s=settings.start_timeout_s,
            )
            loop = asyncio.get_running_loop()
            for number in STOP_SIGNALS:
                loop.add_signal_handler(number, up.interrupt)
            return await up.run()


class Up:
    """One run of the command. ``interrupt`` asks for an orderly stop; asked again, it kills.

    ``headers`` are what a client has to send along.
    """

    def __init__(
        self,
        fleet: Fleet,
        probe: Probe,
        console: Console,
        *,
        model: str,
        start_timeout_s: float,
        headers: Sequence[str] = (),
    ) -> None:
        self._fleet = fleet
        self._probe = probe
        self._console = console
        self._model = model
        self._start_timeout_s = start_timeout_s
        self._headers = headers
        self._stop = asyncio.Event()
        self._killed = False
        self._begun_s = asyncio.get_running_loop().time()

    def interrupt(self) -> None:
        if self._stop.is_set():
            self._killed = True
            for service in self._fleet.services:
                service.kill()
        self._stop.set()

    async def run(self) -> int:
        exit_code = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    await self._start(tasks)
                    await self._stop.wait()
                    self._console.say("Stopping; running streams may finish first (Ctrl-C again: at once).")
                finally:
                    await self._stop_in_order()
        except* StartFailed as failures:
            for failure in failures.exceptions:
                self._console.complain(str(failure))
            exit_code = 1
        return 1 if self._killed else exit_code

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        """Start everything and say when it serves. Returns early when asked to stop. Raises ``StartFailed``."""
        for worker in self._fleet.workers:
            tasks.create_task(worker.run(), name=worker.name)
        if self._fleet.redis is not None:
            tasks.create_task(self._fleet.redis.run(), name=self._fleet.redis.name)
            await self._wait_for(self._fleet.redis.is_started, "starting Redis")
        for gateway in self._fleet.gateways:
            tasks.create_task(gateway.run(), name=gateway.name)
        await self._wait_for(self._probe.all_ready, f"loading {self._model}")
        if not self._stop.is_set():
            for service in self._fleet.services:
                service.settle()
            model = await self._probe.model() or self._model
            self._console.say(welcome(self._probe.addresses, model, self._elapsed_s(), self._headers))

    async def _wait_for(self, condition: Callable[[], Awaitable[bool]], stage: str) -> None:
        """Wait until ``condition`` holds or a stop is asked for. Raises ``StartFailed`` when it takes too long."""
        while not self._stop.is_set() and not await condition():
            self._console.progress(stage, self._elapsed_s())
            if self._elapsed_s() > self._start_timeout_s:
                raise StartFailed(f"gave up {stage} after {self._start_timeout_s:.0f} s (see --start-timeout-s)")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), PROBE_EVERY_S)

    async def _stop_in_order(self) -> None:
        for group in self._fleet.stop_order:
            await asyncio.gather(*(service.stop() for service in group))

    def _elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._begun_s
