"""The composition root of one gateway process: settings in, machinery and HTTP side built, run and ended.

Ending, on SIGTERM or SIGINT: unready and refusing first, while the socket still answers; then what was accepted may
finish within the drain time; what has not is cut at its client with a typed end, and what runs for other gateways is
given back for other drivers to continue; last the leases and the directory entry go. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial

import redis.asyncio
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, disable_created_metrics

from admission.presets import preset, queue_order
from admission.queue import QueueBounds, StoreUnavailable
from admission.redis_client import check_server, connect
from gateway.api_keys import ApiKeys
from gateway.app import MetricsAt, build_admin_app, build_app, make_runner
from gateway.assembly import Assembly, AssemblyOptions
from gateway.class_file import read_classes
from gateway.class_table import ClassTable
from gateway.clock import monotonic_us
from gateway.http_settings import HttpSettings
from gateway.key_file import read_keys
from gateway.log_writer import RecordBounds
from gateway.metrics import Metrics
from gateway.open_files import connections_that_fit
from gateway.recording import Recorder
from gateway.settings import GatewaySettings
from gateway.tasks import run_beside

EXIT_AT_ONCE = 130

_log = structlog.get_logger(__name__)


async def serve(settings: GatewaySettings) -> None:
    """Serve until a signal. What makes it impossible to start raises ``SystemExit`` with a sentence."""
    client = connect(settings.redis)
    try:
        await _check_store(client)
        classes, keys = _read_files(settings)
        disable_created_metrics()  # type: ignore[no-untyped-call]  # else one more series for each counter
        metrics = Metrics(CollectorRegistry())
        recorder = _recorder(settings)
        assembly = Assembly(_options(settings, classes), client=client, metrics=metrics, recorder=recorder)
        http = HttpSettings(
            max_body_bytes=settings.max_body_bytes, max_connections=connections_that_fit(settings.max_connections)
        )
        app = build_app(
            dispatcher=assembly.machinery,
            metrics=metrics,
            settings=http,
            classes=classes,
            keys=keys,
            metrics_at=MetricsAt.API if settings.admin is None else MetricsAt.ADMIN,
            door=assembly.door,
        )
        async with _admin_site(settings.admin, metrics, http):
            with _stop_signals() as stop, _reloaded_by_signal(keys):
                try:
                    await _run(settings, assembly, make_runner(app, http), stop)
                finally:
                    if recorder is not None:
                        recorder.close()
    finally:
        await client.aclose()


async def _run(settings: GatewaySettings, assembly: Assembly, runner: web.AppRunner, stop: asyncio.Event) -> None:
    await runner.setup()
    try:
        try:
            await assembly.start()
            await web.TCPSite(runner, settings.host, settings.port).start()
        except OSError as error:
            raise _cannot_listen(error) from None
        _log.info("listening", addresses=[str(address) for address in runner.addresses], relay=assembly.relay.address)
        await run_beside(_until_drained(settings.drain_s, assembly, runner, stop), assembly.run())
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _admin_site(address: str | None, metrics: Metrics, http: HttpSettings) -> AsyncIterator[None]:
    """Serve operators until the very end: how a gateway drains is worth watching."""
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    runner = make_runner(build_admin_app(metrics), http)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        except OSError as error:
            raise _cannot_listen(error) from None
        _log.info("listening for operators", addresses=[str(address) for address in runner.addresses])
        yield
    finally:
        await runner.cleanup()


def _cannot_listen(error: OSError) -> SystemExit:
    return SystemExit(f"sluicegate gateway: cannot listen: {error}")


async def _until_drained(drain_s: float, assembly: Assembly, runner: web.AppRunner, stop: asyncio.Event) -> None:
    """The HTTP side ends before the machinery does: its last answers may still need it."""
    await stop.wait()
    _log.info("draining", streams=len(assembly.streams), drain_s=drain_s)
    await assembly.drain(drain_s)
    await runner.cleanup()
    _log.info("stopped")


@contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    """Set by the first SIGTERM or SIGINT. The second ends the process on the spot."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def take() -> None:
        if stop.is_set():
            os._exit(EXIT_AT_ONCE)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, take)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@contextmanager
def _reloaded_by_signal(keys: ApiKeys) -> Iterator[None]:
    """SIGHUP takes the keys anew. Without keys it means what it means everywhere: the end."""
    if not keys.are_configured:
        _log.info("open: no API keys are configured, so everybody who reaches this gateway may ask")
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, keys.reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


async def _check_store(client: redis.asyncio.Redis) -> None:
    """A Redis that cannot hold a queue is a mistake; one that does not answer yet is waited for, unready."""
    try:
        _log.info("store", redis=await check_server(client))
    except StoreUnavailable as error:
        if error.__cause__ is None:  # it answered, and the answer will not do
            raise SystemExit(f"sluicegate gateway: {error}") from None
        _log.warning("store unreachable at start", error=str(error))


def _read_files(settings: GatewaySettings) -> tuple[ClassTable, ApiKeys]:
    path = settings.api_keys
    try:
        classes = read_classes(settings.classes)
        return classes, ApiKeys() if path is None else ApiKeys(partial(read_keys, path, classes))
    except ValueError as error:  # a file has changed since the settings were checked
        raise SystemExit(f"sluicegate gateway: {error}") from None


def _recorder(settings: GatewaySettings) -> Recorder | None:
    if settings.record is None:
        return None
    bounds = RecordBounds.of(settings.record_mib * 1024 * 1024)
    started = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")  # to the microsecond: a restart takes no second
    try:
        recorder = Recorder(
            settings.record, gateway_id=settings.gateway_id, started=started, clock=monotonic_us, bounds=bounds
        )
    except OSError as error:
        raise SystemExit(
            f"sluicegate gateway: --record {settings.record}: {error.strerror}: {error.filename}"
        ) from None
    _log.info("recording", folder=str(settings.record))
    return recorder


def _options(settings: GatewaySettings, classes: ClassTable) -> AssemblyOptions:
    rule = preset(settings.preset)
    return AssemblyOptions(
        gateway_id=settings.gateway_id,
        relay_address=settings.relay,
        workers=settings.worker,
        preset=rule,
        bounds=QueueBounds(
            max_requests=settings.queue_requests,
            max_tokens=settings.queue_tokens,
            max_bytes=settings.queue_bytes,
            max_passes=rule.max_passes,
        ),
        classes=tuple(classes),
        waiting_order=settings.waiting_order or queue_order(rule),
        secret=_read_secret(settings),
        token_budget=settings.token_budget,
        prefill_chunk=settings.prefill_chunk,
        preferred_sizes=settings.preferred_sizes,
        max_queue_delay_us=1_000 * settings.max_queue_delay_ms,
        max_slots=settings.max_slots,
        kv_blocks=settings.kv_blocks,
        max_moves=settings.max_moves,
        progress_timeout_s=settings.worker_timeout_s,
    )


def _read_secret(settings: GatewaySettings) -> bytes:
    """Without surrounding white space, as workers read it; empty when no file is set."""
    if settings.secret_file is None:
        return b""
    try:
        secret = settings.secret_file.read_bytes().strip()
    except OSError as error:
        raise SystemExit(f"sluicegate gateway: cannot read {settings.secret_file}: {error.strerror}") from None
    if not secret:
        raise SystemExit(f"sluicegate gateway: the secret file {settings.secret_file} is empty")
    return secret
