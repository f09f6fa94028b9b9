"""Presets: how an engine decides, as values. One scheduler reads them; no engine is a subclass.

A preset says in which order sequences start, how much KV memory one must find before it starts, who is preempted, and
how its progress is kept. Numbers that depend on the machine (slots, budgets, pool) are limits, not policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from admission.order import WaitingOrder, as_claimed, by_score
from admission.victims import KvVictim, least_lost_work, newest


class KvAdmission(StrEnum):
    """The KV memory that a sequence must find free, and not promised to others, before it starts.

    PROMPT: the tokens that it has. EXPECTED: those and its expected output, set aside for admission but not locked.
    MAXIMUM: those and its whole allowed output, locked: it never runs out.
    """

    PROMPT = "prompt"
    EXPECTED = "expected"
    MAXIMUM = "maximum"


class SlotPreemption(StrEnum):
    """Whether a better newcomer may displace a running sequence when every slot is taken."""

    NEVER = "never"
    MOST_REMAINING_WORK = "most_remaining_work"


class Progress(StrEnum):
    """What a preempted sequence keeps.

    RETAIN: everything, at no cost: an idealisation for simulation. RECOMPUTE: its tokens; their KV is computed again.
    """

    RETAIN = "retain"
    RECOMPUTE = "recompute"


class ChunkCap(StrEnum):
    """When ``Limits.prefill_chunk`` bounds a sequence: ALWAYS, or only while others run beside it (UNLESS_ALONE)."""

    ALWAYS = "always"
    UNLESS_ALONE = "unless_alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One engine's policy.

    ``watermark_percent``: share of the KV pool that admission leaves free, for running sequences to grow into; an idle
    scheduler ignores it. ``pause_budget``: how often a sequence may be preempted; after that it starts only with its
    maximum reserved and is nobody's victim (None: no bound). ``progress`` is what the engine's rule assumes; whether a
    worker can do it is for the scheduler's caller to say.
    """

    name: str
    waiting_order: WaitingOrder
    kv_admission: KvAdmission
    watermark_percent: int
    kv_victim: KvVictim
    slot_preemption: SlotPreemption
    pause_budget: int | None
    chunk_cap: ChunkCap
    progress: Progress


TUTORIAL = Preset(
    name="tutorial",
    waiting_order=as_claimed,
    kv_admission=KvAdmission.PROMPT,
    watermark_percent=0,
    kv_victim=newest,
    slot_preemption=SlotPreemption.MOST_REMAINING_WORK,
    pause_budget=None,
    chunk_cap=ChunkCap.ALWAYS,
    progress=Progress.RETAIN,
)
"""The rule of the golden traces: slots alone decide, memory is not limited. On a worker with a KV pool a sequence
starts when its prompt fits, and the newest gives way when the pool runs out."""

SLUICEGATE = Preset(
    name="sluicegate",
    waiting_order=by_score,
    kv_admission=KvAdmission.EXPECTED,
    watermark_percent=2,
    kv_victim=least_lost_work,
    slot_preemption=SlotPreemption.MOST_REMAINING_WORK,
    pause_budget=3,
    chunk_cap=ChunkCap.UNLESS_ALONE,
    progress=Progress.RECOMPUTE,
)
"""The default: aged order, memory set aside by expected need, the lowest class and the least lost work give way."""

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (TUTORIAL, SLUICEGATE)}


def preset(name: str) -> Preset:
    """The preset of this name. Raises ``ValueError`` that names the known ones."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ValueError(f"unknown preset {name!r}; known are: {', '.join(PRESETS)}") from None
