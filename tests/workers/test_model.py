"""Loading a model: what is served, and what is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BloomConfig, FalconConfig, LlamaConfig, MambaConfig, MistralConfig, PreTrainedConfig

from tests.workers.engine_support import Options
from tests.workers.tiny_models import CONFIGS, CONTEXT, save_tiny_model
from workers.errors import LoadError
from workers.kv_cache import LayerShape
from workers.loading import load_engine
from workers.model import choose_device, choose_dtype, load_model

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def test_layers_are_found_by_asking_them(tmp_path: Path) -> None:
    """Every other layer of this model has a window, and the pool must know which; its soft cap rules kernels out."""
    config = CONFIGS["gemma2 with soft caps and alternating windows"]
    model = load_model(save_tiny_model(tmp_path, config), CPU, torch.float32)
    assert model.layers == tuple(
        LayerShape(kv_heads=2, key_dim=8, value_dim=8, window=window, softcap=5.0) for window in (8, None)
    )


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4),
        FalconConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=4),
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_that_attends_in_its_own_way_is_refused(config: PreTrainedConfig, tmp_path: Path) -> None:
    """Its output would be wrong, or it would fail at the first request."""
    folder = save_tiny_model(tmp_path, config)
    with pytest.raises(LoadError, match=r"attention interface|layers of type linear_attention"):
        load_model(folder, CPU, torch.float32)


def test_rotary_embeddings_that_change_with_length_limit_the_context(tmp_path: Path) -> None:
    """Beyond the original context they depend on the longest sequence in the batch, so on the neighbours."""
    config = LlamaConfig(
        **CONFIGS["llama"].to_dict()
        | {
            "max_position_embeddings": CONTEXT * 2,
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 10000.0,
                "factor": 2.0,
                "original_max_position_embeddings": CONTEXT,
            },
        }
    )
    assert load_model(save_tiny_model(tmp_path, config), CPU, torch.float32).context_length == CONTEXT


def test_weights_larger_than_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sentence at load, not by the system's memory killer."""
    folder = save_tiny_model(tmp_path, CONFIGS["llama"])
    monkeypatch.setattr("workers.model.available_memory", lambda _: 1000)
    with pytest.raises(LoadError, match="not enough memory for the weights"):
        load_model(folder, CPU, torch.float32)


def test_weights_that_were_cut_short_are_refused(tmp_path: Path) -> None:
    """A download that broke off is the commonest fault of all."""
    folder = save_tiny_model(tmp_path, CONFIGS["llama"])
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(LoadError, match=r"damaged or was cut short"):
        load_model(folder, CPU, torch.float32)


def test_weights_that_lack_some_of_the_models_are_refused(tmp_path: Path) -> None:
    """They would be random, and the answers with them."""
    folder = save_tiny_model(tmp_path, CONFIGS["qwen2"])
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"lacks 1 of its model's weights, such as model\.norm\.weight"):
        load_model(folder, CPU, torch.float32)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    """Transformers of another version may know it."""
    folder = save_tiny_model(tmp_path, MistralConfig(**CONFIGS["llama"].to_dict() | {"model_type": "mistral"}))
    save_file({"nothing": torch.zeros(1)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "no such architecture"}))
    with pytest.raises(LoadError, match="cannot be loaded"):
        load_model(folder, CPU, torch.float32)


@pytest.mark.parametrize(
    ("asked", "device", "dtype"),
    [
        ("auto", "cpu", torch.float32),
        ("auto", "cuda", torch.bfloat16),
        ("float32", "cuda", torch.float32),
        ("bfloat16", "cpu", torch.bfloat16),
    ],
)
def test_dtype_follows_the_device_unless_asked_for(asked: str, device: str, dtype: torch.dtype) -> None:
    """Exact where it is affordable."""
    assert choose_dtype(asked, torch.device(device)) == dtype


@pytest.mark.skipif(torch.cuda.is_available(), reason="the refusal needs a machine without cuda")
def test_cuda_that_is_not_there_is_refused() -> None:
    """Quietly serving from the CPU would be a hundred times slower."""
    assert choose_device("auto") == CPU
    with pytest.raises(LoadError, match="torch finds none"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("changes", "context"),
    [({}, CONTEXT), ({"max_model_len": 20}, 20), ({"kv_blocks": 6}, 24)],
    ids=str,
)
def test_the_context_is_the_least_of_model_setting_and_pool(
    changes: dict[str, Any], context: int, tmp_path: Path
) -> None:
    """The gateway refuses at the door what could never be computed."""
    folder = save_tiny_model(tmp_path, CONFIGS["llama"])
    engine = load_engine(Options(model=str(folder), **changes), lambda _: None)
    assert engine.card.context_length == context
    assert (engine.card.name, engine.card.eos_ids) == (tmp_path.name, (1,))


def test_a_longer_context_than_the_models_is_refused(tmp_path: Path) -> None:
    """Beyond its trained positions a model gives nonsense."""
    folder = save_tiny_model(tmp_path, CONFIGS["llama"])
    with pytest.raises(LoadError, match="fewer than the 65"):
        load_engine(Options(model=str(folder), max_model_len=CONTEXT + 1), lambda _: None)
