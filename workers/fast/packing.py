"""Weights in the order in which the kernels read them (see native/linear.h), and in eight bits where asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from workers import host_memory

LARGEST_INT8 = 127
OUTPUTS_AT_ONCE = 1024
"""Of a weight that is brought to eight bits: float32 copies of a whole head may take more memory than the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A weight of ``outputs`` by ``width``. ``weight`` and ``scales`` are padded to whole panels, ``bias`` is not."""

    weight: Tensor
    bias: Tensor | None
    scales: Tensor | None
    outputs: int
    width: int


def pack(weight: Tensor, bias: Tensor | None, *, panel: int) -> Packed:
    """``weight`` [outputs, width] in its own numbers."""
    return _packed(weight, bias, None, panel)


def pack_int8(weight: Tensor, bias: Tensor | None, *, panel: int) -> Packed:
    """``weight`` in eight bits, with one scale for each output."""
    numbers, scales = quantise(weight)
    return _packed(numbers, bias, _to_panels(scales, panel), panel)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest int8 of each weight in units of its output's scale, and the scales [outputs] in float32."""
    numbers, scales = zip(*map(_quantise, torch.split(weight, OUTPUTS_AT_ONCE)), strict=True)
    return torch.cat(numbers), torch.cat(scales)


def _quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    exact = weight.float()
    scales = exact.abs().amax(dim=1) / LARGEST_INT8
    in_units = exact / torch.where(scales > 0, scales, 1.0)[:, None]
    return in_units.round().to(torch.int8), scales


def interleave(gate: Tensor, up: Tensor, *, panel: int) -> Tensor:
    """One matrix of both [outputs, ...]: half of each panel from the one and half from the other, padded."""
    halves = [_to_panels(part, panel // 2).view(-1, panel // 2, *part.shape[1:]) for part in (gate, up)]
    return torch.cat(halves, dim=1).flatten(0, 1)


def _packed(weight: Tensor, bias: Tensor | None, scales: Tensor | None, panel: int) -> Packed:
    outputs, width = weight.shape
    group = 1 if weight.dtype == torch.float32 else 2
    panels = _to_panels(weight, panel).view(-1, panel, width // group, group).transpose(1, 2)
    return Packed(
        weight=host_memory.zeros(tuple(panels.shape), weight.dtype).copy_(panels),
        bias=None if bias is None else bias.float().contiguous(),
        scales=scales,
        outputs=outputs,
        width=width,
    )


def _to_panels(tensor: Tensor, panel: int) -> Tensor:
    """Padded with zeros along its first dimension to a multiple of ``panel``."""
    missing = -tensor.shape[0] % panel
    return pad(tensor, (*(0, 0) * (tensor.dim() - 1), 0, missing)).contiguous()
