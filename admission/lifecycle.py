"""The life of a sequence inside one scheduler, as a table.

A sequence enters as CLAIMED, runs (PREFILL, DECODE, at times STALLED), and leaves as ENDED; a preempted one is PAUSED
until the store hands it over again. State says what is decided for the sequence. The memory that it holds follows by
its own rule: its slot and blocks return with the report of the last plan that names it, whatever its state is then.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """Where a sequence stands.

    CLAIMED: handed over by the store, not started (or not resumed) yet. PREFILL: part of its tokens is still to be
    computed. DECODE: emits one token in every plan. STALLED: decodes, but waits for a KV block that is on its way
    back. FINISHING: its last token is planned, not reported. PAUSED: preempted. ENDED: let go.
    """

    CLAIMED = "claimed"
    PREFILL = "prefill"
    DECODE = "decode"
    STALLED = "stalled"
    FINISHING = "finishing"
    PAUSED = "paused"
    ENDED = "ended"


TRANSITIONS: Mapping[State, tuple[State, ...]] = {
    State.CLAIMED: (State.PREFILL, State.DECODE, State.PAUSED, State.ENDED),
    State.PREFILL: (State.DECODE, State.FINISHING, State.PAUSED, State.ENDED),
    State.DECODE: (State.STALLED, State.FINISHING, State.PAUSED, State.ENDED),
    State.STALLED: (State.DECODE, State.PAUSED, State.ENDED),
    State.FINISHING: (State.ENDED,),
    State.PAUSED: (State.CLAIMED, State.ENDED),
    State.ENDED: (),
}


class IllegalTransition(Exception):
    """A transition that the table does not have. Nothing was changed. Always a fault of this package."""

    def __init__(self, old: State, new: State) -> None:
        super().__init__(f"a sequence cannot go from {old} to {new}")
        self.old = old
        self.new = new


def follow(old: State, new: State) -> State:
    """``new``, if the table allows it after ``old``. Raises ``IllegalTransition``."""
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(old, new)
    return new
