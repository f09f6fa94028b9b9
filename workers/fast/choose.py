"""Which forward pass serves: ours where it can, transformers' own everywhere else."""

from __future__ import annotations

from collections.abc import Callable

import torch

from workers.engine_settings import EngineSettings
from workers.errors import LoadError
from workers.fast.assemble import NotFast, fast_model
from workers.fast.forward import FastModel
from workers.fast.structures import Products
from workers.model import CausalModel, choose_dtype
from workers.weights import default_cache

SAID_OF = {
    Products.TILES: "bfloat16 is multiplied in AMX tiles",
    Products.NO_TILES: "bfloat16 is multiplied in vectors",
    Products.TILES_NOT_GRANTED: "bfloat16 is multiplied in vectors: Linux does not grant this process AMX tiles",
    Products.TILES_NOT_TRUE: "bfloat16 is multiplied in vectors: AMX tiles failed their check against them",
}


def choose_numbers(settings: EngineSettings, device: torch.device) -> torch.dtype:
    """What to compute with. Weights of eight bits are multiplied with bfloat16. Raises LoadError for other wishes."""
    if settings.quantize is None:
        return choose_dtype(settings.dtype, device)
    if settings.dtype == "float32":
        raise LoadError("--quantize int8 computes in bfloat16: it cannot be combined with --dtype float32.")
    return torch.bfloat16


def choose_forward(
    model: CausalModel, settings: EngineSettings, progress: Callable[[str], None]
) -> CausalModel | FastModel:
    """The model as it is to be served. Raises LoadError when what was asked for cannot be had.

    ``model`` itself is of no use any more where another is returned.
    """
    reason = _reason_against(model, settings)
    if reason is None:
        try:
            fast = fast_model(
                model,
                block_size=settings.block_size,
                cache=settings.model_cache or default_cache(),
                weights=torch.int8 if settings.quantize == "int8" else model.dtype,
                threads=torch.get_num_threads(),
            )
            products = f"; {SAID_OF[fast.products]}" if fast.dtype == torch.bfloat16 else ""
            progress(f"Computing with the fused forward{products}")
            return fast
        except NotFast as error:
            reason = str(error)
    if settings.forward == "fused" or settings.quantize is not None:
        wish = "--quantize" if settings.quantize is not None else "--forward fused"
        raise LoadError(f"{wish} cannot be had: {reason}.")
    progress(f"Computing with transformers' own forward: {reason}")
    return model


def _reason_against(model: CausalModel, settings: EngineSettings) -> str | None:
    if settings.forward == "generic":
        return "--forward generic asks for it"
    if model.device.type != "cpu":
        return f"the fused one computes on CPUs, not on {model.device.type}"
    return None
