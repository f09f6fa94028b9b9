"""The log of a gateway's door: what it did at the shared queues, and how it answered its clients."""

from __future__ import annotations

import time
from collections.abc import Sequence

from admission.classes import PriorityClass
from admission.queue import Claim, Entry, OfferResult, QueueBounds, Withdrawal
from admission.record.entries import (
    Answered,
    DoorOpened,
    Forgot,
    Given,
    LogEntry,
    OfferMade,
    Returned,
    Settled,
    Withdrew,
)
from admission.standing import WaitingOrderName
from gateway.clock import Clock
from gateway.recording import Recorder
from workers.wire import Job, decode


class DoorLog:
    """Records as it happens. ``of`` gives what watches the queue of one model."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        gateway_id: str,
        classes: Sequence[PriorityClass],
        bounds: QueueBounds,
        waiting_order: WaitingOrderName,
        clock: Clock,
    ) -> None:
        self._clock = clock

        def opens() -> DoorOpened:
            return DoorOpened(
                gateway_id=gateway_id,
                segment=0,
                is_whole=True,
                opened_us=clock(),
                opened_unix_us=time.time_ns() // 1000,
                classes=tuple(classes),
                bounds=bounds,
                waiting_order=waiting_order,
            )

        self._log = recorder.log("door", opens)
        self._log.before()  # a door at which nothing happens has a log, too: else it would look like one that is lost

    def of(self, model: str) -> QueueWatcher:
        return QueueWatcher(self, model, self._clock)

    def add(self, entry: LogEntry) -> None:
        self._log.before()
        self._log.add(entry)

    def answered(self, answer: Answered) -> None:
        """A request is over, however it ended."""
        self.add(answer)


class QueueWatcher:
    """Records the acts on one queue. Implements ``admission.queue.QueueObserver``."""

    def __init__(self, door: DoorLog, model: str, clock: Clock) -> None:
        self._door = door
        self._model = model
        self._clock = clock

    def offered(self, act: int, entries: Sequence[Entry], result: OfferResult) -> None:
        now_us = self._clock()
        for place, (entry, outcome) in enumerate(zip(entries, result.outcomes, strict=True)):
            job = _job_of(entry)
            self._door.add(
                OfferMade(
                    now_us=now_us,
                    act=act,
                    model=self._model,
                    request_id=job.request_id,
                    sequence_id=entry.entry_id,
                    choice=job.sampling.choice,
                    class_name=entry.class_name,
                    rank=entry.rank,
                    tenant=entry.tenant,
                    standing=entry.standing,
                    prompt_tokens=len(job.prompt_ids),
                    max_tokens=job.max_tokens,
                    expected_tokens=job.expected_tokens,
                    emitted_tokens=len(job.emitted_ids),
                    deadline_us=None,
                    outcome=outcome,
                    ahead=result.position,
                    waiting_requests=result.waiting_requests,
                    waiting_tokens=result.waiting_tokens,
                    shed=tuple([shed.entry_id for shed in result.shed]) if place == 0 else (),
                )
            )

    def given(self, act: int, driver_id: str, claims: Sequence[Claim]) -> None:
        if claims:
            self._door.add(
                Given(
                    now_us=self._clock(),
                    act=act,
                    model=self._model,
                    driver_id=driver_id,
                    sequence_ids=tuple([claim.entry.entry_id for claim in claims]),
                    victims=tuple([claim.victim_id or "" for claim in claims]),
                )
            )

    def returned(self, act: int, driver_id: str, entry_ids: Sequence[str]) -> None:
        self._door.add(
            Returned(
                now_us=self._clock(),
                act=act,
                model=self._model,
                driver_id=driver_id,
                sequence_ids=tuple(entry_ids),
            )
        )

    def settled(self, act: int, driver_id: str, entry_ids: Sequence[str]) -> None:
        self._door.add(
            Settled(
                now_us=self._clock(),
                act=act,
                model=self._model,
                driver_id=driver_id,
                sequence_ids=tuple(entry_ids),
            )
        )

    def withdrew(self, act: int, entry_id: str, withdrawal: Withdrawal) -> None:
        self._door.add(
            Withdrew(now_us=self._clock(), act=act, model=self._model, sequence_id=entry_id, outcome=withdrawal.outcome)
        )

    def forgot(self, act: int, driver_id: str, entry_ids: Sequence[str]) -> None:
        self._door.add(
            Forgot(now_us=self._clock(), act=act, model=self._model, driver_id=driver_id, waiting=tuple(entry_ids))
        )


def _job_of(entry: Entry) -> Job:
    """The job in an entry of ours."""
    job = decode(entry.payload)
    if not isinstance(job, Job):
        raise TypeError("an entry of ours holds a job")
    return job
