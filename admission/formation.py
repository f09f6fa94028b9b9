"""When claimed sequences become part of the batch: in any iteration, or together when the batch before has ended.

A batch that is *held* takes in nobody until its last slot is back. With two plans in flight that costs the iteration in
which the worker only lets go: a batch is not begun with the slots that happen to be free already.
"""

from __future__ import annotations

from admission.limits import Limits
from admission.presets import Batching
from admission.roster import Roster


def num_free(roster: Roster, batching: Batching, limits: Limits) -> int:
    """Slots for which nothing is claimed yet. Those that come back with the plans in flight count as free."""
    if batching is not Batching.CONTINUOUS and len(roster.batch) > 0:
        return 0
    return max(0, limits.max_slots - len(roster.batch) - len(roster.claimed))


def num_to_start(roster: Roster, batching: Batching, limits: Limits, now: int) -> int:
    """How many of the claimed sequences may start in the next plan, at most; slots and memory may allow fewer."""
    num_claimed = len(roster.claimed)
    if batching is Batching.CONTINUOUS:
        return num_claimed
    if roster.slots.in_use > 0 or num_claimed == 0:
        return 0
    if batching is Batching.HELD:
        return num_claimed
    preferred = [size for size in _preferred_sizes(limits) if size <= min(num_claimed, limits.max_slots)]
    if preferred:
        return max(preferred)
    if num_claimed >= limits.max_slots or now >= _delay_ends(roster, limits):
        return num_claimed
    return 0


def gathered_at(roster: Roster, batching: Batching, limits: Limits) -> int | None:
    """When a batch that gathers starts even if it is small (microseconds); None: nothing gathers on an idle worker."""
    if batching is not Batching.HELD_GATHERED or not roster.claimed or roster.slots.in_use > 0:
        return None
    return _delay_ends(roster, limits)


def _preferred_sizes(limits: Limits) -> tuple[int, ...]:
    return limits.preferred_sizes or (limits.max_slots,)


def _delay_ends(roster: Roster, limits: Limits) -> int:
    return min(sequence.claimed_us for sequence in roster.claimed) + limits.max_queue_delay_us
