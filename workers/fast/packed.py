"""The forward pass of a decoder in torch alone, for machines where no kernels can be compiled.

The same arithmetic as the fused one's, as far as torch's operations reach: four products a layer, with weights laid out
ahead; norms by torch's own operation; a residual stream in float32, so that in bfloat16 the distance to the exact
result is no larger than that of transformers' own forward. Attention is the generic path's: keys and values are copied
out of the pool's blocks, which costs little beside reading them from there.

A head's numbers are reordered, in the weights, so that the two that a rotary embedding turns together are neighbours:
turning all queries and keys is one product of complex numbers. Scores do not depend on the order.

Nothing is promised about bits: oneDNN and torch choose kernels, and so the order of sums, by the shape of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from workers.attention import Arguments, Attender, Step
from workers.fast.decoder import Decoder, LayerWeights, Projection, Shape, decoder_of, joined
from workers.fast.products import Product, choose_products
from workers.model import CausalModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer's products and norms. ``heads_norm`` [query and key heads, dim], where queries and keys have norms."""

    attention_norm: Tensor
    qkv: Product
    heads_norm: Tensor | None
    out: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


def packed_model(model: CausalModel) -> PackedModel:
    """``model`` over torch's products; its own weights are gone afterwards. Raises ``NotFast``, and leaves it whole."""
    return PackedModel(decoder_of(model), model)


class PackedModel:
    """A decoder of the family, in place of ``CausalModel``: it attends through what a step brings, as that does."""

    def __init__(self, decoder: Decoder, model: CausalModel) -> None:
        self.layers = model.layers
        self.vocab_size = model.vocab_size
        self.context_length = model.context_length
        self.dtype = model.dtype
        self.device = model.device
        self._shape = decoder.shape
        self._embedding = decoder.embedding
        self._rotary = decoder.rotary
        self._final_norm = decoder.final_norm
        make = choose_products(model.dtype)
        self._head = make(decoder.head)
        self._layers = tuple([_layer(weights, decoder.shape, make) for weights in decoder.take_layers()])
        self._arguments = tuple(self._attentions())

    def logits(self, step: Step, rows: Tensor) -> Tensor:
        """One forward pass; logits [rows, vocabulary] for these ``rows`` of the step, and only for those."""
        rotation = self._rotation(step.positions)
        residual = self._embedding[step.ids].float()
        for layer, arguments in zip(self._layers, self._arguments, strict=True):
            attended = self._attend(
                layer, arguments, self._normed(residual, layer.attention_norm), rotation, step.attender
            )
            residual += layer.out(attended)
            gate, up = layer.gate_up(self._normed(residual, layer.mlp_norm)).chunk(2, dim=-1)
            residual += layer.down(silu(gate).mul_(up))
        return self._head(self._normed(residual[rows], self._final_norm))

    def _attend(
        self, layer: Layer, arguments: Arguments, normed: Tensor, rotation: Tensor, attender: Attender
    ) -> Tensor:
        """[tokens, heads * dim] of ``normed`` [tokens, hidden]."""
        shape = self._shape
        heads = layer.qkv(normed).view(len(normed), -1, shape.dim)
        turning, value = torch.split(heads, [shape.heads + shape.kv_heads, shape.kv_heads], dim=1)
        turning = turning.float()
        if layer.heads_norm is not None:
            turning = rms_norm(turning, (shape.dim,), eps=shape.epsilon).mul_(layer.heads_norm)
        pairs = torch.view_as_complex(turning.view(*turning.shape[:2], -1, 2))
        turned = torch.view_as_real(pairs * rotation).flatten(2).to(self.dtype)
        query, key = torch.split(turned, [shape.heads, shape.kv_heads], dim=1)
        return attender.attend(arguments, *(part.transpose(0, 1) for part in (query, key, value))).flatten(1)

    def _rotation(self, positions: Tensor) -> Tensor:
        """[tokens, 1, dim / 2]: where each pair of a head turns to. The halves of an embedding are equal."""
        cosines, sines = (part[:, None, : self._shape.dim // 2] for part in self._rotary(positions))
        return torch.complex(cosines.contiguous(), sines.contiguous())

    def _normed(self, residual: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(residual, weight.shape, weight, self._shape.epsilon).to(self.dtype)

    def _attentions(self) -> Iterator[Arguments]:
        for index, layer in enumerate(self.layers):
            yield Arguments(layer=index, scale=self._shape.scale, softcap=layer.softcap, window=layer.window)


def _layer(weights: LayerWeights, shape: Shape, make: Callable[[Projection], Product]) -> Layer:
    return Layer(
        attention_norm=weights.attention_norm,
        qkv=make(_with_pairs(weights.qkv, shape)),
        heads_norm=_heads_norm(weights, shape),
        out=make(weights.out),
        mlp_norm=weights.mlp_norm,
        gate_up=make(joined([weights.gate, weights.up])),
        down=make(weights.down),
    )


def _with_pairs(qkv: Projection, shape: Shape) -> Projection:
    """Queries and keys with the pairs of each head side by side; values as they are."""
    sizes = [(shape.heads + shape.kv_heads) * shape.dim, shape.kv_heads * shape.dim]

    def reordered(part: Tensor) -> Tensor:
        turning, values = torch.split(part, sizes)
        return torch.cat([_pairs(turning, shape.dim), values])

    return Projection(weight=reordered(qkv.weight), bias=None if qkv.bias is None else reordered(qkv.bias))


def _heads_norm(weights: LayerWeights, shape: Shape) -> Tensor | None:
    if weights.query_norm is None or weights.key_norm is None:
        return None
    query, key = _pairs(weights.query_norm, shape.dim), _pairs(weights.key_norm, shape.dim)
    return torch.cat([query.expand(shape.heads, -1), key.expand(shape.kv_heads, -1)])


def _pairs(part: Tensor, dim: int) -> Tensor:
    """``part`` [heads * dim, ...]: the numbers ``i`` and ``i + dim / 2`` of each head become neighbours."""
    return part.view(-1, 2, dim // 2, *part.shape[1:]).transpose(1, 2).flatten(0, 2)
