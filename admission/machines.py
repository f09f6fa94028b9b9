"""Machines to simulate: what an iteration costs there, and the limits that fit it.

A profile is a place to start from, and says where its figures come from. Every limit can be set anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from admission.cost import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A cost model and limits. ``origin`` is one line: what was measured or assumed."""

    name: str
    origin: str
    cost: CostModel
    max_slots: int
    token_budget: int
    prefill_chunk: int
    kv_blocks: int
    block_size: int
    context_length: int


CPU_135M = Machine(
    name="cpu-135m",
    origin="fitted to this project's CPU worker, SmolLM2-135M in bf16 on two cores",
    cost=CostModel(
        base_ns=34_400_000, decode_ns=1_200_000, prefill_ns=1_200_000, kv_ns_per_1k=2_000_000, swap_ns=2_300
    ),
    max_slots=32,
    token_budget=256,
    prefill_chunk=128,
    kv_blocks=16_384,
    block_size=16,
    context_length=8_192,
)
"""What `make run` serves, with its default limits. Measured: steps of 36, 47 and 87 ms with 1, 8 and 32 sequences that
decode at about 200 tokens each; the model gives 36.0, 47.2 and 85.6. How much of that is reading KV, and that a prefill
token costs what a decode token does, is estimated. The pool holds all slots at full length, as the worker sizes it.
Swapping copies 23 kB per token at 10 GB/s."""

GPU_7B = Machine(
    name="gpu-7b",
    origin="assumed from data sheets, not measured: Mistral-7B, bf16, one A100 of 80 GB",
    cost=CostModel(base_ns=8_900_000, decode_ns=46_000, prefill_ns=93_000, kv_ns_per_1k=80_000, swap_ns=5_200),
    max_slots=128,
    token_budget=512,
    prefill_chunk=512,
    kv_blocks=27_000,
    block_size=16,
    context_length=32_768,
)
"""A roofline, not a measurement. NVIDIA's A100 data sheet gives 312 TFLOPS (bf16, dense) and 2.04 TB/s; the Mistral 7B
paper (Jiang et al., 2023) 7.24 billion parameters, 32 layers, 8 KV heads of 128. An iteration reads 14.5 GB of weights
at 80 % of the bandwidth: 8.9 ms. A prefill token costs 14.5 GFLOP at half the peak (93 us), a decode token the same at
the peak, as it mostly hides behind the weights (46 us). A token of KV has 131 kB: 80 us per 1,000 read, 5.2 us to copy
at 25 GB/s (PCIe 4.0 x16). 57 GB beside the weights, at 90 % of the card, hold 27,000 blocks of 16."""

MACHINES: Mapping[str, Machine] = {machine.name: machine for machine in (CPU_135M, GPU_7B)}
