"""Swapping beside the computation: copies to pinned host memory and back, on a stream of their own.

Both directions begin when the pool's stream has come to them, and hold up nothing that needs no result of theirs. What
comes back is waited for by the pool's stream, not by the host.
"""

from __future__ import annotations

import torch
from torch import Tensor


class SideStreamTransfer:
    """A ``HostTransfer`` of a pool on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it so

    def to_host(self, rows: Tensor) -> Tensor:
        pinned = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            pinned.copy_(rows, non_blocking=True)
        rows.record_stream(self._stream)  # its memory serves nobody else before the copy is done
        return pinned

    def to_device(self, rows: Tensor) -> Tensor:
        """On the same stream as ``to_host``, so after it."""
        with torch.cuda.stream(self._stream):
            back = rows.to(self._device, non_blocking=True)
        back.record_stream(torch.cuda.current_stream(self._device))
        return back

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
