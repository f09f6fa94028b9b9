"""What tests of the queue in Redis offer and claim."""

from __future__ import annotations

from collections.abc import Callable

from admission.classes import BATCH, PriorityClass
from admission.events import Weakest
from admission.queue import Claim, Entry, QueueStats
from admission.redis_queue import RedisQueue
from admission.standing import HeadStart, Standing

DRIVER, OTHER_DRIVER = "g0/unix:/run/w0.sock", "g1/unix:/run/w1.sock"
BOUND = 8
NO_REPLY_S = 0.1  # long enough for a command to arrive and act
NOTHING_WAITS = QueueStats(requests=0, tokens=0, by_class=())

Opener = Callable[..., RedisQueue]


def entry(entry_id: str, of: PriorityClass = BATCH, tokens: int = 10) -> Entry:
    return Entry(
        entry_id=entry_id,
        class_name=of.name,
        rank=of.rank,
        standing=Standing(scored_by=HeadStart(us=of.head_start_us), lane=of.name),
        tokens=tokens,
        payload=f"payload of {entry_id}".encode(),
    )


def ids(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.entry.entry_id for claim in claims]


def weakest(claim: Claim) -> Weakest:
    return Weakest(sequence_id=claim.entry.entry_id, rank=claim.entry.rank, score=claim.score)
