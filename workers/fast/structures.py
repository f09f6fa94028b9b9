"""What the kernels are given, field by field as ``native/*.{h,cpp}`` declare it."""

from __future__ import annotations

import ctypes
from enum import IntEnum

Address = ctypes.c_void_p
Count = ctypes.c_int64


class Kind(IntEnum):
    """Numbers of a weight, and of the activations that it is multiplied with (bfloat16 for eight bits)."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2


class Products(IntEnum):
    """What multiplies bfloat16, as the library finds at load (products.h); float32 goes through vectors always."""

    TILES = 0
    NO_TILES = 1
    TILES_NOT_GRANTED = 2
    TILES_NOT_TRUE = 3


class LinearStructure(ctypes.Structure):
    """``Linear`` in linear.h."""

    _fields_ = (
        ("weight", Address),
        ("bias", Address),
        ("scales", Address),
        ("outputs", Count),
        ("width", Count),
        ("kind", Count),
    )


class LayerAttention(ctypes.Structure):
    """``LayerAttention`` in kernels.cpp."""

    _fields_ = (
        ("keys", Address),
        ("values", Address),
        ("query_norm", Address),
        ("key_norm", Address),
        ("heads", Count),
        ("kv_heads", Count),
        ("dim", Count),
        ("block_size", Count),
        ("window", Count),
        ("scale", ctypes.c_float),
        ("epsilon", ctypes.c_float),
    )


class StepAttention(ctypes.Structure):
    """``StepAttention`` in kernels.cpp."""

    _fields_ = (
        ("qkv", Address),
        ("results", Address),
        ("cosines", Address),
        ("sines", Address),
        ("positions", Address),
        ("slots", Address),
        ("tables", Address),
        ("tiles", Address),
        ("rows", Count),
        ("num_tiles", Count),
        ("table_width", Count),
        ("threads", Count),
    )
