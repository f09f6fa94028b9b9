"""One way to read settings, for every command: flag over environment over file over default.

A setting has one name in four spellings: the field ``max_slots``, the flag ``--max-slots``, the variable
``SLUICEGATE_MAX_SLOTS`` and the key ``max-slots`` (or ``max_slots``) in the TOML file of ``--config``. A name that the
command does not know is an error in any of them, and every error is one line that says where the value came from.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

ENV_PREFIX = "SLUICEGATE_"


class BadSettings(Exception):
    """Settings that cannot be used; ``lines`` has one sentence for each thing that is wrong."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)


class CommandSettings(BaseSettings):
    """What the settings of all commands share. Frozen: read once, at the edge."""

    command: ClassVar[str]

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,  # compose files hand on variables that are not set as empty ones
        extra="forbid",
        frozen=True,
        cli_kebab_case=True,
        cli_exit_on_error=False,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    config: Path | None = Field(None, description="TOML file with any of these settings")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 (the library's signature)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (the library's signature)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (the library's signature)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags come first by themselves; the file's values arrive as keyword arguments of the class, so below env."""
        return env_settings, init_settings

    @classmethod
    def load(cls, argv: Sequence[str]) -> Self:
        """Settings from ``argv``, the environment and the file they name. Raises ``BadSettings``; ``--help`` exits."""
        _refuse_unknown_variables(cls, os.environ)
        path = _config_path(argv, os.environ)
        from_file = {} if path is None else _read_file(cls, path)
        try:
            return cls(  # type: ignore[call-arg]  # BaseSettings' own arguments, which its generated signature hides
                _cli_parse_args=list(argv), _cli_prog_name=f"sluicegate {cls.command}", **from_file
            )
        except SettingsError as error:
            raise BadSettings([str(error).removeprefix("error parsing CLI: ")]) from None
        except ValidationError as error:
            origin = _Origins(argv=argv, environ=os.environ, path=path, in_file=frozenset(from_file))
            raise BadSettings([_explain(cls, item, origin) for item in error.errors()]) from None


def flag_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    return ENV_PREFIX + field.upper()


def environment_without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child that gets all its settings as flags."""
    return {name: value for name, value in environ.items() if not name.upper().startswith(ENV_PREFIX)}


def _refuse_unknown_variables(cls: type[CommandSettings], environ: Mapping[str, str]) -> None:
    known = {variable_of(field) for field in cls.model_fields}
    unknown = sorted(name for name in environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
    if unknown:
        raise BadSettings([f"unknown setting in the environment: {name}" for name in unknown])


def _config_path(argv: Sequence[str], environ: Mapping[str, str]) -> Path | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", default=environ.get(variable_of("config")) or None)
    try:
        path = parser.parse_known_args(list(argv))[0].config
    except argparse.ArgumentError as error:
        raise BadSettings([str(error)]) from None
    return None if path is None else Path(path)


def _read_file(cls: type[CommandSettings], path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings([f"cannot read the settings file {path}: {error}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise BadSettings([f"{path} is not valid TOML: {error}"]) from None
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for key, value in content.items():
        field = key.replace("-", "_")
        if field not in cls.model_fields or field == "config":
            wrong.append(f"unknown setting in {path}: {key}")
        elif field in values:
            wrong.append(f"setting given twice in {path}: {key}")
        else:
            values[field] = value
    if wrong:
        raise BadSettings(wrong)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origins:
    """Where values came from, to name the place that an operator has to mend."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    path: Path | None
    in_file: frozenset[str]

    def of(self, field: str) -> str:
        flag = flag_of(field)
        if any(word == flag or word.startswith(flag + "=") for word in self.argv):
            return flag
        if self.environ.get(variable_of(field)):
            return variable_of(field)
        if field in self.in_file:
            return f"{field.replace('_', '-')} in {self.path}"
        return flag


def _explain(cls: type[CommandSettings], item: Any, origins: _Origins) -> str:
    """One line for one of pydantic's errors. A value that may hold a secret (``repr=False``) is not repeated."""
    message = str(item["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if not item["loc"]:
        return message
    field = str(item["loc"][0])
    shown = "" if item["type"] == "missing" or not cls.model_fields[field].repr else f" (got {item['input']!r})"
    return f"{origins.of(field)}: {message}{shown}"
