"""Whether the queue in memory has room for an entry, and what would have to be shed for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from admission.items import Item
from admission.lines import Lines
from admission.queue import MAX_SHED, ClassRule, Offered, QueueBounds


def room_for(newcomer: Item, lines: Lines, bounds: QueueBounds, rule: ClassRule) -> tuple[Item, ...] | Offered:
    """What to shed so that ``newcomer``, which has joined the lines, may stay; or which bound is full.

    All or nothing: when shedding ``MAX_SHED`` entries would not make room, nothing is named.
    """
    name = newcomer.entry.class_name
    if rule.max_requests is not None and lines.num_of_class(name) > rule.max_requests:
        return Offered.CLASS_FULL
    if rule.max_tokens is not None and lines.tokens_of_class(name) > rule.max_tokens:
        return Offered.CLASS_FULL
    refusal = _over(lines, bounds, ())
    if refusal is None:
        return ()
    shed: list[Item] = []
    for item in islice(lines.worst_below(newcomer.entry.rank), MAX_SHED) if rule.sheds else ():
        shed.append(item)
        if _over(lines, bounds, shed) is None:
            return tuple(shed)
    return refusal


def _over(lines: Lines, bounds: QueueBounds, shed: Sequence[Item]) -> Offered | None:
    if len(lines) - len(shed) > bounds.max_requests:
        return Offered.QUEUE_FULL
    num_tokens = lines.num_tokens - sum(item.entry.tokens for item in shed)
    if bounds.max_tokens is not None and num_tokens > bounds.max_tokens:
        return Offered.QUEUE_TOKENS_FULL
    num_bytes = lines.num_bytes - sum(len(item.entry.payload) for item in shed)
    if bounds.max_bytes is not None and num_bytes > bounds.max_bytes:
        return Offered.QUEUE_FULL
    return None
