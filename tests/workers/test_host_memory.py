"""What a worker does about its own memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from workers.host_memory import give_back

# Of Linux: elsewhere the C library keeps nothing, or has no such function.
pytestmark = [pytest.mark.torch, pytest.mark.x86]

MIB = 1 << 20


def resident() -> int:
    """MiB in memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // MIB


def test_what_was_freed_between_tensors_that_live_goes_back_to_the_system() -> None:
    """Packing frees a model layer by layer, and the C library kept more than all of it, out of the pool's reach."""
    torch.ones(24 * MIB, dtype=torch.uint8)  # freed at once: from then on memory of smaller ones is not their own
    before = resident()
    tensors = [torch.ones(MIB, dtype=torch.uint8) for _ in range(200)]
    lives = [tensor for number, tensor in enumerate(tensors) if number % 20 == 0]
    tensors.clear()
    give_back()
    assert resident() - before < 2 * len(lives) + 10
