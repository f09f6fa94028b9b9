"""Every key that Sluicegate keeps in Redis, and the reason for each lifetime.

All keys of one model share a hash tag (the model's name between braces), so that a script touches one slot of a Redis
cluster only. Names that come from outside are percent-encoded where they could break the tag.

Lifetimes are a backstop: acts remove what they end, and whatever is alive is renewed long before its time. What is
still there after a lifetime belongs to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from urllib.parse import quote

QUEUE_TTL_MS = 24 * 3600 * 1000
"""The keys of a queue, renewed together by every act: they end a day after the last gateway did.

A day, since Redis counts lifetimes on its wall clock: no plausible jump of that clock may expire a queue in use.
"""

MARK_TTL_MS = 120_000
"""How an ended entry answered, so that a repeated act answers the same. A lost reply is asked for within seconds."""

WANT_LEASE_US = 5_000_000
"""A standing want is met no longer than this after its driver last spoke; then offers wait and the driver is woken."""


_WHOLE_KEYS = frozenset({"entries", "payloads", "waiting", "lines", "lanes", "sheddable", "totals", "wants", "beats"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueKeys:
    """The keys of one model's queue, in the order in which every script takes them.

    ``turns`` and all after it are prefixes: a script appends a lane's name, a driver's id, or an entry's. Lanes are
    few, and their names come from the configuration.
    """

    entries: str  # hash: entry id -> what the rule knows of it; QUEUE_TTL_MS
    payloads: str  # hash: entry id -> payload, apart so that the rule never copies it; QUEUE_TTL_MS
    waiting: str  # sorted set: all that waits in lanes, by waiting score, then arrival number; QUEUE_TTL_MS
    lines: str  # sorted set: the same by lane, account, score, arrival number, all in the name; QUEUE_TTL_MS
    lanes: str  # hash: lane -> its virtual time; QUEUE_TTL_MS
    sheddable: str  # sorted set: what may be shed, by rank, score, arrival number, all in the name; QUEUE_TTL_MS
    totals: str  # hash: what waits in all and by class, the last arrival number, the clock; QUEUE_TTL_MS
    wants: str  # hash: driver -> its standing want, with a lease inside; QUEUE_TTL_MS
    beats: str  # hash: driver -> a number that grows with each of its acts; QUEUE_TTL_MS
    turns: str  # + lane, sorted set: the accounts that wait, by the tokens that each was given; QUEUE_TTL_MS
    idle: str  # + lane, sorted set: of the others those ahead of the virtual time, likewise; QUEUE_TTL_MS
    handed: str  # + driver, sorted set: given to it, receipt not yet known; QUEUE_TTL_MS
    held: str  # + driver, set: given to it and received; QUEUE_TTL_MS
    paused: str  # + driver, sorted set: its own line of paused sequences, ordered as `waiting`; QUEUE_TTL_MS
    inbox: str  # + driver, list of at most one token that wakes it; QUEUE_TTL_MS
    mark: str  # + entry id, string: how an entry that is gone answered; MARK_TTL_MS

    @classmethod
    def of(cls, model: str) -> QueueKeys:
        root = f"sg:{{{quote(model, safe='')}}}"
        whole = {field.name: f"{root}:{field.name}" for field in fields(cls)}
        return cls(**{name: key if name in _WHOLE_KEYS else f"{key}:" for name, key in whole.items()})

    def in_order(self) -> tuple[str, ...]:
        """As ``KEYS`` of every script."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def inbox_of(self, driver_id: str) -> str:
        return self.inbox + driver_id


# --- the directory ----------------------------------------------------------------------------------------------------

GATEWAY_TTL_MS = 15_000
"""A gateway renews its relay address every few seconds; three missed renewals and nobody dials it."""

WORKER_LEASE_TTL_MS = 15_000
"""As long as a gateway may be silent before another takes its workers over. Liveness only: epochs give safety."""

MODEL_TTL_MS = 6_000
"""A model is served while somebody who drives a worker of it renews its card, every second. When the last worker dies,
requests wait in vain and gateways call themselves ready for so long at most."""

SPEED_TTL_MS = 6_000
"""As a model's card: a driver that is gone must not count as one that drains the line."""

TOKENIZER_TTL_MS = 3600 * 1000
"""Files of some megabytes outlive a short absence of their workers, so that they are not sent again at once."""

GATEWAY_PREFIX = "sg:gateway:"  # + gateway id, string: relay address; GATEWAY_TTL_MS
WORKER_PREFIX = "sg:worker:"  # + worker address, string: gateway id, empty once given up; WORKER_LEASE_TTL_MS
MODEL_PREFIX = "sg:model:"  # + model name and tokenizer digest, string: a ModelCard frame; MODEL_TTL_MS
SPEED_PREFIX = "sg:speed:"  # + worker address, string: a driver's speed as JSON; SPEED_TTL_MS
TOKENIZER_PREFIX = "sg:tokenizer:"  # + digest, string: a TokenizerFiles frame; TOKENIZER_TTL_MS

EPOCH = "sg:epoch"
"""Integer, the last epoch given to anybody. Permanent: a fencing number that came back would let the dead speak."""

_PERMANENT = frozenset({EPOCH})


def is_permanent(key: str) -> bool:
    """Whether ``key`` may stay for ever: only the epoch counter, one small key for the whole cluster."""
    return key in _PERMANENT
