"""What the engine has to be told, and how to size it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of one engine; ``None`` lets it choose.

    ``model``: the default's name, a folder with safetensors, a ``.gguf`` file or a hub id.
    ``served_model_name``: what clients ask for (None: from ``model``).
    ``device``: ``auto`` (cuda when there is one), ``cpu`` or ``cuda``.
    ``dtype``: ``auto`` (float32 on cpu, bfloat16 on cuda), ``float32`` or ``bfloat16``.
    ``max_slots``: sequences in the running batch; more raises throughput and inter-token time alike.
    ``kv_blocks``: blocks in the KV pool (None: what a fraction of the free memory holds, and never more than
    ``max_slots`` full contexts).
    ``block_size``: tokens per KV block; small wastes less of a sequence's last block, large copies faster.
    ``max_model_len``: the longest prompt plus output to accept (None: the model's own).
    ``threads``: torch's threads on the CPU (None: one per core that this process may use).
    ``model_cache``: where converted models are kept (None: under the user's cache folder).
    """

    model: str = DEFAULT_MODEL
    served_model_name: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    max_slots: int = 32
    kv_blocks: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    threads: int | None = None
    model_cache: Path | None = None
