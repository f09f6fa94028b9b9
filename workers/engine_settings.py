"""What the engine has to be told; the worker's settings fit this shape, and say how to size each."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

DEFAULT_MODEL = "smollm2-135m-instruct"


class EngineSettings(Protocol):
    """Settings of one engine; ``None`` lets it choose."""

    @property
    def model(self) -> str | None:
        """A folder with safetensors, a ``.gguf`` file, a hub id, or the default's name (None: the default)."""
        ...

    @property
    def served_model_name(self) -> str | None:
        """What clients ask for (None: from ``model``)."""
        ...

    @property
    def device(self) -> str:
        """``auto`` (cuda when there is one), ``cpu`` or ``cuda``."""
        ...

    @property
    def dtype(self) -> str:
        """``auto`` (float32 on the cpu, bfloat16 on cuda), ``float32`` or ``bfloat16``."""
        ...

    @property
    def max_slots(self) -> int:
        """Sequences in the running batch."""
        ...

    @property
    def kv_blocks(self) -> int | None:
        """Blocks in the KV pool (None: a fraction of the free memory, at most ``max_slots`` full contexts)."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens in a KV block."""
        ...

    @property
    def swap_mib(self) -> int | None:
        """MiB of host memory for the KV of sequences that are swapped out (None: none, they are computed again)."""
        ...

    @property
    def max_model_len(self) -> int | None:
        """The longest prompt and output together, in tokens (None: the model's own)."""
        ...

    @property
    def threads(self) -> int | None:
        """Threads to compute with on the CPU (None: one per core that this process may use)."""
        ...

    @property
    def deterministic(self) -> bool:
        """Whether the bits of a sequence's logits must not depend on the rest of the batch, at whatever cost."""
        ...

    @property
    def forward(self) -> str:
        """``auto`` (the first of the others that serves the model here), ``fused``, ``packed`` or ``generic``."""
        ...

    @property
    def quantize(self) -> str | None:
        """``int8``: keep weights in eight bits (None: as ``dtype`` says)."""
        ...

    @property
    def model_cache(self) -> Path | None:
        """Where converted models are kept (None: under the user's cache folder)."""
        ...
