"""The settings of a worker: flag over environment over file over default, and no name that is not known.

A setting has one name in four spellings: the field ``max_slots``, the flag ``--max-slots``, the variable
``SLUICEGATE_MAX_SLOTS`` and the key ``max-slots`` (or ``max_slots``) in the TOML file of ``--config``.
"""

from __future__ import annotations

import argparse
import os
import socket
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    CliImplicitFlag,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from workers.logs import LogFormat
from workers.wire import Address, TcpAddress, parse_address

ENV_PREFIX = "SLUICEGATE_"
MAX_SLOTS = 4096
"""Far more than any batch that pays; below the wire's bound on lists."""


class BadSettings(Exception):
    """Settings that cannot be used; the text has one line for each thing that is wrong."""


class WorkerSettings(BaseSettings):
    """One worker alone: one model, executing the plans of a gateway."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,  # compose files hand on variables that are not set as empty ones
        extra="forbid",
        frozen=True,  # read once, at the edge
        cli_kebab_case=True,
        cli_exit_on_error=False,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    config: Path | None = Field(None, description="TOML file with any of these settings")
    listen: str = Field(
        "unix:sluicegate-worker.sock", description="own address for gateways: unix:/path.sock or tcp:HOST:PORT"
    )
    worker_id: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}", min_length=1, description="name in logs"
    )
    model: str | None = Field(
        None, description="path or hub id of any causal language model (if not given: SmolLM2-135M-Instruct)"
    )
    served_model_name: str | None = Field(
        None, min_length=1, description="name that clients ask for (if not given: the model's)"
    )
    model_cache: Path | None = Field(
        None, description="folder for converted models (if not given: sluicegate/models under the user's cache folder)"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the model runs")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="numbers to compute with; auto is bfloat16 on GPUs and with --quantize, else float32"
    )
    max_slots: int = Field(
        32,
        ge=1,
        le=MAX_SLOTS,
        description="sequences in the running batch; more raises throughput and inter-token time alike",
    )
    kv_blocks: int | None = Field(None, ge=1, description="blocks in the KV pool (if not given: what memory allows)")
    block_size: int = Field(
        16,
        ge=1,
        le=1024,
        description="tokens in a KV block; smaller wastes less, larger is faster; a GPU may want another size",
    )
    swap_mib: int | None = Field(
        None, ge=1, description="MiB of host memory for KV of preempted sequences (if not given: it is computed again)"
    )
    max_model_len: int | None = Field(
        None, ge=1, description="longest prompt and output together, in tokens (if not given: the model's context)"
    )
    secret_file: Path | None = Field(
        None, description="file with the secret shared with gateways; needed beyond Unix sockets and loopback"
    )
    fake_worker: str | None = Field(
        None, min_length=1, description="instead of a model, play this script (a file, inline JSON, or `default`)"
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="threads to compute with on the CPU (if not given: one for each usable core)"
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
    log_format: LogFormat = Field("auto", description="json, console, or by whether stderr is a terminal")

    @field_validator("listen")
    @classmethod
    def _listen_is_an_address(cls, value: str) -> str:
        return str(parse_address(value))

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        address = self.address
        if isinstance(address, TcpAddress) and not address.is_loopback and self.secret_file is None:
            raise ValueError(f"listening on {address}, beyond this machine, needs --secret-file")
        if self.fake_worker is not None and self.model is not None:
            raise ValueError("--fake-worker plays a script instead of a model: give it or --model, not both")
        return self

    @property
    def address(self) -> Address:
        return parse_address(self.listen)

    def read_secret(self) -> bytes:
        """The shared secret, without surrounding white space; empty when no file is set. Raises ``BadSettings``."""
        if self.secret_file is None:
            return b""
        try:
            secret = self.secret_file.read_bytes().strip()
        except OSError as error:
            raise BadSettings(f"cannot read the secret file {self.secret_file}: {error.strerror}") from None
        if not secret:
            raise BadSettings(f"the secret file {self.secret_file} is empty")
        return secret

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 -- the library's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- the library's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- the library's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags come first by themselves; the file's values arrive as keyword arguments, so below the environment."""
        return env_settings, init_settings

    @classmethod
    def load(cls, argv: Sequence[str]) -> Self:
        """Settings from ``argv``, the environment and the file they name. Raises ``BadSettings``; ``--help`` exits."""
        _refuse_unknown_variables(cls, os.environ)
        path = _config_path(argv, os.environ)
        from_file = {} if path is None else _read_file(cls, path)
        try:
            return cls(_cli_parse_args=list(argv), _cli_prog_name="sluicegate worker", **from_file)  # type: ignore[call-arg]  # BaseSettings' own arguments, which its generated signature hides
        except SettingsError as error:
            raise BadSettings(str(error).removeprefix("error parsing CLI: ")) from None
        except ValidationError as error:
            raise BadSettings("\n".join(_explain(item) for item in error.errors())) from None


def _refuse_unknown_variables(cls: type[WorkerSettings], environ: Mapping[str, str]) -> None:
    known = {ENV_PREFIX + field.upper() for field in cls.model_fields}
    unknown = sorted(name for name in environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
    if unknown:
        raise BadSettings("\n".join(f"unknown setting in the environment: {name}" for name in unknown))


def _config_path(argv: Sequence[str], environ: Mapping[str, str]) -> Path | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", default=environ.get(f"{ENV_PREFIX}CONFIG") or None)
    try:
        path = parser.parse_known_args(list(argv))[0].config
    except argparse.ArgumentError as error:
        raise BadSettings(str(error)) from None
    return None if path is None else Path(path)


def _read_file(cls: type[WorkerSettings], path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"cannot read the settings file {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadSettings(f"{path} is not valid TOML: {error}") from None
    values = {key.replace("-", "_"): value for key, value in content.items()}
    unknown = [key for key in content if key.replace("-", "_") not in cls.model_fields or key == "config"]
    if unknown:
        raise BadSettings("\n".join(f"unknown setting in {path}: {key}" for key in unknown))
    if len(values) < len(content):
        raise BadSettings(f"{path} gives a setting twice, with - and with _")
    return values


def _explain(item: Any) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    if not item["loc"]:
        return message
    return f"--{str(item['loc'][0]).replace('_', '-')}: {message} (got {item['input']!r})"
