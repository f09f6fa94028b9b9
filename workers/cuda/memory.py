"""How much of a GPU is left for the KV pool: what the rest takes is measured before the pool is sized.

Weights lie there already. A forward pass over the largest step shows what activations take; the allocator keeps that
memory, so it is missing from what is free afterwards, and stays reserved in effect. A trial capture of the largest
graph shows what graphs take; the others share its memory, and cost no more than their kernels' parameters. What the
trial itself borrowed for a small pool is counted back in.
"""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_STEP_TOKENS = 8192
"""Tokens of the step that is measured. A step may hold more (a preset without a token budget); its activations then
come out of the share that is left free."""

BYTES_PER_GRAPH = 8 << 20
"""Of every graph but the largest: nodes and parameters of some thousand kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes: ``free`` after the largest step, with a trial pool of ``trial_pool`` in place."""

    free: int
    trial_pool: int
    largest_graph: int
    num_graphs: int


def room_for_pool(measured: Measured) -> int:
    """Bytes that the KV pool may be sized from; never below zero."""
    return max(measured.free + measured.trial_pool - graph_bytes(measured.largest_graph, measured.num_graphs), 0)


def graph_bytes(largest: int, count: int) -> int:
    """What ``count`` graphs take, the largest of which took so much."""
    return largest + (count - 1) * BYTES_PER_GRAPH if count else 0


def step_lengths(*, tokens: int, max_slots: int, context_length: int) -> list[int]:
    """Lengths of the prompts of the largest step: as few as hold ``tokens``, at most one to a slot."""
    lengths: list[int] = []
    while tokens > 0 and len(lengths) < max_slots:
        lengths.append(min(tokens, context_length))
        tokens -= lengths[-1]
    return lengths
