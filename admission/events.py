"""What goes into the scheduler and what comes out: ``step(events, now) -> Step(plan, want, wake_at)``.

All values are frozen. Times are integer microseconds on whatever clock the shell feeds in; lengths are tokens; KV
memory is counted in blocks. The scheduler sees lengths and block hashes, never token ids or text, so a log of these
events is private by construction.

A *sequence* is named by ``sequence_id`` (unique for ever) outside, and by its *slot* (its place in the running batch,
an integer below ``max_slots``) in plans and reports, as on the wire. A slot is reused only after the report of the last
plan that names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from admission.limits import Limits


class FinishReason(StrEnum):
    """Why a sequence ended by itself, as the worker found it."""

    STOP = "stop"
    LENGTH = "length"
    FAILED = "failed"


class EndReason(StrEnum):
    """Why the scheduler let a sequence go. A closed list: it doubles as a metric label."""

    STOP = "stop"
    LENGTH = "length"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEADLINE = "deadline_exceeded"
    WORKER_LOST = "worker_lost"


class PauseReason(StrEnum):
    """Why a started sequence was preempted and waits to continue."""

    SLOT = "slot"
    KV = "kv"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpec:
    """What the scheduler needs to know of one sequence.

    ``score`` is its waiting score (less goes first), ``emitted_tokens`` how many output tokens it already has (after a
    move to another driver), ``expected_tokens`` the expected output, fixed at arrival, ``block_hashes`` one hash per
    full block of the prompt (empty: no prefix reuse). ``deadline_us`` is absolute.
    """

    sequence_id: str
    class_name: str
    rank: int
    score: int
    arrival_us: int
    prompt_tokens: int
    max_tokens: int
    expected_tokens: int
    tenant: str = ""
    emitted_tokens: int = 0
    deadline_us: int | None = None
    block_hashes: tuple[bytes, ...] = ()


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The store handed a sequence to this scheduler: a new one, or one of its own that was paused."""

    sequence: SequenceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The store put ``victim_id`` back into the queue as paused and handed over ``sequence`` for its slot."""

    sequence: SequenceSpec
    victim_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Nobody wants this sequence any more. Unknown and ended ids are ignored: a cancel may cross a finish."""

    sequence_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Within a report: the sequence in ``slot`` gave its last token (or failed) in that step."""

    slot: int
    reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The worker executed plan ``step``. Every planned emission came out, save for sequences that had finished before.

    ``live_blocks`` is the worker's own count of distinct blocks in use, checked against the ledger as of that plan.
    """

    step: int
    finished: tuple[Finished, ...] = ()
    live_blocks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """The worker is gone, with its KV and the plans in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsChanged:
    """New limits, in force from the next plan on."""

    limits: Limits


Event = Claimed | Exchanged | Cancelled | Reported | WorkerLost | LimitsChanged


# --- plan -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """``sequence_id`` takes ``slot``. The KV of ``computed_tokens`` of its tokens need not be computed.

    That of ``swapped_tokens`` of these lies in host memory, where it was copied when the sequence was preempted, and is
    copied into ``blocks`` before the plan runs. The others are in ``blocks`` already.
    """

    slot: int
    sequence_id: str
    blocks: tuple[int, ...]
    computed_tokens: int = 0
    swapped_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Compute tokens ``start .. start + length`` of the sequence in ``slot``; the last chunk emits a token."""

    slot: int
    start: int
    length: int
    emits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Grow:
    """Append ``blocks`` to the block table of ``slot``."""

    slot: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One iteration. The worker applies ``frees``, then ``starts``, then ``grows``, then runs one forward pass.

    ``decode`` names the slots that each emit one token, ``prefill`` the chunks, both in the scheduler's order. A plan
    may hold only frees: then nothing is computed and the report comes at once.
    """

    step: int
    frees: tuple[int, ...] = ()
    starts: tuple[Start, ...] = ()
    grows: tuple[Grow, ...] = ()
    prefill: tuple[Prefill, ...] = ()
    decode: tuple[int, ...] = ()


# --- step -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakest:
    """The running sequence that a better newcomer may displace: its rank and waiting score."""

    sequence_id: str
    rank: int
    score: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What this scheduler would take from the store now.

    ``slots`` free slots, ``kv_tokens`` room for new sequences in tokens (None: not limited), ``weakest`` what it would
    give back for a better newcomer that finds no slot or not enough room (None: nothing). ``short`` has (class, slots)
    for each class that runs fewer sequences than its guaranteed slots.
    """

    slots: int
    kv_tokens: int | None = None
    weakest: Weakest | None = None
    short: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The scheduler let this sequence go; the store settles it, the origin is told when it does not know yet."""

    sequence_id: str
    reason: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """Preempted without an exchange: the driver gives it back to the store (a forced return)."""

    sequence_id: str
    reason: PauseReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What came of one step. ``plan`` is None when nothing is to run or enough plans are in flight.

    ``wake_at`` (microseconds) is when the core next needs a step without an event; None: never.
    """

    plan: Plan | None
    want: Want
    wake_at: int | None
    ended: tuple[Ended, ...] = ()
    paused: tuple[Paused, ...] = ()
