"""The bounds of one scheduler, each explained by how to size it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one scheduler and its worker. Tokens are counted per iteration, KV memory in blocks.

    ``max_slots``: sequences in the running batch; more raises throughput and inter-token time alike.
    ``token_budget``: tokens per iteration (None: no budget); size it to the inter-token time you can bear.
    ``prefill_chunk``: most prompt tokens of one sequence per iteration.
    ``kv_blocks`` / ``block_size``: the worker's KV pool (``kv_blocks`` None: memory is not limited).
    ``host_blocks``: the worker's host memory for swapped sequences, in blocks (None: not limited).
    ``preferred_sizes`` / ``max_queue_delay_us``: for a preset that gathers a batch before it starts: the sizes at which
    it starts at once (none: the slots), and how long its oldest member waits for others (0: not at all).
    ``max_in_flight``: plans on the worker at once; 2 hides the gateway's own time, 1 gives the tutorial's semantics.
    ``guaranteed_slots``: (class, slots) that it gets before any other class does, and that nobody displaces it from;
    what it leaves idle others use. ``unpreemptible``: classes whose sequences run to their end once started; each
    starts only when memory for its whole output can be kept for it.
    """

    max_slots: int
    token_budget: int | None
    prefill_chunk: int | None
    kv_blocks: int | None = None
    block_size: int = 16
    host_blocks: int | None = None
    preferred_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    max_in_flight: int = 1
    guaranteed_slots: tuple[tuple[str, int], ...] = ()
    unpreemptible: tuple[str, ...] = ()


def check_limits(limits: Limits) -> None:
    """Raise ``ValueError`` for limits under which nothing, or not every decoding sequence, could run."""
    for name in ("max_slots", "block_size", "max_in_flight"):
        if getattr(limits, name) < 1:
            raise ValueError(f"{name} must be at least 1")
    for name in ("token_budget", "prefill_chunk", "kv_blocks"):
        value = getattr(limits, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1")
    if any(size < 1 for size in limits.preferred_sizes) or limits.max_queue_delay_us < 0:
        raise ValueError("preferred_sizes must be at least 1 and max_queue_delay_us at least 0")
    guaranteed = [slots for _, slots in limits.guaranteed_slots]
    if any(slots < 0 for slots in guaranteed) or sum(guaranteed) > limits.max_slots:
        raise ValueError("guaranteed_slots must be at least 0 each, and all of them at most max_slots")
    if limits.token_budget is not None and limits.token_budget < limits.max_slots:
        raise ValueError("token_budget must be at least max_slots: every slot decodes in every iteration")
