"""The common family of decoders, and its weights taken out of transformers' modules.

Llama, Mistral, Qwen 2 and Qwen 3 (and what is built like them, such as SmolLM 2) are one architecture: norms before the
attention and before a gated feed-forward network with SiLU, rotary embeddings over the whole head, grouped queries;
some have biases, windows, or norms of queries and keys. ``decoder_of`` refuses a model that is not of it; transformers'
own code serves the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module

from workers.model import CausalModel

FAMILY = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
ROTARY = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings of which a position's angles are always the same; others turn farther as a sequence grows."""
SILU = frozenset({"SiLU", "SiLUActivation"})  # torch's, and transformers' own


class NotFast(Exception):
    """There is no fast forward for this model here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """``weight`` [outputs, width] and ``bias`` [outputs]."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer; queries, keys and values are one projection. Norms are float32, and some models have none of heads."""

    attention_norm: Tensor
    qkv: Projection
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Projection
    mlp_norm: Tensor
    gate: Projection
    up: Projection
    down: Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes that all layers share; ``scale`` is that of the scores, ``epsilon`` that of the norms."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    intermediate: int
    scale: float
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A model of the family. ``take_layers`` hands out each layer's weights, and lets go of the model's own."""

    shape: Shape
    embedding: Tensor
    rotary: Callable[[Tensor], tuple[Tensor, Tensor]]
    final_norm: Tensor
    head: Projection
    take_layers: Callable[[], Iterator[LayerWeights]]


def decoder_of(model: CausalModel) -> Decoder:
    """The model as one of the family. Raises ``NotFast`` if it is not, and then it is untouched."""
    module: Any = model.module
    if type(module).__name__ not in FAMILY:
        raise NotFast(f"{type(module).__name__} is not of the common family of decoders")
    inner, config = module.model, module.config
    first = inner.layers[0]
    shape = Shape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        dim=first.self_attn.head_dim,
        intermediate=config.intermediate_size,
        scale=first.self_attn.scaling,
        epsilon=config.rms_norm_eps,
    )
    rotary = inner.rotary_emb
    has_its_angles = rotary.rope_type in ROTARY and 2 * len(rotary.inv_freq) == shape.dim
    if type(first.mlp.act_fn).__name__ not in SILU or not has_its_angles:
        raise NotFast("its activation or its rotary embedding is not that of the family")
    return Decoder(
        shape=shape,
        embedding=inner.embed_tokens.weight,
        rotary=_rotary(rotary),
        final_norm=inner.norm.weight.float(),
        head=_projection(module.lm_head),
        take_layers=lambda: _take_layers(inner),
    )


def _rotary(module: Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Transformers' own embedding, in float32: [tokens, dim] of cosines and sines for ``positions`` [tokens]."""
    like = torch.empty(0, dtype=torch.float32)

    def at(positions: Tensor) -> tuple[Tensor, Tensor]:
        cosines, sines = module(like, positions[None])
        return cosines[0].contiguous(), sines[0].contiguous()

    return at


def _take_layers(inner: Any) -> Iterator[LayerWeights]:
    for index in range(len(inner.layers)):
        yield _layer(inner.layers[index])
        inner.layers[index] = torch.nn.Identity()  # or both copies of all weights would be in memory at once


def _layer(layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    heads = [_projection(part) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
    return LayerWeights(
        attention_norm=layer.input_layernorm.weight.float(),
        qkv=joined(heads),
        query_norm=_norm_of(attention, "q_norm"),
        key_norm=_norm_of(attention, "k_norm"),
        out=_projection(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight.float(),
        gate=_projection(mlp.gate_proj),
        up=_projection(mlp.up_proj),
        down=_projection(mlp.down_proj),
    )


def _norm_of(attention: Any, name: str) -> Tensor | None:
    norm = getattr(attention, name, None)
    return None if norm is None else norm.weight.float()


def _projection(linear: Linear) -> Projection:
    return Projection(weight=linear.weight.detach(), bias=None if linear.bias is None else linear.bias.detach())


def joined(parts: list[Projection]) -> Projection:
    """One projection of the same inputs. Transformers gives all of them a bias or none."""
    biases = [part.bias for part in parts if part.bias is not None]
    return Projection(weight=torch.cat([part.weight for part in parts]), bias=torch.cat(biases) if biases else None)
