"""Priority classes: who goes first, and how long that stays true.

A class has a *rank* (0 is the most important) and a *head start*: under the aging order an entry's waiting score is
``arrival - head_start``, fixed at arrival, and the least score goes first. So a batch request outranks every
interactive one that arrives more than ``head_start[interactive] - head_start[batch]`` after it: nobody waits for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """One class of traffic. ``service_tier`` is the OpenAI name that selects it.

    ``max_priority``: it takes the integer priorities up to this one that no better class takes (lower is more urgent,
    as vLLM counts); None: all the rest. ``default_deadline_us`` bounds its requests from receipt to the last token,
    when they bring no earlier one.

    ``share_percent`` of a worker's slots are guaranteed to it; what it leaves idle others use until it comes back.
    ``max_waiting`` requests and ``max_waiting_tokens`` (prompt and expected output) of it may wait (None: only the
    queue's own bounds count; 0: none, so it is served at once or refused). ``sheds``: one that finds the queue full
    displaces waiting requests of lower classes that are ``sheddable``. ``preempts``: it may take the slot of a running
    sequence of a lower class that is ``preemptible``.
    """

    name: str
    rank: int
    head_start_us: int
    service_tier: str
    max_priority: int | None = None
    default_deadline_us: int | None = None
    share_percent: int = 0
    max_waiting: int | None = None
    max_waiting_tokens: int | None = None
    sheds: bool = False
    sheddable: bool = False
    preempts: bool = True
    preemptible: bool = True


INTERACTIVE = PriorityClass(
    name="interactive", rank=0, head_start_us=30 * SECOND_US, service_tier="priority", max_priority=-1, sheds=True
)
STANDARD = PriorityClass(
    name="standard", rank=1, head_start_us=10 * SECOND_US, service_tier="default", max_priority=0, sheds=True
)
BATCH = PriorityClass(name="batch", rank=2, head_start_us=0, service_tier="flex", sheddable=True)

DEFAULT_CLASSES: tuple[PriorityClass, ...] = (INTERACTIVE, STANDARD, BATCH)
