"""From a GGUF file to a folder of float32 safetensors, through transformers.

Every quantised value has an exact float32, so nothing is lost, and reading the copy takes a second where unpacking
takes half a minute.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging

from workers.errors import LoadError, first_line

UNBOUNDED_LENGTH = 10**9
"""Tokenizers without a limit of their own say 1e30."""


def convert(gguf: Path, folder: Path) -> None:
    """Write ``gguf`` into ``folder`` as float32 safetensors with its configuration and tokenizer."""
    quieten_transformers()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(**where)
    except MemoryError as error:
        raise LoadError(f"There is not enough memory to convert {gguf.name}.") from error
    except (ImportError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        raise LoadError(f"{gguf.name} cannot be converted: {first_line(error)}") from error
    if tokenizer.model_max_length > UNBOUNDED_LENGTH:
        tokenizer.model_max_length = model.config.get_text_config().max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    check_written(folder)


def check_written(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    if "quantization_config" in config:
        raise LoadError(f"The weights of {folder.name} stayed packed: this version of transformers cannot unpack them.")


def quieten_transformers() -> None:
    """No progress bars, no advice: they have no place among log lines."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call] # it has no annotations
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # it has no annotations
