"""Whether the queue in memory has room for a group of entries, and what would have to be shed for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from admission.items import Item
from admission.lines import Lines
from admission.queue import MAX_SHED, ClassRule, Offered, QueueBounds


def room_for(
    newcomers: Sequence[Item], handed: Sequence[Item], lines: Lines, bounds: QueueBounds, rule: ClassRule
) -> tuple[Item, ...] | Offered:
    """What to shed so that ``newcomers`` may stay in the lines; or which bound is full.

    They are a group that has joined the lines, without ``handed``, which are about to leave them again. All or nothing:
    when shedding ``MAX_SHED`` entries would not make room, nothing is named.
    """
    if not newcomers:
        return ()
    name, rank = newcomers[0].entry.class_name, newcomers[0].entry.rank
    if rule.max_requests is not None and lines.num_of_class(name) - len(handed) > rule.max_requests:
        return Offered.CLASS_FULL
    handed_tokens = sum(item.entry.tokens for item in handed)
    if rule.max_tokens is not None and lines.tokens_of_class(name) - handed_tokens > rule.max_tokens:
        return Offered.CLASS_FULL
    refusal = _over(lines, bounds, handed)
    if refusal is None:
        return ()
    shed: list[Item] = []
    for item in islice(lines.worst_below(rank), MAX_SHED) if rule.sheds else ():
        shed.append(item)
        if _over(lines, bounds, (*handed, *shed)) is None:
            return tuple(shed)
    return refusal


def _over(lines: Lines, bounds: QueueBounds, leaving: Sequence[Item]) -> Offered | None:
    if len(lines) - len(leaving) > bounds.max_requests:
        return Offered.QUEUE_FULL
    num_tokens = lines.num_tokens - sum(item.entry.tokens for item in leaving)
    if bounds.max_tokens is not None and num_tokens > bounds.max_tokens:
        return Offered.QUEUE_TOKENS_FULL
    num_bytes = lines.num_bytes - sum(len(item.entry.payload) for item in leaving)
    if bounds.max_bytes is not None and num_bytes > bounds.max_bytes:
        return Offered.QUEUE_FULL
    return None
