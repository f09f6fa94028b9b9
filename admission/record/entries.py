"""What a log holds: one driver's steps, or one gateway's door.

A **driver's log** opens with the whole state of its scheduler; from there on it has every step, the events that went in
and what came out, and beside them how long the worker took. A **door's log** has what its gateway did at the shared
queue and what it answered its clients.

Times are microseconds on the monotonic clock of the gateway that wrote the log; the opening has the Unix time of the
same moment, so that logs of several machines can be laid side by side. There is no token and no text in any of it: the
scheduler sees none, and of a request the door writes lengths and names of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from admission.classes import PriorityClass
from admission.events import Event, Step
from admission.limits import Limits
from admission.presets import Progress
from admission.queue import Offered, QueueBounds, Withdrawn
from admission.standing import Standing, WaitingOrderName


class TimeUnit(StrEnum):
    """What ``now_us`` counts: microseconds, or the iterations of a scenario, which knows no other time."""

    MICROSECONDS = "us"
    ITERATIONS = "iterations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The first record of a driver's segment. ``state`` is its scheduler before the next step (``snapshot``).

    ``segment`` counts from 0. ``is_whole`` is false when steps between this segment and the one before were not
    recorded, as the disk did not keep up.
    """

    gateway_id: str
    driver_id: str
    model: str
    segment: int
    is_whole: bool
    opened_us: int
    opened_unix_us: int
    preset: str
    progress: Progress
    limits: Limits
    context_length: int | None
    state: bytes
    unit: TimeUnit = TimeUnit.MICROSECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """One call of the scheduler."""

    now_us: int
    events: tuple[Event, ...]
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """The worker's word on plan ``step``, taken in at ``now_us``: how long it computed, how long it had waited."""

    now_us: int
    step: int
    busy_us: int
    idle_us: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorOpened:
    """The first record of a door's segment."""

    gateway_id: str
    segment: int
    is_whole: bool
    opened_us: int
    opened_unix_us: int
    classes: tuple[PriorityClass, ...]
    bounds: QueueBounds
    waiting_order: WaitingOrderName
    unit: TimeUnit = TimeUnit.MICROSECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferMade:
    """A sequence was offered to the queue of ``model``.

    ``act`` is the number of the act in that queue, over all gateways.
    ``request_id`` is what its client was told; ``choice`` is which of its choices this sequence makes: a request
    that goes on elsewhere is offered again, under another id of a sequence. ``ahead``: entries that stood better when
    it was queued.
    """

    now_us: int
    act: int
    model: str
    request_id: str
    sequence_id: str
    choice: int
    class_name: str
    rank: int
    tenant: str
    standing: Standing
    prompt_tokens: int
    max_tokens: int
    expected_tokens: int
    emitted_tokens: int
    deadline_us: int | None
    outcome: Offered
    ahead: int
    waiting_requests: int
    waiting_tokens: int
    shed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A driver was given these by the queue, in this order; ``victims`` were put back for them (empty: for nobody)."""

    now_us: int
    act: int
    model: str
    driver_id: str
    sequence_ids: tuple[str, ...]
    victims: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A driver gave these back, to wait on."""

    now_us: int
    act: int
    model: str
    driver_id: str
    sequence_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """These have ended at a driver."""

    now_us: int
    act: int
    model: str
    driver_id: str
    sequence_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrew:
    """The origin asked for a sequence back: it was taken out of the queue, or a driver has it, or it is not known."""

    now_us: int
    act: int
    model: str
    sequence_id: str
    outcome: Withdrawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request is over: ``outcome`` as in the metrics (completed, cancelled, or a reason), with its HTTP status.

    ``client_request_id`` is the id that the client sent along, which its answer's header then repeats. ``received_us``
    is when it came, ``first_token_us`` when its first token was here. One that was refused before it was offered is
    known by this record alone; ``prompt_tokens`` is None when it was refused before they were counted.
    """

    now_us: int
    request_id: str
    client_request_id: str | None
    model: str
    class_name: str
    received_us: int
    first_token_us: int | None
    prompt_tokens: int | None
    output_tokens: int
    outcome: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The last record of a segment. ``num_records`` counts those before it; ``is_last``: no segment follows."""

    now_us: int
    num_records: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgot:
    """A driver left, or fell silent. What it held is lost; what it had paused, or never received, waits for others."""

    now_us: int
    act: int
    model: str
    driver_id: str
    waiting: tuple[str, ...]


LogEntry = (
    Opened
    | Stepped
    | Executed
    | DoorOpened
    | OfferMade
    | Given
    | Returned
    | Settled
    | Withdrew
    | Answered
    | Closed
    | Forgot
)
"""New kinds go to the end: a kind is written as its place here."""
