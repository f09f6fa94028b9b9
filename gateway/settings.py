"""The settings of `sluicegate gateway` and `sluicegate up`, each explained by how to size it.

The README's tables are generated from these descriptions.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import CliImplicitFlag, NoDecode

from admission.presets import PRESETS, preset
from admission.standing import WaitingOrderName
from gateway.class_file import read_classes
from gateway.key_file import read_keys
from gateway.links import PROGRESS_TIMEOUT_S
from gateway.settings_sources import CommandSettings
from workers.wire import TcpAddress, parse_address


def _split(value: object) -> object:
    """A list from one text: flags and variables separate by commas, a TOML file gives a list."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _wire_address(value: str) -> str:
    return str(parse_address(value))


Address = Annotated[str, AfterValidator(_wire_address)]
Addresses = Annotated[tuple[Address, ...], NoDecode, BeforeValidator(_split)]
Sizes = Annotated[tuple[Annotated[int, Field(ge=1)], ...], NoDecode, BeforeValidator(_split)]


if TYPE_CHECKING:
    Order = WaitingOrderName
else:
    Order = Literal[tuple(WaitingOrderName)]  # of an enum `--help` shows the names, and not what is written


def _host_and_port(value: str) -> str:
    try:
        parse_address(f"tcp:{value}")
    except ValueError:
        raise ValueError("must be HOST:PORT") from None
    return value


def _redis_url(value: str) -> str:
    if not value.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must be a URL that begins with redis://, rediss:// or unix://")
    return value


RedisUrl = Annotated[str, AfterValidator(_redis_url)]


def _gateway_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _known_preset(name: str) -> str:
    preset(name)  # a ValueError that names the known ones
    return name


def _script_that_is_there(source: str) -> str:
    """Workers read it, and say what is wrong in it; that there is nothing to read is said before anything starts."""
    if source != "default" and not source.lstrip().startswith("{") and not os.access(source, os.R_OK):
        raise ValueError("there is no such file to read; give one, inline JSON, or `default`")
    return source


def _good_classes(path: Path) -> Path:
    read_classes(path)  # a ValueError that names every wrong field
    return path


class ServingSettings(CommandSettings):
    """What a gateway decides with, whether it was started alone or by `up`."""

    preset: Annotated[str, AfterValidator(_known_preset)] = Field(
        "sluicegate", description=f"scheduling rule: {', '.join(PRESETS)}"
    )
    token_budget: int = Field(
        256, ge=1, description="tokens per iteration; more raises throughput and the time between tokens alike"
    )
    max_slots: int | None = Field(
        None,
        ge=1,
        description="sequences in a worker's running batch, at most the token budget (if not given: the worker's own)",
    )
    prefill_chunk: int = Field(
        128, ge=1, description="most prompt tokens of one sequence per iteration; keeps one long prompt from filling it"
    )
    preferred_sizes: Sizes = Field(
        (), description="only `request-dynamic`: sizes at which a batch starts at once, by commas; none: the slots"
    )
    max_queue_delay_ms: int = Field(
        0, ge=0, le=60_000, description="only `request-dynamic`: how long the first of a smaller batch waits for others"
    )
    waiting_order: Order | None = Field(
        None,
        description="order of the waiting queue, the same in all gateways: "
        f"{', '.join(WaitingOrderName)} (if not given: the preset's)",
    )
    classes: Annotated[Path, AfterValidator(_good_classes)] | None = Field(
        None,
        description="TOML file with the priority classes, the same for all gateways"
        " (if not given: interactive, standard and batch, as in deploy/classes.toml)",
    )
    api_keys: Path | None = Field(
        None, description="TOML file with the API keys (if not given: everybody may ask); SIGHUP reads it again"
    )
    queue_requests: int = Field(
        256,
        ge=0,
        description="requests that may wait in the whole cluster; beyond it clients get 429. 0: none waits. Each choice"
        " of each prompt is one, so a request may have no more of them than this (or one)",
    )
    queue_tokens: int = Field(
        1_000_000, ge=0, description="prompt and expected output tokens that may wait in the whole cluster"
    )
    queue_bytes: int = Field(
        256 * 1024 * 1024,
        ge=0,
        description="bytes of prompts and parameters that may wait in Redis; give Redis more memory than twice that",
    )
    drain_s: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="seconds that running streams may take to finish at shutdown, before they are cut",
    )
    max_moves: int = Field(
        2,
        ge=0,
        le=100,
        description="how often a request goes on elsewhere when what ran it is lost; one that kills workers takes"
        " one more than that with it",
    )
    record: Path | None = Field(
        None,
        description="folder for the log of every decision, which `replay`, `explain` and `trace` read"
        " (if not given: nothing is recorded)",
    )
    record_mib: int = Field(
        1024,
        ge=1,
        description="MiB that the logs of one gateway may take, about; beyond it its oldest sixteenth is deleted",
    )
    worker_timeout_s: float = Field(
        PROGRESS_TIMEOUT_S,
        gt=0,
        le=3600,
        description="seconds without a report after which a worker counts as lost; above its slowest iteration, a whole"
        " token budget of prompt",
    )
    max_body_bytes: int = Field(
        4 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024, description="largest request body; beyond it 413"
    )
    max_connections: int = Field(
        4096,
        ge=1,
        le=100_000,
        description="HTTP connections of a gateway, idle ones too; beyond it 503, but for health checks",
    )

    @model_validator(mode="after")
    def _keys_are_good(self) -> Self:
        if self.api_keys is not None:
            try:
                read_keys(self.api_keys, read_classes(self.classes))
            except ValueError as error:
                raise ValueError(f"--api-keys {self.api_keys}: {error}") from None
        return self

    @model_validator(mode="after")
    def _every_slot_can_decode(self) -> Self:
        if self.max_slots is not None and self.max_slots > self.token_budget:
            raise ValueError(
                f"--max-slots {self.max_slots} is more than --token-budget {self.token_budget}: "
                "every slot decodes one token in every iteration"
            )
        return self


