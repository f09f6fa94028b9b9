"""The processes of `sluicegate up`, as data: which programs run with which flags at which addresses.

Every child gets all its settings as flags and none of the parent's `SLUICEGATE_*` variables: those belong to `up`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from socket import gethostname
from tempfile import gettempdir, mkdtemp

from gateway.process import Child, ChildSpec
from gateway.redis_child import RedisChild
from gateway.settings import UpSettings
from gateway.settings_sources import environment_without_settings, flag_of
from gateway.supervise import Service

GATEWAY_GRACE_S = 5.0  # beyond the drain time, for closing what was cut
MAX_RUN_DIR_BYTES = 80  # a Unix socket's path ends at 107 bytes, and its name needs some of them
WORKER_GRACE_S = 5.0  # an iteration may have to end first

_DECISIONS = (
    "preset",
    "token_budget",
    "prefill_chunk",
    "preferred_sizes",
    "max_queue_delay_ms",
    "waiting_order",
    "classes",
    "api_keys",
    "queue_requests",
    "queue_tokens",
    "queue_bytes",
    "drain_s",
    "max_moves",
    "record",
    "record_mib",
    "worker_timeout_s",
    "max_body_bytes",
    "max_connections",
    "host",
)
_MODEL = (
    "model",
    "model_cache",
    "served_model_name",
    "device",
    "dtype",
    "max_slots",
    "kv_blocks",
    "swap_mib",
    "threads",
    "deterministic",
    "forward",
    "quantize",
    "max_model_len",
)
_FAKE = ("fake_worker", "served_model_name", "max_slots", "kv_blocks", "max_model_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Everything that one `up` keeps running. ``redis`` is None when an outside one is used."""

    redis: Service | None
    workers: tuple[Service, ...]
    gateways: tuple[Service, ...]

    @property
    def stop_order(self) -> tuple[tuple[Service, ...], ...]:
        return self.gateways, self.workers, () if self.redis is None else (self.redis,)

    @property
    def services(self) -> tuple[Service, ...]:
        return tuple(service for group in self.stop_order for service in group)


def build_fleet(settings: UpSettings, run_dir: Path, on_line: Callable[[str, str], None]) -> Fleet:
    """The children that ``settings`` ask for, none of them started; their output goes to ``on_line(name, line)``."""

    def service(spec: ChildSpec) -> Service:
        return Service(spec.name, partial(Child.start, spec, on_line))

    redis_url = settings.redis or RedisChild.url(run_dir)
    return Fleet(
        redis=Service("redis", partial(RedisChild.start, run_dir)) if settings.redis is None else None,
        workers=tuple(service(worker_spec(settings, run_dir, index)) for index in range(settings.workers)),
        gateways=tuple(
            service(gateway_spec(settings, run_dir, redis_url, index)) for index in range(settings.gateways)
        ),
    )


@contextmanager
def run_directory() -> Iterator[Path]:
    """A new directory for sockets, mode 0700, with a path short enough for them; removed at the end."""
    base = gettempdir()
    if len(os.fsencode(base)) > MAX_RUN_DIR_BYTES - len("/sluicegate-xxxxxxxx"):
        base = "/tmp"  # noqa: S108 (mkdtemp makes a private directory in it)
    path = Path(mkdtemp(prefix="sluicegate-", dir=base))
    try:
        yield path
    finally:
        rmtree(path, ignore_errors=True)


def worker_address(run_dir: Path, index: int) -> str:
    return f"unix:{run_dir / f'w{index}.sock'}"


def relay_address(run_dir: Path, index: int) -> str:
    return f"unix:{run_dir / f'g{index}.sock'}"


def gateway_id(port: int) -> str:
    """The same at every start, as the bound on what a gateway records holds for all its runs; no other may have it.

    The host may have any name; what an id cannot hold of it is left out.
    """
    host = re.sub(r"[^A-Za-z0-9_.:-]+", "-", gethostname())[:100]
    return f"{host}-{port}"


def worker_spec(settings: UpSettings, run_dir: Path, index: int) -> ChildSpec:
    fields = _MODEL if settings.fake_worker is None else _FAKE
    return ChildSpec(
        name=f"worker {index}",
        argv=(
            *(sys.executable, "-m", "workers", "--listen", worker_address(run_dir, index)),
            *_flags(settings, fields),
        ),
        env=_environment(),
        stop_grace_s=WORKER_GRACE_S,
    )


def gateway_spec(settings: UpSettings, run_dir: Path, redis_url: str, index: int) -> ChildSpec:
    workers = [worker_address(run_dir, worker) for worker in range(settings.workers)]
    return ChildSpec(
        name=f"gateway {index}",
        argv=(
            *(sys.executable, "-m", "gateway", "gateway"),
            *("--port", str(settings.port + index)),
            *("--redis", redis_url),
            *("--worker", ",".join(workers)),
            *("--relay", relay_address(run_dir, index)),
            *("--gateway-id", gateway_id(settings.port + index)),
            *_flags(settings, _DECISIONS),
        ),
        env=_environment(),
        stop_grace_s=settings.drain_s + GATEWAY_GRACE_S,
    )


def _flags(settings: UpSettings, fields: tuple[str, ...]) -> list[str]:
    flags: list[str] = []
    for field in fields:
        value = getattr(settings, field)
        if isinstance(value, tuple):
            value = ",".join(map(str, value)) or None
        if value is True:
            flags.append(flag_of(field))
        elif value is not None and value is not False:
            flags += [flag_of(field), str(value)]
    return flags


def _environment() -> dict[str, str]:
    return environment_without_settings(os.environ) | {"PYTHONUNBUFFERED": "1"}
