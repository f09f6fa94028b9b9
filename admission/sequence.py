"""The scheduler's own record of one sequence: what is decided for it and how far the plans have taken it.

Progress is counted as *planned*: with plans in flight it runs ahead of the reports by what they will bring. While a
sequence decodes, every plan gives it one token, so its progress is not counted up but read off the plan number::

    emitted_by(step) = emitted + (step - decode_from)     tokens emitted by the plans before ``step``
"""

from __future__ import annotations

from dataclasses import dataclass

from admission.events import PauseReason, SequenceSpec
from admission.ledger import Holding
from admission.lifecycle import State, follow


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """Mutable, owned by one scheduler. Tokens unless said otherwise; plans are named by their step.

    ``number`` grows with every claim and breaks all ties; ``claimed_us`` is when that was. ``prefilled`` tokens are
    computed (as planned), ``prefill_left`` are to be computed before it decodes. ``last_plan`` is the latest plan that
    names it, kept up while it does not decode. ``announce`` is set while the store must be told of its pause when its
    blocks are back. ``kept_tokens`` of a preempted one lie computed in the blocks that it is about to let go of.

    For ``prefixes``, in blocks: ``published`` of those that it has, ``filling`` those of its prompt that it has yet to
    fill, ``num_named`` how many of its content were ever published or found.
    """

    spec: SequenceSpec
    number: int
    claimed_us: int
    state: State = State.CLAIMED
    emitted: int
    prefilled: int = 0
    prefill_left: int
    pauses: int = 0
    announce: PauseReason | None = None
    slot: int | None = None
    holding: Holding | None = None
    first_plan: int = 0
    last_plan: int = 0
    decode_from: int = 0
    final_step: int = 0
    growth_step: int | None = None
    failed: bool = False
    kept_tokens: int = 0
    num_passed: int = 0
    published: int = 0
    filling: range = range(0)
    num_named: int = 0

    @classmethod
    def from_spec(cls, spec: SequenceSpec, *, number: int, claimed_us: int) -> Sequence:
        known = spec.prompt_tokens + spec.emitted_tokens
        return cls(spec=spec, number=number, claimed_us=claimed_us, emitted=spec.emitted_tokens, prefill_left=known)

    def to(self, state: State) -> State:
        """Enter ``state``; the state it left. Raises ``IllegalTransition`` and changes nothing."""
        old = self.state
        self.state = follow(old, state)
        return old

    def emitted_by(self, step: int) -> int:
        """Output tokens that the plans before ``step`` (the next one to be built) emit."""
        if self.state is State.DECODE:
            return self.emitted + step - self.decode_from
        return self.emitted

    def computed_by(self, step: int) -> int:
        """Tokens whose KV the plans before ``step`` compute."""
        if self.state is State.DECODE:
            return self.spec.prompt_tokens + self.emitted_by(step) - 1
        return self.prefilled

    def remaining_by(self, step: int) -> int:
        """Work left after the plans before ``step``: tokens to prefill and tokens to emit."""
        return self.prefill_left + self.spec.max_tokens - self.emitted_by(step)

    def forget_computed(self) -> None:
        """Its KV is gone: all its tokens are to be computed again."""
        self.prefilled = 0
        self.prefill_left = self.known_tokens

    @property
    def known_tokens(self) -> int:
        """Prompt and emitted tokens, while it does not decode."""
        return self.spec.prompt_tokens + self.emitted


def slot_of(sequence: Sequence) -> int:
    """The slot of a sequence that runs or drains."""
    if sequence.slot is None:
        raise AssertionError(f"{sequence.spec.sequence_id} has no slot")
    return sequence.slot


def holding_of(sequence: Sequence) -> Holding:
    """The KV account of a sequence that runs or drains."""
    if sequence.holding is None:
        raise AssertionError(f"{sequence.spec.sequence_id} has no account")
    return sequence.holding
