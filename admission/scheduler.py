"""The scheduler of one worker: events in, one plan out, nothing else.

``step(events, now)`` takes in what happened and then decides the next iteration. It owns every sequence from the claim
to its end (``Sequence``, by the table in ``lifecycle``), the KV ledger, and the plans in flight.

One plan, in this order:

1. **Grow.** Decoding sequences whose next token needs one more KV block get it, best class and oldest first. When none
   is left, the preset chooses a victim; while the victim's blocks are named by a plan in flight the sequence stalls.
2. **Place.** Claimed sequences start while slots and memory allow, in the preset's waiting order: in every plan, or
   under a preset that holds its batch only when nothing runs. The head is not passed over, save one that waits for a
   prefix which another sequence computes, and that a bounded number of times.
3. **Decode.** Every sequence whose prefill is done emits one token.
4. **Prefill.** The rest of the budget goes to chunks, in the order in which sequences started; a preset without a
   budget computes prompts whole. The last chunk emits the first token.

Plans run ahead of reports by up to ``max_in_flight``. Output lengths are known but for an early stop, so the scheduler
advances every sequence when it *plans*, and never plans past ``max_tokens``. What ended or was preempted is in no later
plan; its slot and blocks return with the report of the last plan that names it. Tokens of a preempted sequence in plans
that were in flight are valid output.

Invariants (tested with generated events): no plan exceeds slots, budget, chunk or pool · the ledger balances · every
sequence ends exactly once · equal events give equal plans · the oldest sequence of the best running class is not
displaced for memory by another that has not used up its pauses, so some sequence always advances.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass

from admission.demand import want_of
from admission.events import (
    Cancelled,
    Claimed,
    EndReason,
    Event,
    Exchanged,
    FinishReason,
    LimitsChanged,
    PauseReason,
    Plan,
    Reported,
    SequenceSpec,
    Step,
    Want,
    WorkerLost,
)
from admission.formation import gathered_at
from admission.ledger import Ledger
from admission.lifecycle import State
from admission.limits import Limits, check_limits
from admission.memory import Memory
from admission.planner import Planner
from admission.prefixes import Prefixes
from admission.presets import PrefixReuse, Preset, Progress
from admission.roster import Outbox, Roster
from admission.sequence import Sequence
from admission.swaps import Swaps


class ReportError(Exception):
    """The worker said something that cannot be: treat the worker as lost. The scheduler has changed nothing."""


class UnexpectedReport(ReportError):
    """A report that does not answer the oldest plan in flight, or names a slot that this plan does not."""


class LedgerMismatch(ReportError):
    """The worker holds another number of KV blocks than the ledger gave it, as of that plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInFlight:
    """A plan on the worker, and what holds once it has run.

    ``finals`` have got their last token, ``fills`` are computed up to so many tokens, and so many blocks are in use.
    """

    step: int
    finals: tuple[Sequence, ...]
    fills: tuple[tuple[Sequence, int], ...]
    live_blocks: int
    host_blocks: int


