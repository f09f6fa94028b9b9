"""A door's log in memory, and the requests of a small cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from admission.queue import Offered, QueueBounds, Withdrawn
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
from admission.standing import HeadStart, Standing, WaitingOrderName

DRIVER = "g0/w0/1"
MODEL = "tiny"


@dataclass
class Door:
    """Acts are numbered by whoever shares ``acts``; ``behind_us`` is how far this gateway's clock is behind."""

    gateway_id: str = "g0"
    acts: list[int] = field(default_factory=lambda: [0])
    behind_us: int = 0
    entries: list[LogEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.entries.append(
            DoorOpened(
                gateway_id=self.gateway_id,
                segment=0,
                is_whole=True,
                opened_us=-self.behind_us,
                opened_unix_us=1_000_000,
                classes=(),
                bounds=QueueBounds(max_requests=2),
                waiting_order=WaitingOrderName.AGING,
            )
        )

    def offer(
        self,
        name: str,
        now: int,
        outcome: Offered = Offered.QUEUED,
        *,
        request: str = "",
        choice: int = 0,
        emitted: int = 0,
        head_start: int = 0,
        shed: tuple[str, ...] = (),
    ) -> None:
        is_refused = outcome in {Offered.QUEUE_FULL, Offered.CLASS_FULL, Offered.QUEUE_TOKENS_FULL}
        self.entries.append(
            OfferMade(
                now_us=now - self.behind_us,
                act=self.acts[0] if is_refused else self._act(),
                model=MODEL,
                request_id=request or name,
                sequence_id=name,
                choice=choice,
                class_name="standard",
                rank=1,
                tenant="",
                standing=Standing(scored_by=HeadStart(us=head_start), lane="standard"),
                prompt_tokens=4,
                max_tokens=4,
                expected_tokens=4,
                emitted_tokens=emitted,
                deadline_us=None,
                outcome=outcome,
                ahead=0,
                waiting_requests=0,
                waiting_tokens=0,
                shed=shed,
            )
        )

    def give(self, *names: str, now: int, victims: tuple[str, ...] = ()) -> None:
        self.entries.append(
            Given(
                now_us=now - self.behind_us,
                act=self._act(),
                model=MODEL,
                driver_id=DRIVER,
                sequence_ids=names,
                victims=victims or ("",) * len(names),
            )
        )

    def give_back(self, *names: str, now: int) -> None:
        self.entries.append(
            Returned(now_us=now - self.behind_us, act=self._act(), model=MODEL, driver_id=DRIVER, sequence_ids=names)
        )

    def forget(self, *waiting: str, now: int) -> None:
        self.entries.append(
            Forgot(now_us=now - self.behind_us, act=self._act(), model=MODEL, driver_id=DRIVER, waiting=waiting)
        )

    def settle(self, *names: str, now: int) -> None:
        self.entries.append(
            Settled(now_us=now - self.behind_us, act=self._act(), model=MODEL, driver_id=DRIVER, sequence_ids=names)
        )

    def withdraw(self, name: str, now: int, outcome: Withdrawn = Withdrawn.WITHDRAWN) -> None:
        self.entries.append(
            Withdrew(now_us=now - self.behind_us, act=self._act(), model=MODEL, sequence_id=name, outcome=outcome)
        )

    def answer(self, request: str, now: int, outcome: str, status: int, *, client: str | None = None) -> None:
        self.entries.append(
            Answered(
                now_us=now - self.behind_us,
                request_id=request,
                client_request_id=client,
                model=MODEL,
                class_name="standard",
                received_us=now - 500_000 - self.behind_us,
                first_token_us=None,
                prompt_tokens=None,
                output_tokens=0,
                outcome=outcome,
                status=status,
            )
        )

    def _act(self) -> int:
        self.acts[0] += 1
        return self.acts[0]
