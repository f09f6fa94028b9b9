"""The compiled kernels, as calls on buffers."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.fast.packing import Packed
from workers.fast.structures import Kind, LayerAttention, LinearStructure, Products, StepAttention

_LINEAR, _LAYER, _STEP = (ctypes.POINTER(structure) for structure in (LinearStructure, LayerAttention, StepAttention))
_SIGNATURES = {
    "normalise_rows": (c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float, c_int),
    "attend_rows": (c_int64, _LAYER, _STEP),
    "project_rows": (_LINEAR, c_void_p, c_void_p, c_int64, c_int),
    "project_rows_float": (_LINEAR, c_void_p, c_void_p, c_int64, c_int),
    "project_rows_add": (_LINEAR, c_void_p, c_void_p, c_int64, c_int),
    "project_rows_gated": (_LINEAR, c_void_p, c_void_p, c_int64, c_int64, c_int),
    "project_rows_best": (_LINEAR, c_void_p, c_void_p, c_int64, c_int),
}

_KINDS = {torch.float32: Kind.FLOAT32, torch.bfloat16: Kind.BFLOAT16, torch.int8: Kind.INT8}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor, and where it lies: asking a tensor each time would cost more than many a kernel call."""

    tensor: Tensor
    address: int

    @classmethod
    def of(cls, tensor: Tensor) -> Buffer:
        return cls(tensor, tensor.data_ptr())


class Kernels:
    """Calls into the library. ``dtype`` is that of the activations: float32 or bfloat16."""

    def __init__(self, library: ctypes.CDLL, *, dtype: torch.dtype, threads: int) -> None:
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        for name in ("panel_outputs", "most_tile_rows", "most_dim", "lanes", "products_of_bfloat16"):
            getattr(library, name).restype = c_int64
        self.panel: int = library.panel_outputs()
        self.most_tile_rows: int = library.most_tile_rows()
        self.most_dim: int = library.most_dim()
        self.lanes: int = library.lanes()
        self.products = Products(library.products_of_bfloat16())
        self.library = library
        self.threads = threads
        self._kind = int(_KINDS[dtype])

    def normalise(self, residual: Buffer, weight: Buffer, out: Buffer, rows: int, epsilon: float) -> None:
        """``out`` [rows, width] of ``residual`` [rows, width] in float32."""
        width = weight.tensor.shape[0]
        self.library.normalise_rows(
            self._kind, residual.address, weight.address, out.address, rows, width, epsilon, self.threads
        )

    def attend(self, layer: LayerAttention, step: StepAttention) -> None:
        self.library.attend_rows(self._kind, byref(layer), byref(step))


class Linear:
    """A packed weight, and what can be done with its products. Inputs are [rows, width] in the activations' numbers."""

    def __init__(self, kernels: Kernels, packed: Packed) -> None:
        self._library = kernels.library
        self._threads = kernels.threads
        self._packed = packed
        self._structure = LinearStructure(
            weight=packed.weight.data_ptr(),
            bias=None if packed.bias is None else packed.bias.data_ptr(),
            scales=None if packed.scales is None else packed.scales.data_ptr(),
            outputs=packed.outputs,
            width=packed.width,
            kind=int(_KINDS[packed.weight.dtype]),
        )
        self._reference = byref(self._structure)

    def store(self, inputs: Buffer, out: Buffer, rows: int) -> None:
        """``out`` [rows, outputs]."""
        self._library.project_rows(self._reference, inputs.address, out.address, rows, self._threads)

    def add(self, inputs: Buffer, residual: Buffer, rows: int) -> None:
        """Adds to ``residual`` [rows, outputs], float32."""
        self._library.project_rows_add(self._reference, inputs.address, residual.address, rows, self._threads)

    def gate(self, inputs: Buffer, out: Buffer, rows: int) -> None:
        """``out`` [rows, its own width]: of interleaved weights, the one half gated by the SiLU of the other."""
        width = out.tensor.shape[1]
        self._library.project_rows_gated(self._reference, inputs.address, out.address, rows, width, self._threads)

    def logits(self, inputs: Buffer, rows: int) -> Tensor:
        """[rows, outputs] in float32."""
        out = torch.empty(rows, self._packed.outputs, dtype=torch.float32)
        self._library.project_rows_float(self._reference, inputs.address, out.data_ptr(), rows, self._threads)
        return out

    def best(self, inputs: Buffer, rows: int) -> Tensor:
        """Of each row the first largest output; -1 where there is a NaN, or none that is finite."""
        chosen = torch.empty(rows, dtype=torch.int64)
        self._library.project_rows_best(self._reference, inputs.address, chosen.data_ptr(), rows, self._threads)
        return chosen
