"""What would have happened otherwise: the offers of some logs through the queue rule and the schedulers once more.

Each offer is made again at its time, with the lengths, class and tenant that the logs have; clients that went, and
deadlines that passed, do so at the same moments, if the answer is not whole by then. What a request gives is what it
gave; of one that was refused or cut nobody knows, and it gives what one of its class gave that completed, each in turn,
or its expected output when there is none. Requests that had started before the logs begin are not offered, nor are
those that were refused before they came to the queue, which stay refused.

What is taken as given: every driver is there from the start to the end with the limits with which its log opens;
workers are alike; between the queue and a driver nothing takes time; no worker is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from admission.classes import PriorityClass
from admission.record.course import follow
from admission.record.entries import LogEntry
from admission.record.fates import COMPLETED, UNFINISHED, Fate, Fates, read_fates
from admission.record.simulated import SimulationLog
from admission.trace_csv import Arrival
from admission.trace_known import Known, Leave
from admission.trace_run import TraceRun
from admission.trace_setup import TraceSetup

_LEAVES = {reason.value: reason for reason in Leave}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """``arrivals`` as a simulation takes them; of ``num_estimated`` the output is estimated."""

    arrivals: tuple[Arrival, ...]
    num_estimated: int


def offers_of(fates: Fates, classes: Mapping[str, PriorityClass]) -> Offers:
    """The offers of these requests. ``classes`` by name; an unknown one is made up from what the offer says of it."""
    lengths = _Lengths(fates.offered)
    arrivals = [_arrival(fate, lengths.of(fate), classes) for fate in fates.offered]
    return Offers(arrivals=tuple(arrivals), num_estimated=lengths.num_estimated)


def replay_offers(offers: Offers, setup: TraceSetup, refused: Fates) -> Fates:
    """What becomes of ``offers`` under ``setup``; what never came to the queue is as in ``refused``."""
    drivers: dict[str, list[LogEntry]] = {name: [] for name, _ in setup.all_drivers()}
    door: list[LogEntry] = []
    log = SimulationLog(drivers={name: entries.append for name, entries in drivers.items()}, door=door.append)
    for _ in TraceRun(offers.arrivals, setup, log).iterations():
        pass
    courses = [course for entries in drivers.values() if (course := follow(entries)) is not None]
    fates = read_fates([(door, 0)], courses)
    return Fates(offered=fates.offered, refused=(*fates.refused, *refused.refused))


class _Lengths:
    """How much each request gives in all. ``num_estimated``: how many had to be estimated so far."""

    def __init__(self, fates: Iterable[Fate]) -> None:
        known: dict[str, list[int]] = {}
        for fate in fates:
            if _is_known(fate):
                known.setdefault(fate.offer.class_name, []).append(len(fate.tokens_us))
        self._turns = {name: cycle(lengths) for name, lengths in known.items()}
        self.num_estimated = 0

    def of(self, fate: Fate) -> int:
        if _is_known(fate):
            return len(fate.tokens_us)
        self.num_estimated += 1
        offer = fate.offer
        turn = self._turns.get(offer.class_name)
        likely = offer.expected_tokens if turn is None else next(turn)
        return min(offer.max_tokens, max(len(fate.tokens_us) + 1, likely))


def _is_known(fate: Fate) -> bool:
    return fate.outcome == COMPLETED and bool(fate.tokens_us)


def _arrival(fate: Fate, output_tokens: int, classes: Mapping[str, PriorityClass]) -> Arrival:
    offer = fate.offer
    cls = classes.get(offer.class_name) or PriorityClass(
        name=offer.class_name, rank=offer.rank, head_start_us=0, service_tier=""
    )
    leaves = _LEAVES.get(fate.outcome)
    deadline_us = None if cls.default_deadline_us is None else fate.arrival_us + cls.default_deadline_us
    return Arrival(
        request_id=offer.sequence_id,
        arrival_us=fate.arrival_us,
        prompt_tokens=offer.prompt_tokens,
        output_tokens=output_tokens,
        cls=cls,
        tenant=offer.tenant,
        known=Known(
            max_tokens=offer.max_tokens,
            expected_tokens=offer.expected_tokens,
            block_hashes=fate.block_hashes,
            deadline_us=fate.ended_us if leaves is Leave.DEADLINE_EXCEEDED else deadline_us,
            leaves_us=deadline_us if leaves is None else fate.ended_us,
            leaves=Leave.DEADLINE_EXCEEDED if leaves is None else leaves,
        ),
    )


def num_unfinished(fates: Fates) -> int:
    """Requests that the logs leave in the middle."""
    return sum([fate.outcome == UNFINISHED for fate in fates.offered])


def span_us(fates: Sequence[Fate]) -> int:
    """From the first arrival to the last."""
    return fates[-1].arrival_us - fates[0].arrival_us if fates else 0
