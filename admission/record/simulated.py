"""A simulation recorded as the logs that a gateway would have written: its driver's and its door's.

What is read out of logs then works on simulations, too. One gateway, one driver, one plan in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from admission.classes import PriorityClass
from admission.events import Event, SequenceSpec, Step
from admission.queue import Claim, Offered, QueueBounds
from admission.record.entries import (
    Answered,
    Closed,
    DoorOpened,
    Executed,
    Given,
    LogEntry,
    OfferMade,
    Opened,
    Returned,
    Stepped,
    TimeUnit,
)
from admission.record.snapshot import freeze
from admission.scheduler import Scheduler
from admission.standing import Standing, WaitingOrderName
from admission.trace_csv import Arrival
from admission.trace_rows import Rejection

DRIVER = "simulated"
GATEWAY = "simulation"
MODEL = "simulated"
REFUSED_STATUS = 400
"""What a client is told that asks for more than the context holds."""

Write = Callable[[LogEntry], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doorway:
    """What the door of a simulation goes by."""

    classes: tuple[PriorityClass, ...]
    bounds: QueueBounds
    waiting_order: WaitingOrderName
    unit: TimeUnit


class SimulationLog:
    """``took`` is told of every event that the scheduler takes between steps; the next ``stepped`` records them."""

    def __init__(self, *, driver: Write, door: Write) -> None:
        self._driver = _Counted(driver)
        self._door = _Counted(door)
        self._events: list[Event] = []
        self._acts = 0

    def open(self, scheduler: Scheduler, doorway: Doorway) -> None:
        """Before anything else."""
        self._driver(
            Opened(
                gateway_id=GATEWAY,
                driver_id=DRIVER,
                model=MODEL,
                segment=0,
                is_whole=True,
                opened_us=0,
                opened_unix_us=0,
                preset=scheduler.preset.name,
                progress=scheduler.progress,
                limits=scheduler.limits,
                context_length=None,
                state=freeze(scheduler),
                unit=doorway.unit,
            )
        )
        self._door(
            DoorOpened(
                gateway_id=GATEWAY,
                segment=0,
                is_whole=True,
                opened_us=0,
                opened_unix_us=0,
                classes=doorway.classes,
                bounds=doorway.bounds,
                waiting_order=doorway.waiting_order,
                unit=doorway.unit,
            )
        )

    def took(self, event: Event) -> None:
        self._events.append(event)

    def stepped(self, now_us: int, step: Step) -> None:
        events, self._events = tuple(self._events), []
        self._driver(Stepped(now_us=now_us, events=events, step=step))
        if step.paused:
            paused = tuple([each.sequence_id for each in step.paused])
            self._door(Returned(now_us=now_us, act=self._act(), model=MODEL, driver_id=DRIVER, sequence_ids=paused))

    def executed(self, now_us: int, step: int, *, took_us: int, num_tokens: int) -> None:
        self._driver(Executed(now_us=now_us, step=step, busy_us=took_us, idle_us=0, num_tokens=num_tokens))

    def offered(
        self, now_us: int, spec: SequenceSpec, standing: Standing, outcome: Offered, *, ahead: int, waiting: int
    ) -> None:
        self._door(
            OfferMade(
                now_us=now_us,
                act=self._act(),
                model=MODEL,
                request_id=spec.sequence_id,
                sequence_id=spec.sequence_id,
                choice=0,
                class_name=spec.class_name,
                rank=spec.rank,
                tenant=spec.tenant,
                standing=standing,
                prompt_tokens=spec.prompt_tokens,
                max_tokens=spec.max_tokens,
                expected_tokens=spec.expected_tokens,
                emitted_tokens=0,
                deadline_us=spec.deadline_us,
                outcome=outcome,
                ahead=ahead,
                waiting_requests=waiting,
                waiting_tokens=0,
                shed=(),
            )
        )

    def given(self, now_us: int, claims: Sequence[tuple[str, str | None]]) -> None:
        """(sequence, victim that was put back for it) of each that the driver was given."""
        self._door(
            Given(
                now_us=now_us,
                act=self._act(),
                model=MODEL,
                driver_id=DRIVER,
                sequence_ids=tuple([sequence_id for sequence_id, _ in claims]),
                victims=tuple([victim or "" for _, victim in claims]),
            )
        )

    def claimed(self, now_us: int, claims: Sequence[Claim]) -> None:
        if claims:
            self.given(now_us, [(claim.entry.entry_id, claim.victim_id) for claim in claims])

    def refused(self, arrival: Arrival, reason: Rejection) -> None:
        """A request that was never offered, as it can never fit."""
        self._door(
            Answered(
                now_us=arrival.arrival_us,
                request_id=arrival.request_id,
                client_request_id=None,
                model=MODEL,
                class_name=arrival.cls.name,
                received_us=arrival.arrival_us,
                first_token_us=None,
                prompt_tokens=arrival.prompt_tokens,
                output_tokens=0,
                outcome=reason.value,
                status=REFUSED_STATUS,
            )
        )

    def close(self, now_us: int) -> None:
        """After everything else."""
        self._driver.close(now_us)
        self._door.close(now_us)

    def _act(self) -> int:
        self._acts += 1
        return self._acts


class _Counted:
    """Counts the records of one log."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._num_records = 0

    def __call__(self, entry: LogEntry) -> None:
        self._write(entry)
        self._num_records += 1

    def close(self, now_us: int) -> None:
        self._write(Closed(now_us=now_us, num_records=self._num_records, is_last=True))
