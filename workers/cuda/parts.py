"""The two ways to attend on one pool: any step, and a decode that a graph can replay."""

from __future__ import annotations

from dataclasses import dataclass

from workers.attention import Backend
from workers.cuda.decodes import DecodeAttention
from workers.cuda.gather import GatherDecodes
from workers.cuda.varlen import PagedKernel, VarlenBackend
from workers.engine import gather_backend
from workers.kv_cache import KVPool
from workers.model import CausalModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Made for a pool, as a kernel allows."""

    backend: Backend
    decode_attention: DecodeAttention

    @classmethod
    def on(cls, pool: KVPool, model: CausalModel, kernel: PagedKernel | None) -> Parts:
        """``kernel`` None: by gathering."""
        if kernel is None:
            return cls(backend=gather_backend(model, pool), decode_attention=GatherDecodes(pool))
        varlen = VarlenBackend(kernel, pool, model.device)
        return cls(backend=varlen, decode_attention=varlen)
