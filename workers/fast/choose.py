"""Which forward pass serves: ours where it can, with compiled kernels or without; transformers' own everywhere else."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workers.engine_settings import EngineSettings
from workers.errors import LoadError
from workers.fast.assemble import fast_model
from workers.fast.decoder import NotFast
from workers.fast.forward import FastModel
from workers.fast.packed import PackedModel, packed_model
from workers.fast.structures import Products
from workers.model import CausalModel, choose_dtype
from workers.weights import Progress, default_cache

EIGHT_BITS = "weights of eight bits are multiplied by compiled kernels alone"

ServedModel = CausalModel | PackedModel | FastModel

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


def choose_forward(model: CausalModel, settings: EngineSettings, progress: Progress) -> ServedModel:
    """The model as it is to be served. Raises LoadError when what was asked for cannot be had.

    ``model`` itself is of no use any more where another is returned.
    """
    reasons = []
    if settings.forward in {"auto", "fused"}:
        try:
            fast = _fused(model, settings, progress)
        except NotFast as error:
            reasons.append(str(error))
        else:
            products = f"; {SAID_OF[fast.products]}" if fast.dtype == torch.bfloat16 else ""
            progress(f"Computing with the fused forward{products}")
            return fast
    if settings.forward in {"auto", "packed"}:
        try:
            packed = _packed(model, settings)
        except NotFast as error:
            reasons.append(str(error))
        else:
            progress(f"Computing with torch alone, without kernels of our own: {_first(reasons, settings)}")
            return packed
    reason = _first(reasons, settings)
    if settings.quantize is not None:
        raise LoadError(f"--quantize cannot be had: {reasons[0] if reasons else EIGHT_BITS}.")
    if settings.forward in {"fused", "packed"}:
        raise LoadError(f"--forward {settings.forward} cannot be had: {reason}.")
    progress(f"Computing with transformers' own forward: {reason}")
    return model


def _fused(model: CausalModel, settings: EngineSettings, progress: Progress) -> FastModel:
    """Raises ``NotFast``."""
    if model.device.type != "cpu":
        raise NotFast(f"the fused one computes on CPUs, not on {model.device.type}")
    return fast_model(
        model,
        block_size=settings.block_size,
        cache=settings.model_cache or default_cache(),
        weights=torch.int8 if settings.quantize == "int8" else model.dtype,
        threads=torch.get_num_threads(),
        progress=progress,
    )


def _packed(model: CausalModel, settings: EngineSettings) -> PackedModel:
    """Raises ``NotFast``."""
    if settings.deterministic:
        raise NotFast("torch's order of sums depends on the batch, which --deterministic rules out")
    if settings.quantize is not None:
        raise NotFast(EIGHT_BITS)
    if model.device.type != "cpu":
        raise NotFast(f"the packed one computes on CPUs, not on {model.device.type}")
    return packed_model(model)


def _first(reasons: Sequence[str], settings: EngineSettings) -> str:
    """Why the best forward does not serve."""
    return reasons[0] if reasons else f"--forward {settings.forward} asks for it"
