"""What a driver knows of its sequences beyond the scheduler: their tokens, their origin. And plans in the wire's words.

The scheduler plans by lengths; here are the tokens. A sequence starts on the worker in full, prompt and all output that
it has; when it starts again after a pause, that output is more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from admission.events import Plan, SequenceSpec, Start
from admission.queue import Claim
from workers.wire import BlockGrowth, Job, NewSequence, PlanMessage, PrefillSpan, Sampling, WireError, decode


class Custody(Enum):
    """Who answers for a sequence in the store: HELD, this driver; RETURNED, its line of paused sequences there."""

    HELD = auto()
    RETURNED = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class SequenceRecord:
    """``output``: every token so far, an eos not counted. ``closed``: its origin has been told how it ended.

    ``block_hashes`` name the full KV blocks of its prompt; none: it shares nothing. ``cached_tokens`` of the prompt
    were there when it first started here; None: it has not. ``scored_tokens``: of so many tokens of the prompt the
    log-probabilities have been told, the first one, which has none, included.
    """

    job: Job
    output: list[int] = field(default_factory=list)
    slot: int | None = None
    custody: Custody = Custody.HELD
    closed: bool = False
    block_hashes: tuple[bytes, ...] = ()
    cached_tokens: int | None = None
    scored_tokens: int = 1

    @classmethod
    def of(cls, job: Job) -> SequenceRecord:
        return cls(job=job, output=list(job.emitted_ids))


def spec_of(claim: Claim, record: SequenceRecord) -> SequenceSpec:
    """The sequence as the scheduler sees it. Score and arrival are on the store's clock: they only order."""
    job = record.job
    return SequenceSpec(
        sequence_id=job.sequence_id,
        class_name=job.class_name,
        rank=job.rank,
        score=claim.score,
        arrival_us=claim.arrival_us,
        prompt_tokens=len(job.prompt_ids),
        max_tokens=job.max_tokens,
        expected_tokens=job.expected_tokens,
        tenant=claim.entry.tenant,
        emitted_tokens=len(record.output),
        deadline_us=job.deadline_us,
        block_hashes=record.block_hashes,
    )


def plan_message(plan: Plan, *, epoch: int, records: Mapping[str, SequenceRecord]) -> PlanMessage:
    """``plan`` for the worker. Every sequence that it starts is in ``records``."""
    return PlanMessage(
        step=plan.step,
        epoch=epoch,
        frees=plan.frees,
        starts=tuple([_new_sequence(start, records[start.sequence_id]) for start in plan.starts]),
        grows=tuple([BlockGrowth(slot=grow.slot, blocks=grow.blocks) for grow in plan.grows]),
        copies=(),
        prefill=tuple([PrefillSpan(slot=p.slot, start=p.start, length=p.length, emits=p.emits) for p in plan.prefill]),
        decode=plan.decode,
        swap_outs=plan.swap_outs,
        drops=plan.drops,
    )


def _new_sequence(start: Start, record: SequenceRecord) -> NewSequence:
    job = record.job
    return NewSequence(
        slot=start.slot,
        sequence_id=job.sequence_id,
        tokens=(*job.prompt_ids, *record.output),
        emitted=len(record.output),
        computed=start.computed_tokens,
        max_tokens=job.max_tokens,
        sampling=job.sampling,
        blocks=start.blocks,
        swapped=start.swapped_tokens,
    )


def job_of(claim: Claim) -> Job | None:
    """The job in a claim; None when nobody could run it."""
    try:
        job = decode(claim.entry.payload)
    except WireError:
        return None
    return job if isinstance(job, Job) and job.sequence_id == claim.entry.entry_id and job.prompt_ids else None


def unreadable(claim: Claim) -> Job:
    """Stands for a job that nobody can read, so that it ends like any other. It has no origin to tell."""
    return Job(
        sequence_id=claim.entry.entry_id,
        origin="",
        class_name=claim.entry.class_name,
        rank=claim.entry.rank,
        prompt_ids=(0,),
        emitted_ids=(),
        max_tokens=1,
        expected_tokens=1,
        sampling=Sampling(),
        deadline_us=None,
    )
