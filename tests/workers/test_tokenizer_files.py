"""The tokenizer that a gateway gets, and the ids that end a text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.workers.tiny_models import CONFIGS, save_tiny_model
from workers.errors import LoadError
from workers.tokenizer_files import eos_ids, read_tokenizer_files

pytestmark = pytest.mark.torch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path, CONFIGS["llama"])


def test_files_travel_whole(folder: Path) -> None:
    """The gateway rebuilds the very tokenizer from them."""
    files = dict(read_tokenizer_files(folder).files)
    assert Tokenizer.from_str(files["tokenizer.json"].decode()).encode("w5 w7").ids == [5, 7]
    assert files["tokenizer_config.json"] == (folder / "tokenizer_config.json").read_bytes()


def test_the_digest_follows_the_content(folder: Path) -> None:
    """Gateways keep tokenizers by digest: two that differ must not share one."""
    before = read_tokenizer_files(folder).digest
    assert read_tokenizer_files(folder).digest == before
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert read_tokenizer_files(folder).digest != before


def test_a_model_without_a_tokenizer_is_refused(folder: Path) -> None:
    """The gateway could not read a single prompt."""
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(LoadError, match="tokenizer"):
        read_tokenizer_files(folder)


def test_every_end_of_text_counts(folder: Path) -> None:
    """Chat models end a turn with a token that their configuration often forgets."""
    files = read_tokenizer_files(folder)
    assert eos_ids(folder, files) == (1,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 6}))
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config | {"eos_token": {"content": "w9"}}))
    assert eos_ids(folder, read_tokenizer_files(folder)) == (3, 4, 6, 9)
