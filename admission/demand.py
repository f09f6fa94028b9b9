"""What a scheduler would take from the store: slots, room in memory, and whom it would give up for a better newcomer.

Slots that come back with the plans in flight count as free: what is claimed for them is here in time. Room is told in
tokens of prompt and expected output; a rule that looks at the prompt alone claims by slots instead, as long as there is
any room, and what then does not fit waits at the scheduler for memory.
"""

from __future__ import annotations

from admission.events import Want, Weakest
from admission.formation import num_free
from admission.limits import Limits
from admission.memory import Memory
from admission.presets import KvAdmission, Preset, SlotPreemption
from admission.roster import Roster
from admission.sequence import Sequence
from admission.victims import slot_victim_key


def want_of(roster: Roster, memory: Memory, preset: Preset, limits: Limits) -> Want:
    """What would be taken now."""
    slots = num_free(roster, preset.batching, limits)
    kv_tokens = memory.room_tokens(roster.claimed, num_running=roster.slots.in_use)
    may_displace = preset.slot_preemption is not SlotPreemption.NEVER and (slots == 0 or kv_tokens is not None)
    return Want(
        slots=0 if kv_tokens == 0 else slots,
        kv_tokens=None if preset.kv_admission is KvAdmission.PROMPT else kv_tokens,
        weakest=_weakest(roster, memory, limits) if may_displace else None,
        short=_short(roster, limits),
    )


def _short(roster: Roster, limits: Limits) -> tuple[tuple[str, int], ...]:
    """The classes that have fewer slots than they are guaranteed, and by how many."""
    if not limits.guaranteed_slots:
        return ()
    missing = [(name, slots - roster.num_of(name)) for name, slots in limits.guaranteed_slots]
    return tuple([(name, slots) for name, slots in missing if slots > 0])


def _weakest(roster: Roster, memory: Memory, limits: Limits) -> Weakest | None:
    """What gives its slot to a better newcomer: the lowest class, in it the most remaining work."""

    def may_yield(sequence: Sequence) -> bool:
        """Not what must stay, nor one of a class that has no more than its guaranteed slots."""
        if memory.must_stay(sequence):
            return False
        class_name = sequence.spec.class_name
        return all(name != class_name or roster.num_of(name) > slots for name, slots in limits.guaranteed_slots)

    batch, step = roster.batch, roster.next_step
    decoding = next((sequence for sequence in batch.most_work() if may_yield(sequence)), None)
    candidates = [s for s in (*batch.prefilling, *batch.stalled, *roster.claimed) if may_yield(s)]
    if decoding is not None:
        candidates.append(decoding)
    if not candidates:
        return None
    victim = max(candidates, key=lambda s: slot_victim_key(s.spec.rank, s.remaining_by(step), s.number))
    return Weakest(sequence_id=victim.spec.sequence_id, rank=victim.spec.rank, score=victim.spec.score)
