"""What a step sampled, on its way to the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Readback:
    """A copy of ``tensor`` into host memory, begun at once and waited for only in ``wait``.

    The event behind the copy fires when the device has come this far, and no later work holds it up.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.device.type == "cuda":
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            # Blocking: the thread that waits sleeps meanwhile, and leaves its core to others.
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch leaves it so
            self._event.record()

    def wait(self) -> Tensor:
        """The numbers, on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