class Scheduler:
    """See the module. ``progress`` is what the worker behind can do for a preempted sequence.

    Raises ``ValueError`` for limits that cannot work. A ``Reported`` that is not due raises ``ReportError``.
    """

    def __init__(self, limits: Limits, preset: Preset, *, progress: Progress = Progress.RECOMPUTE) -> None:
        check_limits(limits)
        self._limits = limits
        self._preset = preset
        self._progress = progress
        self._outbox = Outbox()
        self._in_flight: deque[PlanInFlight] = deque()
        self._build(first_step=0, first_number=0)

    def _build(self, *, first_step: int, first_number: int) -> None:
        """Start with an empty worker. Steps and numbers go on, so that nothing old is taken for new."""
        self._ledger = Ledger(num_blocks=self._limits.kv_blocks, block_size=self._limits.block_size)
        self._memory = Memory(ledger=self._ledger, preset=self._preset, unpreemptible=self._limits.unpreemptible)
        prefixes = self._prefixes = Prefixes(ledger=self._ledger, reuse=self._preset.prefix_reuse)
        self._roster = Roster(
            ledger=self._ledger,
            prefixes=prefixes,
            swaps=Swaps(num_blocks=self._limits.host_blocks, block_size=self._limits.block_size),
            outbox=self._outbox,
            waiting_order=self._preset.waiting_order,
            progress=self._progress,
            first_step=first_step,
            first_number=first_number,
        )
        self._planner = Planner(roster=self._roster, memory=self._memory, prefixes=prefixes, preset=self._preset)

    @property
    def limits(self) -> Limits:
        """Those in force."""
        return self._limits

    @property
    def preset(self) -> Preset:
        return self._preset

    @property
    def progress(self) -> Progress:
        return self._progress

    @property
    def slots_in_use(self) -> int:
        """Slots that are held, those included that come back with a report."""
        return self._roster.slots.in_use

    @property
    def kv_blocks_in_use(self) -> int:
        return self._ledger.in_use

    @property
    def shares_prefixes(self) -> bool:
        """Whether block hashes of prompts are of any use."""
        return self._preset.prefix_reuse is not PrefixReuse.NONE

    @property
    def num_claimed(self) -> int:
        """Sequences that were handed over and have not started, or not again."""
        return len(self._roster.claimed)

    def held(self) -> tuple[tuple[int, SequenceSpec], ...]:
        """Every slot that is held, and by which sequence: those that drain included."""
        return tuple([(slot, sequence.spec) for slot, sequence in self._roster.slots.holders()])

    def known(self) -> tuple[SequenceSpec, ...]:
        """Every sequence that has not ended, in the order in which they came."""
        return tuple([sequence.spec for sequence in self._roster.all()])

    def is_paused(self, sequence_id: str) -> bool:
        sequence = self._roster.get(sequence_id)
        return sequence is not None and sequence.state is State.PAUSED

    @property
    def is_ahead(self) -> bool:
        """Whether as many plans are in flight as may be: until a report comes, a step makes none."""
        return len(self._in_flight) >= self._limits.max_in_flight

    def running_ids(self) -> tuple[str, ...]:
        """The running batch, in the order in which its sequences started."""
        return tuple(sequence.spec.sequence_id for sequence in self._roster.batch)

    def check(self) -> None:
        """Raise ``LedgerError`` unless every block is accounted for. Costs a pass over the pool: call it when idle."""
        self._ledger.check(self._roster.slots.holdings())

    def step(self, events: Many[Event], now: int) -> Step:
        """Take in all events, then plan. ``now`` is in microseconds and never goes back."""
        for event in events:
            self.take(event, now)
        for sequence in self._roster.deadlines.expired(now):
            self._roster.end(sequence, EndReason.DEADLINE)
        plan = self._plan(now)
        return Step(
            plan=plan,
            want=self.want(),
            wake_at=self._wake_at(now),
            ended=self._outbox.take_ended(),
            paused=self._outbox.take_paused(),
        )

    def take(self, event: Event, now: int) -> None:
        """Take in one event without planning."""
        match event:
            case Reported():
                self._on_reported(event)
            case Claimed(sequence=spec):
                self._on_claimed(spec, now)
            case Cancelled(sequence_id=sequence_id):
                sequence = self._roster.get(sequence_id)
                if sequence is not None:
                    self._roster.end(sequence, EndReason.CANCELLED)
            case Exchanged(sequence=spec, victim_id=victim_id):
                self._on_exchanged(spec, victim_id, now)
            case WorkerLost():
                self._on_worker_lost()
            case LimitsChanged(limits=limits):
                self._on_limits_changed(limits)

    def want(self) -> Want:
        """What this scheduler would take from the store now."""
        return want_of(self._roster, self._memory, self._preset, self._limits)

    def _wake_at(self, now: int) -> int | None:
        """The next deadline, or when a batch that gathers has waited long enough, whichever comes first."""
        due = self._roster.deadlines.next_due()
        formed = gathered_at(self._roster, self._preset.batching, self._limits)
        if formed is None or formed <= now:  # in the past: plans are in flight, and their report brings a step
            return due
        return formed if due is None else min(due, formed)

    def _plan(self, now: int) -> Plan | None:
        if self.is_ahead:
            return None
        built = self._planner.build(self._limits, now)
        if built is None:
            return None
        self._in_flight.append(
            PlanInFlight(
                step=built.plan.step,
                finals=built.finals,
                fills=built.fills,
                live_blocks=self._ledger.in_use,
                host_blocks=self._roster.swaps.blocks_in_use,
            )
        )
        return built.plan

    def _on_claimed(self, spec: SequenceSpec, now: int) -> None:
        if spec.emitted_tokens >= spec.max_tokens:
            self._roster.refuse(spec, EndReason.LENGTH)
        elif spec.prompt_tokens < 1 or not self._memory.fits_ever(spec):
            self._roster.refuse(spec, EndReason.FAILED)
        else:
            self._roster.claim(spec, now)

    def _on_exchanged(self, spec: SequenceSpec, victim_id: str, now: int) -> None:
        """A victim that has ended, or is about to, keeps its course: the exchange crossed it."""
        victim = self._roster.get(victim_id)
        if victim is not None and victim.state is State.PAUSED:
            victim.announce = None
        elif victim is not None and victim.state is not State.FINISHING:
            self._roster.pause(victim, announce=None)
        self._on_claimed(spec, now)

    def _on_reported(self, report: Reported) -> None:
        flight = self._check_report(report)
        self._in_flight.popleft()
        for finished in report.finished:
            sequence = self._roster.slots.holder(finished.slot)
            if sequence is not None and finished.reason is FinishReason.FAILED:
                self._prefixes.fail(sequence)
            if sequence is not None and sequence.state is not State.ENDED:
                self._roster.end(sequence, EndReason(finished.reason.value))
        for sequence, tokens in flight.fills:
            self._prefixes.filled(sequence, tokens)
        for sequence in flight.finals:
            if sequence.state is State.FINISHING:
                self._roster.end(sequence, EndReason.LENGTH)
        self._roster.report(report.step)

    def _check_report(self, report: Reported) -> PlanInFlight:
        if not self._in_flight or self._in_flight[0].step != report.step:
            raise UnexpectedReport(f"plan {report.step} is not the oldest in flight")
        flight = self._in_flight[0]
        for finished in report.finished:
            holder = self._roster.slots.holder(finished.slot)
            if holder is None or holder.first_plan > report.step:
                raise UnexpectedReport(f"plan {report.step} does not name slot {finished.slot}")
        if report.live_blocks is not None and report.live_blocks != flight.live_blocks:
            raise LedgerMismatch(
                f"after plan {report.step} the worker holds {report.live_blocks} KV blocks, not {flight.live_blocks}"
            )
        if report.host_blocks is not None and report.host_blocks != flight.host_blocks:
            raise LedgerMismatch(
                f"after plan {report.step} the worker keeps {report.host_blocks} blocks in host memory,"
                f" not {flight.host_blocks}"
            )
        return flight

    def _on_worker_lost(self) -> None:
        for sequence in self._roster.all():
            self._roster.end(sequence, EndReason.WORKER_LOST)
        self._in_flight.clear()
        self._build(first_step=self._roster.next_step, first_number=self._roster.next_number)

    def _on_limits_changed(self, limits: Limits) -> None:
        """Fewer slots pause the newest sequences at once: a plan never holds more than the limits in force.

        Those that must stay go last, and only when the others are not enough.
        """
        check_limits(limits)
        for name in ("kv_blocks", "block_size", "host_blocks"):
            if getattr(limits, name) != getattr(self._limits, name):
                raise ValueError(f"{name} belongs to the worker and cannot change while it runs")
        self._limits = limits
        self._memory.unpreemptible = limits.unpreemptible
        newest_first = sorted(self._roster.batch, key=lambda s: (self._memory.must_stay(s), -s.number))
        for sequence in newest_first[: max(0, len(newest_first) - limits.max_slots)]:
            self._roster.pause(sequence, announce=PauseReason.SLOT)
