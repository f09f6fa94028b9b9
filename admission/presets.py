"""Presets: how an engine decides, as values. One scheduler reads them; no engine is a subclass.

A preset says when a batch is formed, in which order sequences start, how a prompt is cut, how much KV memory a sequence
must find before it starts, who is preempted, and how its progress is kept. Numbers that depend on the machine (slots,
budgets, pool, delays) are limits, not policy.

What a preset takes from an engine is its rule for these questions, not its whole behaviour: the guards that the
scheduler promises (some sequence always advances; no limit is exceeded) hold under every preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from admission.order import ORDERS, WaitingOrder, aging, as_claimed, fcfs, priority
from admission.standing import WaitingOrderName
from admission.victims import KvVictim, least_lost_work, lowest_class_newest, newest


class Batching(StrEnum):
    """When claimed sequences may start.

    CONTINUOUS: in every iteration. HELD: when the batch before has ended to its last member, then all that wait, up to
    the slots. HELD_GATHERED: the same, but they first wait for ``Limits.preferred_sizes`` or ``max_queue_delay_us``.
    """

    CONTINUOUS = "continuous"
    HELD = "held"
    HELD_GATHERED = "held_gathered"


class PrefillRule(StrEnum):
    """How much of a prompt one iteration computes.

    WHOLE: all of it; there is no token budget. CHUNKED: what the decodes leave of the budget, at most
    ``Limits.prefill_chunk`` of one sequence. CHUNKED_UNLESS_ALONE: the same, without that cap while it runs alone.
    """

    WHOLE = "whole"
    CHUNKED = "chunked"
    CHUNKED_UNLESS_ALONE = "chunked_unless_alone"


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

    RETAIN: everything, at no cost: an idealisation for simulation. RECOMPUTE: its tokens; their KV is prefilled again.
    SWAP: its KV, in host memory; it is copied out when the sequence leaves, and back when it starts again, as
    ``Start.swapped_tokens`` says, so that a cost model can charge for it.
    """

    RETAIN = "retain"
    RECOMPUTE = "recompute"
    SWAP = "swap"


