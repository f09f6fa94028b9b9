"""A simulation recorded as the logs that a gateway would have written: its driver's and its door's.

What is read out of logs then works on simulations, too. One gateway, one model, as many drivers as are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from admission.classes import PriorityClass
from admission.events import Event, SequenceSpec, Step
from admission.queue import Claim, Offered, QueueBounds, Withdrawn
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
    Settled,
    Stepped,
    TimeUnit,
    Withdrew,
)
from admission.record.snapshot import freeze
from admission.scheduler import Scheduler
from admission.standing import Standing, WaitingOrderName
from admission.trace_csv import Arrival
from admission.trace_known import Leave
from admission.trace_rows import Rejection

DRIVER = "simulated"
GATEWAY = "simulation"
MODEL = "simulated"
LEFT_STATUS = 499
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
    """``took`` is told of every event that a scheduler takes between steps; its next ``stepped`` records them.

    ``drivers`` has where the log of each driver goes, by its id.
    """

    def __init__(self, *, drivers: Mapping[str, Write], door: Write) -> None:
        self._drivers = {driver_id: _Counted(write) for driver_id, write in drivers.items()}
        self._door = _Counted(door)
        self._events: dict[str, list[Event]] = {driver_id: [] for driver_id in drivers}
        self._acts = 0

    def open(self, schedulers: Mapping[str, Scheduler], doorway: Doorway) -> None:
        """Before anything else."""
        for driver_id, scheduler in schedulers.items():
            self._drivers[driver_id](
                Opened(
                    gateway_id=GATEWAY,
                    driver_id=driver_id,
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

    def took(self, event: Event, driver_id: str = DRIVER) -> None:
        self._events[driver_id].append(event)

    def stepped(self, now_us: int, step: Step, driver_id: str = DRIVER) -> None:
        events, self._events[driver_id] = tuple(self._events[driver_id]), []
        self._drivers[driver_id](Stepped(now_us=now_us, events=events, step=step))
        if step.paused:
            paused = tuple([each.sequence_id for each in step.paused])
            self._door(Returned(now_us=now_us, act=self._act(), model=MODEL, driver_id=driver_id, sequence_ids=paused))

    def executed(self, now_us: int, step: int, *, took_us: int, num_tokens: int, driver_id: str = DRIVER) -> None:
        self._drivers[driver_id](Executed(now_us=now_us, step=step, busy_us=took_us, idle_us=0, num_tokens=num_tokens))

    def settled(self, now_us: int, sequence_ids: Sequence[str], driver_id: str = DRIVER) -> None:
        if sequence_ids:
            ids = tuple(sequence_ids)
            self._door(Settled(now_us=now_us, act=self._act(), model=MODEL, driver_id=driver_id, sequence_ids=ids))

    def offered(
        self,
        now_us: int,
        spec: SequenceSpec,
        standing: Standing,
        outcome: Offered,
        *,
        ahead: int,
        waiting: tuple[int, int],
        shed: tuple[str, ...] = (),
    ) -> None:
        """``waiting``: requests and tokens."""
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
                waiting_requests=waiting[0],
                waiting_tokens=waiting[1],
                shed=shed,
            )
        )

    def given(self, now_us: int, claims: Sequence[tuple[str, str | None]], driver_id: str = DRIVER) -> None:
        """(sequence, victim that was put back for it) of each that the driver was given."""
        self._door(
            Given(
                now_us=now_us,
                act=self._act(),
                model=MODEL,
                driver_id=driver_id,
                sequence_ids=tuple([sequence_id for sequence_id, _ in claims]),
                victims=tuple([victim or "" for _, victim in claims]),
            )
        )

    def claimed(self, now_us: int, claims: Sequence[Claim], driver_id: str = DRIVER) -> None:
        if claims:
            self.given(now_us, [(claim.entry.entry_id, claim.victim_id) for claim in claims], driver_id)

    def left(
        self, now_us: int, spec: SequenceSpec, reason: Leave, outcome: Withdrawn, *, first_token_us: int | None
    ) -> None:
        """A request whose client is gone, or whose deadline has passed."""
        self._door(Withdrew(now_us=now_us, act=self._act(), model=MODEL, sequence_id=spec.sequence_id, outcome=outcome))
        self._door(
            Answered(
                now_us=now_us,
                request_id=spec.sequence_id,
                client_request_id=None,
                model=MODEL,
                class_name=spec.class_name,
                received_us=spec.arrival_us,
                first_token_us=first_token_us,
                prompt_tokens=spec.prompt_tokens,
                output_tokens=0,
                outcome=reason.value,
                status=LEFT_STATUS,
            )
        )

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
        for driver in self._drivers.values():
            driver.close(now_us)
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
