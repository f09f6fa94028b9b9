"""Products with weights that stay the same, in torch alone.

As a rule torch lays a weight out anew for each product. oneDNN, which torch has on Linux and Windows, can do that once.
Where it is missing, or cannot do it in these numbers, a product is torch's usual one.

Which kernel computes a product depends on the number of its rows, and with it the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from workers.fast.decoder import Projection

ROWS_EXPECTED = 64
"""Of a product, when its weight is laid out: oneDNN asks. The layouts for 1 and for 256 rows were measured as equal."""

ROWS_ROUNDED = 16
"""More rows than this are filled up to a multiple of it: oneDNN makes and keeps a kernel of 0.6 MiB for each number of
rows that it meets, a thousand at most, and a server meets them all.
"""

Product = Callable[[Tensor], Tensor]
"""From [rows, width] to [rows, outputs], both in the numbers of the weight."""


def choose_products(dtype: torch.dtype) -> Callable[[Projection], Product]:
    """The best way to multiply in ``dtype`` that works here: it is tried out, since no flag says it of every build."""
    trial = Projection(weight=torch.eye(32, dtype=dtype), bias=torch.ones(32, dtype=dtype))
    rows = torch.arange(64, dtype=dtype).view(2, 32)
    try:
        works = torch.equal(packed(trial)(rows), usual(trial)(rows))
    except (AttributeError, NotImplementedError, RuntimeError):
        works = False
    return packed if works else usual


def packed(projection: Projection) -> Product:
    """Laid out once, by oneDNN."""
    multiply, bias = torch.ops.mkldnn._linear_pointwise, projection.bias  # noqa: SLF001 -- as inductor's code calls it
    weight = torch.ops.mkldnn._reorder_linear_weight(projection.weight, ROWS_EXPECTED)  # noqa: SLF001 -- the same

    def product(rows: Tensor) -> Tensor:
        count = len(rows)
        missing = -count % ROWS_ROUNDED if count > ROWS_ROUNDED else 0
        filled = pad(rows, (0, 0, 0, missing)) if missing else rows
        result: Tensor = multiply(filled, weight, bias, "none", [], "")
        return result[:count]

    return product


def usual(projection: Projection) -> Product:
    """As it lies."""
    return lambda rows: linear(rows, projection.weight, projection.bias)