class PrefixReuse(StrEnum):
    """Whether full blocks with the same tokens, and the same tokens before them, are shared and kept for later.

    NONE: every sequence computes all of its prompt. SHARED: what is there is used. AWAITED: and a sequence whose next
    block is being computed waits for it, instead of computing the same beside it.
    """

    NONE = "none"
    SHARED = "shared"
    AWAITED = "awaited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One engine's policy.

    ``watermark_percent``: share of the KV pool that admission leaves free, for running sequences to grow into; an idle
    scheduler ignores it. ``kv_victim``: who gives way when a running sequence finds no block; None with
    ``KvAdmission.MAXIMUM`` only, where that cannot be. ``pause_budget``: how often a sequence may be preempted; after
    that it starts only with its maximum reserved and is nobody's victim (None: no bound). ``progress`` is what the
    engine's rule assumes; whether a worker can do it is for the scheduler's caller to say. ``max_passes`` is for the
    queue behind: how often a request that does not fit the memory may see a later one start before it.
    """

    name: str
    batching: Batching
    waiting_order: WaitingOrder
    prefill: PrefillRule
    kv_admission: KvAdmission
    watermark_percent: int
    kv_victim: KvVictim | None
    slot_preemption: SlotPreemption
    pause_budget: int | None
    progress: Progress
    prefix_reuse: PrefixReuse
    max_passes: int

    def __post_init__(self) -> None:
        if self.kv_victim is None and self.kv_admission is not KvAdmission.MAXIMUM:
            raise ValueError(f"preset {self.name!r} may run out of KV memory and names no victim")


STATIC = Preset(
    name="static",
    batching=Batching.HELD,
    waiting_order=fcfs,
    prefill=PrefillRule.WHOLE,
    kv_admission=KvAdmission.MAXIMUM,
    watermark_percent=0,
    kv_victim=None,
    slot_preemption=SlotPreemption.NEVER,
    pause_budget=None,
    progress=Progress.RECOMPUTE,
    prefix_reuse=PrefixReuse.NONE,
    max_passes=0,
)
"""Static batching, as FasterTransformer and Hugging Face pipelines do it (the "request-level scheduling" that the Orca
paper, Yu et al., OSDI 2022, sets out from). What waits when the engine is idle becomes the batch, first
come first served, up to the slots; nobody joins it, and a slot whose sequence has ended stays empty until the longest
has. Prompts are computed whole in the first iteration; memory is reserved for the longest output allowed."""

REQUEST_DYNAMIC = Preset(
    name="request-dynamic",
    batching=Batching.HELD_GATHERED,
    waiting_order=fcfs,
    prefill=PrefillRule.WHOLE,
    kv_admission=KvAdmission.MAXIMUM,
    watermark_percent=0,
    kv_victim=None,
    slot_preemption=SlotPreemption.NEVER,
    pause_budget=None,
    progress=Progress.RECOMPUTE,
    prefix_reuse=PrefixReuse.NONE,
    max_passes=0,
)
"""The dynamic batcher of the Triton Inference Server (its documentation, "Batchers": preferred batch sizes, delayed
batching). An idle engine starts the largest preferred size that can be filled; if none can, whatever waits, once its
oldest has waited for the maximum queue delay. Dynamic is how the batch is formed: once formed it is held to the end of
its last member, like a static one."""

ORCA = Preset(
    name="orca",
    batching=Batching.CONTINUOUS,
    waiting_order=fcfs,
    prefill=PrefillRule.WHOLE,
    kv_admission=KvAdmission.MAXIMUM,
    watermark_percent=0,
    kv_victim=None,
    slot_preemption=SlotPreemption.NEVER,
    pause_budget=None,
    progress=Progress.RECOMPUTE,
    prefix_reuse=PrefixReuse.NONE,
    max_passes=0,
)
"""Iteration-level scheduling of Orca (Yu et al., OSDI 2022). Before every iteration free slots are filled
first come first served; a sequence starts when KV memory for its prompt and its maximum output can be reserved, and the
first that cannot stops the selection. A prompt is computed whole, beside the decodes: no token budget bounds an
iteration, so a long prompt delays every stream by its own cost."""

SARATHI = Preset(
    name="sarathi",
    batching=Batching.CONTINUOUS,
    waiting_order=fcfs,
    prefill=PrefillRule.CHUNKED,
    kv_admission=KvAdmission.PROMPT,
    watermark_percent=0,
    kv_victim=newest,
    slot_preemption=SlotPreemption.NEVER,
    pause_budget=None,
    progress=Progress.RECOMPUTE,
    prefix_reuse=PrefixReuse.NONE,
    max_passes=0,
)
"""Stall-free batching of Sarathi-Serve (Agrawal et al., OSDI 2024). Every decode first, then prefills that
have begun, then new ones, each with a chunk of what is left of the token budget; no iteration exceeds the budget. A
sequence starts when its prompt fits; when memory runs out the newest is preempted and computed again."""

VLLM_V1 = Preset(
    name="vllm-v1",
    batching=Batching.CONTINUOUS,
    waiting_order=priority,
    prefill=PrefillRule.CHUNKED,
    kv_admission=KvAdmission.PROMPT,
    watermark_percent=1,
    kv_victim=lowest_class_newest,
    slot_preemption=SlotPreemption.NEVER,
    pause_budget=None,
    progress=Progress.RECOMPUTE,
    prefix_reuse=PrefixReuse.SHARED,
    max_passes=0,
)
"""The scheduler of vLLM's V1 engine under its "priority" policy (vLLM documentation, SchedulerConfig and "Optimization
and Tuning"); with one class it is the "fcfs" policy. ``Limits.token_budget`` is ``max_num_batched_tokens``, and
``Limits.prefill_chunk`` is ``long_prefill_token_threshold``. A sequence starts when its prompt fits and leaves the
watermark (1 % of the pool, the default of vLLM's block manager before V1); when memory runs out, the lowest priority
and in it the newest is preempted and computed again. vLLM never preempts for a slot. Full blocks are shared by hash
("automatic prefix caching", on by default)."""

TRTLLM_MAX_UTILIZATION = Preset(
    name="trtllm-max-utilization",
    batching=Batching.CONTINUOUS,
    waiting_order=fcfs,
    prefill=PrefillRule.CHUNKED,
    kv_admission=KvAdmission.PROMPT,
    watermark_percent=0,
    kv_victim=newest,
    slot_preemption=SlotPreemption.NEVER,
    pause_budget=None,
    progress=Progress.RECOMPUTE,
    prefix_reuse=PrefixReuse.SHARED,
    max_passes=0,
)
"""Capacity policy MAX_UTILIZATION of TensorRT-LLM (its documentation, "Useful Runtime Options", Capacity Scheduler
Policy). Starts whatever fits now, at the risk of pausing: a newcomer needs the blocks of its own tokens and nothing is
kept back for those that run; when memory runs out the newest is paused, its blocks are freed and it is computed again
later. The rule for memory is that of `sarathi`; the engine's name for it differs, and full blocks are shared ("KV cache
reuse")."""

TRTLLM_GUARANTEED_NO_EVICT = Preset(
    name="trtllm-guaranteed-no-evict",
    batching=Batching.CONTINUOUS,
    waiting_order=fcfs,
    prefill=PrefillRule.CHUNKED,
    kv_admission=KvAdmission.MAXIMUM,
    watermark_percent=0,
    kv_victim=None,
    slot_preemption=SlotPreemption.NEVER,
    pause_budget=None,
    progress=Progress.RECOMPUTE,
    prefix_reuse=PrefixReuse.SHARED,
    max_passes=0,
)
"""Capacity policy GUARANTEED_NO_EVICT of TensorRT-LLM, its default (its documentation, "Useful Runtime Options",
Capacity Scheduler Policy). A sequence starts only when prompt and maximum output can be kept for it to its end, so what
has started is never paused; the price is memory that early stops leave unused. Full blocks are shared ("KV cache
reuse")."""

TUTORIAL = Preset(
    name="tutorial",
    batching=Batching.CONTINUOUS,
    waiting_order=as_claimed,
    prefill=PrefillRule.CHUNKED,
    kv_admission=KvAdmission.PROMPT,
    watermark_percent=0,
    kv_victim=newest,
    slot_preemption=SlotPreemption.MOST_REMAINING_WORK,
    pause_budget=None,
    progress=Progress.RETAIN,
    prefix_reuse=PrefixReuse.NONE,
    max_passes=0,
)
"""The rule of the golden traces: slots alone decide, memory is not limited. On a worker with a KV pool a sequence
starts when its prompt fits, and the newest gives way when the pool runs out."""

SLUICEGATE = Preset(
    name="sluicegate",
    batching=Batching.CONTINUOUS,
    waiting_order=aging,
    prefill=PrefillRule.CHUNKED_UNLESS_ALONE,
    kv_admission=KvAdmission.EXPECTED,
    watermark_percent=2,
    kv_victim=least_lost_work,
    slot_preemption=SlotPreemption.MOST_REMAINING_WORK,
    pause_budget=3,
    progress=Progress.RECOMPUTE,
    prefix_reuse=PrefixReuse.AWAITED,
    max_passes=4,
)
"""The default: aged order, memory set aside by expected need, the lowest class and the least lost work give way. Full
blocks are shared, and one of several equal prompts is computed before the others go on."""

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        STATIC,
        REQUEST_DYNAMIC,
        ORCA,
        SARATHI,
        VLLM_V1,
        TRTLLM_MAX_UTILIZATION,
        TRTLLM_GUARANTEED_NO_EVICT,
        TUTORIAL,
        SLUICEGATE,
    )
}


def queue_order(rule: Preset) -> WaitingOrderName:
    """The order of the queue behind a scheduler. A preset that takes what it is given leaves it to the default.

    Not to arrival: then no newcomer would have a better score than what runs, and none could displace anything.
    """
    names = [name for name, order in ORDERS.items() if order is rule.waiting_order]
    return WaitingOrderName(names[0]) if names else WaitingOrderName.AGING


def preset(name: str) -> Preset:
    """The preset of this name. Raises ``ValueError`` that names the known ones."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ValueError(f"unknown preset {name!r}; known are: {', '.join(PRESETS)}") from None
