"""Limits that were set by ``--set`` and decide nothing under a preset: each is said, none is refused.

With ``--compare`` a limit may be heeded by one preset and not by the next, and the same command line should serve for
any of them; but nobody should take a figure for the effect of a number that was never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from admission.presets import Batching, KvAdmission, PrefillRule, Preset, SlotPreemption


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unheeded:
    """Under presets that are so, these limits decide nothing, because of ``why``."""

    is_so: Callable[[Preset], bool]
    limits: tuple[str, ...]
    why: str


def _displaces_nobody(preset: Preset) -> bool:
    return preset.slot_preemption is SlotPreemption.NEVER


_UNHEEDED = (
    _Unheeded(
        is_so=lambda preset: preset.prefill is PrefillRule.WHOLE,
        limits=("token_budget", "prefill_chunk"),
        why="every prompt is computed whole",
    ),
    _Unheeded(
        is_so=lambda preset: preset.batching is not Batching.HELD_GATHERED,
        limits=("preferred_sizes", "max_queue_delay_ms"),
        why="no batch is gathered",
    ),
    _Unheeded(
        is_so=lambda preset: preset.kv_victim is None and _displaces_nobody(preset),
        limits=("progress", "pause_budget"),
        why="nothing is preempted",
    ),
    _Unheeded(
        is_so=lambda preset: preset.kv_admission is KvAdmission.PROMPT,
        limits=("max_passes",),
        why="requests are taken by slots alone",
    ),
    _Unheeded(is_so=_displaces_nobody, limits=("priority_preemption",), why="nobody is displaced for a slot"),
)


def unheeded(presets: Sequence[Preset], changes: Mapping[str, object]) -> Iterator[str]:
    """A sentence for each reason, with the limits and the presets that it concerns."""
    for rule in _UNHEEDED:
        limits = [name for name in rule.limits if name in changes]
        names = [preset.name for preset in presets if rule.is_so(preset)]
        if limits and names:
            yield f"--set {', '.join(limits)} changes nothing under {', '.join(names)}: {rule.why}"