class GatewaySettings(ServingSettings):
    """One gateway process. Addresses of workers and relays are `unix:/path.sock` or `tcp:HOST:PORT`."""

    command: ClassVar[str] = "gateway"

    host: str = Field("127.0.0.1", description="address to listen on for HTTP")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on for HTTP; 0 takes any that is free")
    redis: RedisUrl = Field("redis://127.0.0.1:6379/0", repr=False, description="the Redis that all gateways share")
    worker: Addresses = Field((), description="workers to dial, separated by commas or repeated")
    relay: Address = Field(
        "tcp:127.0.0.1:9080", description="own address for output from other gateways, as they can reach it"
    )
    admin: Annotated[str, AfterValidator(_host_and_port)] | None = Field(
        None, description="HOST:PORT to which /metrics moves (if not given: beside the API, for whoever has a key)"
    )
    gateway_id: str = Field(
        default_factory=_gateway_id,
        pattern=r"^[A-Za-z0-9_.:-]{1,128}$",
        description="name in the cluster; unique",
    )
    kv_blocks: int | None = Field(
        None, ge=1, description="use at most so many KV blocks of a worker (if not given: all)"
    )
    secret_file: Path | None = Field(
        None,
        description="file with the secret shared with workers and gateways; needed beyond Unix sockets and loopback",
    )

    @model_validator(mode="after")
    def _relay_is_safe(self) -> Self:
        relay = parse_address(self.relay)
        if isinstance(relay, TcpAddress) and not relay.is_loopback and self.secret_file is None:
            raise ValueError(f"--relay {relay} can be reached from other machines, so it needs --secret-file")
        return self


class UpSettings(ServingSettings):
    """Everything on one machine: Redis, workers and gateways as children of one command."""

    command: ClassVar[str] = "up"

    host: str = Field("127.0.0.1", description="address that the gateways listen on for HTTP")
    port: int = Field(8080, ge=1, le=65535, description="port of the first gateway; the others take the next ones")
    gateways: int = Field(1, ge=1, le=64, description="number of gateway processes")
    workers: int = Field(1, ge=1, le=64, description="number of worker processes; each loads the model")
    redis: RedisUrl | None = Field(
        None, repr=False, description="use this Redis (if not given: one is started, private to this run)"
    )
    model: str | None = Field(
        None,
        description="path or hub id of any causal language model (if not given: SmolLM2-135M-Instruct, as installed)",
    )
    model_cache: Path | None = Field(
        None, description="folder for converted models (if not given: sluicegate/models under the user's cache folder)"
    )
    served_model_name: str | None = Field(
        None, min_length=1, description="name that clients ask for (if not given: the model's)"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the model runs")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="numbers to compute with; auto is bfloat16 on GPUs and with --quantize, else float32"
    )
    kv_blocks: int | None = Field(
        None, ge=1, description="blocks in a worker's KV pool (if not given: the worker's own)"
    )
    swap_mib: int | None = Field(
        None,
        ge=1,
        description="MiB of a worker's host memory for preempted sequences' KV (if not given: it is computed again)",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="threads that a worker computes with on the CPU (if not given: one for each usable core)",
    )
    deterministic: CliImplicitFlag[bool] = Field(
        False,
        description="let no request's output depend on what else is in the batch, in bfloat16 either; slow where the"
        " forward is not fused, see docs/worker.md",
    )
    forward: Literal["auto", "fused", "packed", "generic"] = Field(
        "auto",
        description="whose forward pass computes: for common decoders on a CPU our own, over compiled kernels (fused)"
        " or in torch alone (packed); or transformers' (generic)",
    )
    quantize: Literal["int8"] | None = Field(
        None, description="keep the model's weights in eight bits: half the memory of bfloat16; see docs/performance.md"
    )
    max_model_len: int | None = Field(
        None, ge=1, description="longest prompt and output together, in tokens (if not given: the model's context)"
    )
    fake_worker: Annotated[str, AfterValidator(_script_that_is_there)] | None = Field(
        None,
        min_length=1,
        description="instead of a model, play a script (a file, inline JSON, or `default`); no torch needed",
    )
    start_timeout_s: float = Field(
        900.0, gt=0, le=86400, description="longest wait until every gateway serves; a first start may download a model"
    )

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        if self.port + self.gateways - 1 > 65535:
            raise ValueError(f"--port {self.port} leaves no room for {self.gateways} consecutive ports")
        if self.fake_worker is not None and self.model is not None:
            raise ValueError("--fake-worker plays a script instead of a model: give it or --model, not both")
        return self
