"""The files from which a gateway rebuilds the model's tokenizer, and the token ids that end a text."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from workers.errors import LoadError, first_line
from workers.wire import TokenizerFiles

FILE_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
)


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """The tokenizer files of a model folder. One that has only an older format is converted by transformers.

    Raises LoadError when there is no tokenizer, or none that works without Python code of its own.
    """
    if (folder / "tokenizer.json").is_file():
        return _collect(folder)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            AutoTokenizer.from_pretrained(folder).save_pretrained(scratch)
        except (ImportError, ValueError, OSError, KeyError) as error:
            raise LoadError(f"{folder} has no usable tokenizer: {first_line(error)}") from error
        if not (Path(scratch) / "tokenizer.json").is_file():
            raise LoadError(f"The tokenizer of {folder} cannot be expressed as a tokenizer.json.")
        return _collect(Path(scratch))


def eos_ids(folder: Path, files: TokenizerFiles) -> tuple[int, ...]:
    """All ids that end a text: of the generation settings, of the model, and the tokenizer's end of a chat turn."""
    generation = _read_json(folder / "generation_config.json")
    config = _read_json(folder / "config.json")
    found = [*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id"))]
    found += _ids(config.get("text_config", {}).get("eos_token_id"))
    by_name = dict(files.files)
    eos = json.loads(by_name.get("tokenizer_config.json", b"{}")).get("eos_token")
    if eos is not None:
        text = eos["content"] if isinstance(eos, dict) else eos  # older files keep the token with its flags
        tokenizer = Tokenizer.from_str(by_name["tokenizer.json"].decode())
        found += _ids(tokenizer.token_to_id(text))
    return tuple(sorted(set(found)))


def _collect(folder: Path) -> TokenizerFiles:
    files = tuple((name, (folder / name).read_bytes()) for name in FILE_NAMES if (folder / name).is_file())
    return TokenizerFiles(digest=_digest(files), files=files)


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    """One digest over names and contents, each with its length, so that no two sets of files run together."""
    digest = hashlib.sha256()
    for name, content in files:
        digest.update(f"{len(name)} {name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes()) if path.is_file() else {}


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
