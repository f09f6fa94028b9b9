"""Trying out, at load, that a sequence's numbers do not depend on its neighbours: what ``--deterministic`` promises.

The fused forward sums each row by itself, if its compiler made of it what its source says. ``fixed_shapes.py`` gives a
library's kernels the same shapes whatever runs; that their rows do not touch each other is the library's and the
device's doing. Neither is taken on faith.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workers.engine import Engine
from workers.errors import LoadError
from workers.model import CausalModel
from workers.wire import Logprobs, NewSequence, PlanMessage, PrefillSpan, Sampling

LENGTH = 24
"""Tokens of the sequence that is looked at, and of each neighbour: not a multiple of what passes and tiles hold."""

MOST_NEIGHBOURS = 3

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_NOTHING = PlanMessage(step=0, epoch=0, frees=(), starts=(), grows=(), copies=(), prefill=(), decode=())


def check_no_experts(model: CausalModel) -> None:
    """Raises LoadError for a model that routes tokens to experts: each computes as many as came, of all sequences."""
    config = model.module.config.get_text_config()
    if any(getattr(config, name, None) for name in _EXPERT_COUNTS):
        raise LoadError(
            f"{type(model.module).__name__} routes tokens to experts, whose batches depend on everybody's tokens: it"
            " cannot be served with --deterministic."
        )


def check_invariance(engine: Engine) -> None:
    """Raises LoadError unless a sequence gets the same numbers alone and in one piece, and in chunks among others.

    Does nothing where the engine holds no second sequence of any length worth trying. The engine is empty afterwards.
    """
    length = min(LENGTH, engine.card.context_length - 2)
    blocks = -(-(length + 2) // engine.block_size)
    neighbours = min(MOST_NEIGHBOURS, engine.max_slots - 1, engine.kv_blocks // blocks - 1)
    if length < 3:
        return
    starts = [_sequence(slot, length, blocks) for slot in range(neighbours + 1)]
    alone = _scores(engine, starts[:1], chunk=length)
    for chunk in (length // 3, 1):
        if _scores(engine, [*starts[1:], starts[0]], chunk=chunk) != alone:
            raise LoadError(
                f"On this {engine.card.device}, {engine.card.name} computes a sequence differently beside others: it"
                " cannot be served with --deterministic."
            )


def _sequence(slot: int, length: int, blocks: int) -> NewSequence:
    return NewSequence(
        slot=slot,
        sequence_id=f"trial {slot}",
        tokens=tuple([2 + (7 * at + slot) % 50 for at in range(length)]),
        emitted=0,
        computed=0,
        max_tokens=2,
        sampling=Sampling(temperature=0.0, ignore_eos=True, top_logprobs=1),
        blocks=tuple(range(slot * blocks, (slot + 1) * blocks)),
    )


def _scores(engine: Engine, starts: Sequence[NewSequence], *, chunk: int) -> list[Logprobs]:
    """The log-probabilities of slot 0, whose prompt comes in chunks; the others' come whole, and then they decode."""
    length = len(starts[0].tokens)
    others = [start.slot for start in starts if start.slot != 0]
    plan = replace(
        _NOTHING,
        starts=tuple(starts),
        prefill=tuple([PrefillSpan(slot=slot, start=0, length=length, emits=True) for slot in others]),
    )
    found: list[Logprobs] = []
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        span = PrefillSpan(slot=0, start=start, length=end - start, emits=end == length)
        found += engine.execute(replace(plan, prefill=(*plan.prefill, span))).logprobs
        plan = replace(_NOTHING, decode=tuple(others))  # those that have ended are left out
    found += engine.execute(replace(_NOTHING, decode=(0,))).logprobs
    engine.reset()
    return [scores for scores in found if scores.slot == 0]
