"""One lane of the queue in memory: a line per account, and whose turn it is.

Each account has a counter of the tokens that it was given. The account with the least goes first; equal counters go by
the arrival of what stands first in their lines. So accounts that always wait get equal shares in the long run, however
unequal what they ask for.

An account that begins to wait must neither bring credit for the time in which it did not want anything, nor find its
debts forgotten. As in start-time fair queueing (Goyal, Vin and Cheng, 1996) and with virtual token counters (Sheng et
al., OSDI 2024) it starts from the greater of its own counter and the lane's *virtual time*. That time follows the
counters: given ``t`` tokens to one of ``n`` accounts that wait, it advances by ``t / n``, but not past the counter of
that account. So it never runs ahead of those who wait by more than one entry, it moves with every entry that is given,
and accounts that are new each time cannot keep one that has been served before from its turn for ever.

Nothing piles up: the counter of an account that does not wait is dropped once the virtual time has reached it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from admission.items import Item


class Lane:
    """Who joins or leaves is decided elsewhere. All acts keep the order of ``in_order`` deterministic."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Item]] = {}  # of the accounts that wait
        self._served: dict[str, int] = {}  # of those, and of any that are ahead of the virtual time
        self._virtual_time = 0

    def join(self, item: Item) -> None:
        account = item.entry.standing.account
        if account not in self._lines:
            self._lines[account] = []
            self._served[account] = max(self._served.get(account, 0), self._virtual_time)
        insort(self._lines[account], item, key=order_of)

    def leave(self, item: Item) -> None:
        account = item.entry.standing.account
        line = self._lines[account]
        del line[bisect_left(line, item.order, key=order_of)]
        if not line:
            del self._lines[account]
            if self._served[account] <= self._virtual_time:
                del self._served[account]

    def charge(self, item: Item) -> None:
        """``item``, which is in this lane, is about to be given out."""
        account, tokens = item.entry.standing.account, item.entry.tokens
        self._served[account] += tokens
        share = -(-tokens // len(self._lines))
        self._virtual_time = max(self._virtual_time, min(self._virtual_time + share, self._served[account]))
        for name in [name for name, served in self._served.items() if served <= self._virtual_time]:
            if name not in self._lines:
                del self._served[name]

    def in_order(self) -> Iterator[Item]:
        """The line of the account whose turn it is, then the next account's. The lane must not change meanwhile."""
        for account in sorted(self._lines, key=lambda name: (self._served[name], self._lines[name][0].number)):
            yield from self._lines[account]


def order_of(item: Item) -> tuple[int, int]:
    """How a line is sorted: by score, equal scores by arrival."""
    return item.order
