"""From a loaded model to its fast forward, if there is one for it here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from workers.fast.build import CannotBuild, load_library
from workers.fast.decoder import Decoder, LayerWeights, NotFast, Projection, decoder_of
from workers.fast.forward import FastModel, Layer
from workers.fast.kernels import Buffer, Kernels, Linear
from workers.fast.packing import interleave, pack, pack_int8
from workers.model import CausalModel
from workers.weights import Progress


def fast_model(
    model: CausalModel,
    *,
    block_size: int,
    cache: Path,
    weights: torch.dtype,
    threads: int,
    progress: Progress = lambda _: None,
) -> FastModel:
    """``model`` over the kernels; its own weights are gone afterwards. Raises ``NotFast``, and then it is untouched.

    ``weights`` are the numbers to keep weights in: those of the model, or int8.
    """
    decoder = decoder_of(model)
    try:
        kernels = Kernels(load_library(cache, progress), dtype=model.dtype, threads=threads)
    except CannotBuild as error:
        raise NotFast(str(error)) from error
    _check_shape(decoder, kernels, block_size)
    packer = Packer(kernels, weights)
    head = packer.linear(decoder.head)
    return FastModel(decoder, list(packer.layers(decoder)), head, kernels, model=model)


def _check_shape(decoder: Decoder, kernels: Kernels, block_size: int) -> None:
    shape = decoder.shape
    if block_size % kernels.lanes:
        raise NotFast(f"KV blocks of {block_size} tokens are not a multiple of {kernels.lanes}")
    if shape.dim % kernels.lanes or shape.dim > kernels.most_dim:
        raise NotFast(f"heads of {shape.dim} numbers are not a multiple of {kernels.lanes} up to {kernels.most_dim}")
    if shape.heads // shape.kv_heads > kernels.most_tile_rows or shape.hidden % 2 or shape.intermediate % 2:
        raise NotFast("its shape is not that of any model known")


class Packer:
    """Packs projections in one kind of numbers."""

    def __init__(self, kernels: Kernels, weights: torch.dtype) -> None:
        self._kernels = kernels
        self._pack = pack_int8 if weights == torch.int8 else pack

    def linear(self, projection: Projection) -> Linear:
        return Linear(self._kernels, self._pack(projection.weight, projection.bias, panel=self._kernels.panel))

    def layers(self, decoder: Decoder) -> Iterator[Layer]:
        """Each layer's, taken from the decoder one after the other."""
        for weights in decoder.take_layers():
            yield Layer(
                attention_norm=Buffer.of(weights.attention_norm),
                qkv=self.linear(weights.qkv),
                query_norm=_buffer(weights.query_norm),
                key_norm=_buffer(weights.key_norm),
                out=self.linear(weights.out),
                mlp_norm=Buffer.of(weights.mlp_norm),
                gate_up=self.linear(self._gate_up(weights)),
                down=self.linear(weights.down),
            )

    def _gate_up(self, weights: LayerWeights) -> Projection:
        gate, up, panel = weights.gate, weights.up, self._kernels.panel
        bias = None if gate.bias is None or up.bias is None else interleave(gate.bias, up.bias, panel=panel)
        return Projection(weight=interleave(gate.weight, up.weight, panel=panel), bias=bias)


def _buffer(tensor: Tensor | None) -> Buffer | None:
    return None if tensor is None else Buffer.of(tensor)
