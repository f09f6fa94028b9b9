"""The model: transformers' own code, with our attention behind its interface.

Only models whose every layer attends through transformers' attention interface are served; one probing pass at load
finds out, and also what each layer keeps in the KV pool. All else about a model (rotary embeddings, norms, experts,
tied weights, bounded logits) is transformers' business, and transformers' own ``generate`` is the reference in tests.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from workers.attention import ATTENTION_NAME, Attender, LayerProbe, Step, register
from workers.convert import quieten_transformers
from workers.errors import LoadError, first_line
from workers.kv_cache import LayerShape, available_memory

SERVED_LAYERS = frozenset({"full_attention", "sliding_attention"})

LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings that change with the longest position in the batch: exact only below the original context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalModel:
    """A loaded model. ``vocab_size`` bounds the token ids that it accepts, ``context_length`` their number."""

    module: PreTrainedModel
    layers: tuple[LayerShape, ...]
    vocab_size: int
    context_length: int
    dtype: torch.dtype
    device: torch.device

    def logits(self, step: Step, rows: Tensor) -> Tensor:
        """One forward pass; logits [rows, vocabulary] for these ``rows`` of the step, and only for those."""
        return self.forward(step.ids, step.positions, rows, step.attender)

    def forward(self, ids: Tensor, positions: Tensor, rows: Tensor, attender: Attender) -> Tensor:
        """The same of a step's parts."""
        return _forward(self.module, ids, positions, rows, attender)


def choose_device(asked: str) -> torch.device:
    """``auto``, ``cpu`` or ``cuda``. Raises LoadError for a device that is not there."""
    has_cuda = torch.cuda.is_available()
    if asked == "cuda" and not has_cuda:
        raise LoadError("The device cuda was asked for, but torch finds none here.")
    return torch.device("cuda" if has_cuda and asked != "cpu" else "cpu")


def choose_dtype(asked: str, device: torch.device) -> torch.dtype:
    """``auto``, ``float32`` or ``bfloat16``.

    On a CPU ``auto`` is float32: rounding errors stay so far below the distances between logits that a sequence comes
    out the same whatever shares its batch. On CUDA it is bfloat16, which halves memory and traffic, and with which that
    promise ends.
    """
    if asked == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[asked]


def load_model(folder: Path, device: torch.device, dtype: torch.dtype) -> CausalModel:
    """Load the causal language model in ``folder``. Raises LoadError, in one sentence, for what cannot be served."""
    quieten_transformers()
    register()
    _check_memory(folder, device, dtype)
    module = _read(folder, device, dtype)
    config = module.config.get_text_config()
    _check_served(module, config)
    return CausalModel(
        module=module,
        layers=_probe(module, config, device),
        vocab_size=_vocab_size(module),
        context_length=_context_length(config),
        dtype=dtype,
        device=device,
    )


def _read(folder: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            device_map=device,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise LoadError(f"There is not enough memory to load {folder}.") from error
    except (ImportError, ValueError, KeyError, OSError, RuntimeError) as error:
        if isinstance(error, KeyError) and error.args == (
            ATTENTION_NAME,
        ):  # it looked the name up in a table of its own
            raise LoadError(f"{folder} does not attend through transformers' attention interface.") from error
        raise LoadError(f"{folder} cannot be loaded: {first_line(error)}") from error
    module, info = cast("tuple[PreTrainedModel, dict[str, Any]]", loaded)
    _check_complete(folder, info)
    module.train(mode=False)
    module.requires_grad_(requires_grad=False)
    return module


def _forward(module: PreTrainedModel, ids: Tensor, positions: Tensor, keep: Tensor, attender: Attender) -> Tensor:
    output = module(
        input_ids=ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=keep, paged=attender
    )
    logits: Tensor = output.logits
    return logits[0]


def _check_complete(folder: Path, info: dict[str, Any]) -> None:
    """Weights that are not in the files were made up at random, which transformers says in a warning only."""
    missing = sorted(info["missing_keys"])
    if missing:
        raise LoadError(f"{folder.name} lacks {len(missing)} of its model's weights, such as {missing[0]}.")


# --- what can be served -----------------------------------------------------------------------------------------------


def _check_memory(folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    needed = sum(_num_parameters(folder)) * dtype.itemsize
    available = available_memory(device)
    if needed > available:
        raise LoadError(
            f"There is not enough memory for the weights of {folder.name}: they need {needed >> 20} MiB, and"
            f" {available >> 20} MiB are free."
        )


def _num_parameters(folder: Path) -> Iterator[int]:
    for path in folder.glob("*.safetensors"):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 -- it is no dict and cannot be iterated
                    yield torch.Size(file.get_slice(name).get_shape()).numel()
        except SafetensorError as error:
            raise LoadError(f"{path} is damaged or was cut short: {first_line(error)}") from error


def _check_served(module: PreTrainedModel, config: PreTrainedConfig) -> None:
    name = type(module).__name__
    other_layers = sorted(set(getattr(config, "layer_types", None) or ()) - SERVED_LAYERS)
    if other_layers:
        raise LoadError(f"{name} has layers of type {', '.join(other_layers)}, which cannot be served.")
    if "logits_to_keep" not in inspect.signature(module.forward).parameters:
        raise LoadError(f"{name} cannot restrict its logits to some tokens, without which it cannot be served.")


def _probe(module: PreTrainedModel, config: PreTrainedConfig, device: torch.device) -> tuple[LayerShape, ...]:
    probe = LayerProbe()
    two = torch.arange(2, device=device)
    try:
        with torch.inference_mode():
            _forward(module, two, two, two, probe)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise LoadError(f"{type(module).__name__} cannot be served: {first_line(error)}") from error
    return probe.layers(config.num_hidden_layers)


def _vocab_size(module: PreTrainedModel) -> int:
    """Rows of the embedding, which may be more than the tokenizer's words: what lies beyond cannot be looked up."""
    weight = module.get_input_embeddings().weight
    assert isinstance(weight, Tensor)  # noqa: S101 -- torch types every attribute as Tensor or Module
    return weight.shape[0]


def _context_length(config: PreTrainedConfig) -> int:
    length: int | None = getattr(config, "max_position_embeddings", None)
    if length is None:
        raise LoadError(f"The configuration of this {config.model_type} model does not say how long its context is.")
    originals: list[int] = [
        rope.get("original_max_position_embeddings", length)
        for rope in _rope_parameters(config)
        if rope.get("rope_type") in LENGTH_DEPENDENT_ROPE
    ]
    return min([length, *originals])


def _rope_parameters(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """One set of rotary parameters, or one for each type of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]
