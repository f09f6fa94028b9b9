"""Getting tensors from the host to where the model computes."""

from __future__ import annotations

from torch import Tensor, device


def send(tensor: Tensor, target: device) -> Tensor:
    """``tensor``, which lies on the host, on ``target``; the host does not wait for a GPU.

    A copy from ordinary memory would wait for all that the device still has to do; one from pinned memory takes its
    place in the stream. torch keeps the pinned memory until the copy is done.
    """
    if target.type == "cpu":
        return tensor
    return tensor.pin_memory().to(target, non_blocking=True)
