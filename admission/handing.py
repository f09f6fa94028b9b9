"""What of a group that is offered meets standing wants, found out before anything is given.

A group is taken as a whole or not at all, and only what is not handed over must fit the bounds. So who would be given
what is worked out first, on assumptions; when the rest fits, it is carried out.

The drivers that want something take turns: the one with most free slots takes all that claims of it would now be given,
as long as that belongs to the group, then the next one. So choices of one prompt, which share its KV, come to one
driver as far as it has room. What a driver would be given ahead of the group (something that waits and that it has not
claimed yet) ends its turn: it will claim by itself.

Accounts are charged when it is carried out: within a group, whose turn it is does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from admission.items import Item
from admission.wants import Assumed, Choice, StandingWant

Choose = Callable[[str, StandingWant, Assumed], Choice | None]
"""What a driver would be given next."""


@dataclass(slots=True, kw_only=True)
class Handing:
    """``rows``: a driver and what was chosen for it, in order. ``wants``: what these drivers still want then."""

    rows: list[tuple[str, Choice]] = field(default_factory=list)
    wants: dict[str, StandingWant] = field(default_factory=dict)


def hand_over(group: Collection[Item], wants: dict[str, StandingWant], choose: Choose) -> Handing:
    """Who would now be given what of ``group``, which has joined the lines. ``wants`` are copies, and are used up."""
    handing, assumed = Handing(), Assumed()
    ids = {item.entry.entry_id for item in group}
    driver_id = _with_most_slots(wants)
    while driver_id is not None and len(handing.rows) < len(ids):
        want = wants[driver_id]
        choice = choose(driver_id, want, assumed) if want.slots > 0 else None
        if choice is not None and choice.victim is None and choice.item.entry.entry_id in ids:
            handing.rows.append((driver_id, choice))
            handing.wants[driver_id] = want
            assumed.give(choice)
            want.take(choice.item.entry)
        else:
            del wants[driver_id]
            driver_id = _with_most_slots(wants)
    return handing


def _with_most_slots(wants: dict[str, StandingWant]) -> str | None:
    return min(wants, key=lambda driver_id: (-wants[driver_id].slots, driver_id), default=None)
