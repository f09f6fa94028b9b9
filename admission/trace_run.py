"""Simulation of an arrival trace: the queue rule in memory and the live scheduler of every driver, in one loop.

Time is what iterations cost under a cost model, and goes from one thing that happens to the next. At each such moment:

1. The requests that arrive are offered, each at its own time: refused at the door if they can never fit, else handed to
   a standing want, queued, or refused by the bounds of the queue. Those whose time is over leave.
2. Iterations end. What has ended with them is settled.
3. The drivers concerned take a turn (``trace_driver``): they claim until the store gives them nothing more, and plan.
   Exchanges displace running sequences; what was preempted for memory goes back into the queue.

Expected output is what the log says of the offer, or what a gateway would expect: a recent quantile per class of what
has ended before the arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from admission.estimate import OutputEstimate
from admission.events import SequenceSpec
from admission.queue import Offered
from admission.record.simulated import SimulationLog
from admission.trace import Result
from admission.trace_csv import Arrival
from admission.trace_driver import Board, TraceDriver
from admission.trace_known import Leave
from admission.trace_queue import TraceQueue
from admission.trace_rows import Iteration, Rejection, RequestRecord
from admission.trace_setup import TraceSetup

_TAKEN = (Offered.QUEUED, Offered.HANDED)


class TraceRun:
    """One run. ``arrivals`` are in the order of their arrival, with unique ids.

    ``iterations`` gives a row after the other, as they end, until every request is completed, rejected or gone.
    ``records`` are then complete.
    """

    def __init__(self, arrivals: Sequence[Arrival], setup: TraceSetup, log: SimulationLog | None = None) -> None:
        self.records: dict[str, RequestRecord] = {}
        self.num_done = 0
        self._arrivals = arrivals
        self._setup = setup
        self._log = log
        doorway = setup.doorway(arrivals)
        self._queue = TraceQueue(order=setup.queue_order, bounds=doorway.bounds, rules=dict(setup.rules))
        self._board = Board(records=self.records, specs={})
        self._row = Iteration(iteration=0)
        self._drivers = [
            TraceDriver(name, limits, setup=setup, queue=self._queue, board=self._board, begins=self._next_row, log=log)
            for name, limits in setup.all_drivers()
        ]
        self._leaving: list[tuple[int, str]] = []
        self._estimates = {arrival.cls.name: OutputEstimate() for arrival in arrivals}
        if log is not None:
            log.open({driver.name: driver.scheduler for driver in self._drivers}, doorway)

    def iterations(self) -> Iterator[Iteration]:
        """Run. A row belongs to the caller once it is given."""
        now_us = 0
        for driver in self._drivers:
            driver.claim(now_us)  # so that a want stands before the first arrival, as behind an idle gateway
        while self.num_done < len(self._arrivals):
            now_us = self._next_us()
            num_before, ended = len(self.records), list[TraceDriver]()
            self._take_arrivals(now_us)
            has_news = len(self.records) > num_before or self._take_leavers(now_us)
            for driver in self._drivers:
                if driver.ends_us == now_us:
                    ended.append(driver)
                    yield self._finish(driver, now_us)
            for driver in self._drivers:
                if driver in ended or (not driver.scheduler.is_ahead and self._concerns(driver, has_news, now_us)):
                    driver.turn(now_us)
        if self._log is not None:
            for driver in self._drivers:
                driver.step(now_us)  # takes in the last report
            self._log.close(now_us)

    def _concerns(self, driver: TraceDriver, has_news: bool, now_us: int) -> bool:
        return has_news or driver.wake_us == now_us or self._queue.is_woken(driver.name)

    def _next_us(self) -> int:
        times = [us for driver in self._drivers if (us := driver.next_us()) is not None]
        arrival = self._next_arrival()
        if arrival is not None:
            times.append(arrival.arrival_us)
        if self._leaving:
            times.append(self._leaving[0][0])
        if not times:
            raise AssertionError(f"nothing will ever run, and {len(self._arrivals) - self.num_done} requests are left")
        return min(times)

    def _next_row(self) -> Iteration:
        """The row of an iteration that begins now, with what was decided at the door since the one before."""
        row = self._row
        self._board.num_iterations += 1
        self._row = Iteration(iteration=self._board.num_iterations)
        return row

    def _finish(self, driver: TraceDriver, now_us: int) -> Iteration:
        row, completed = driver.finish(now_us)
        for record in completed:
            self._estimates[record.arrival.cls.name].note(record.arrival.output_tokens)
        driver.settle([record.arrival.request_id for record in completed], now_us)
        self.num_done += len(completed)
        return row

    # --- the door -----------------------------------------------------------------------------------------------------

    def _next_arrival(self) -> Arrival | None:
        return self._arrivals[len(self.records)] if len(self.records) < len(self._arrivals) else None

    def _take_arrivals(self, now_us: int) -> None:
        while (arrival := self._next_arrival()) is not None and arrival.arrival_us <= now_us:
            for driver in self._drivers:
                driver.keep_want(now_us)
            self._offer(arrival)
            if arrival.known is not None and arrival.known.leaves_us is not None:
                leaves_us = max(arrival.known.leaves_us, now_us)
                heapq.heappush(self._leaving, (leaves_us, arrival.request_id))

    def _offer(self, arrival: Arrival) -> None:
        record = RequestRecord(arrival=arrival, arrived_in=self._row.iteration)
        self.records[arrival.request_id] = record
        self._row.num_arrived += 1
        spec = self._spec(arrival)
        if spec is None:
            self._reject(record, Rejection.CONTEXT_LENGTH_EXCEEDED)
            if self._log is not None:
                self._log.refused(arrival, Rejection.CONTEXT_LENGTH_EXCEEDED)
            return
        answer = self._queue.offer(arrival, spec.prompt_tokens + spec.expected_tokens)
        self._row.peak_waiting = max(self._row.peak_waiting, answer.num_waiting)
        if self._log is not None:
            self._log.offered(
                arrival.arrival_us,
                spec,
                answer.standing,
                answer.outcome,
                ahead=answer.ahead,
                waiting=(answer.num_waiting, answer.waiting_tokens),
                shed=answer.shed,
            )
        if answer.outcome in _TAKEN:
            self._board.specs[arrival.request_id] = spec
        else:
            self._reject(record, Rejection(answer.outcome.value))
        for request_id in answer.shed:
            del self._board.specs[request_id]
            self._reject(self.records[request_id], Rejection.SHED)

    def _spec(self, arrival: Arrival) -> SequenceSpec | None:
        """The request as a sequence; None when it can never fit."""
        max_tokens = self._setup.allowed_output(arrival)
        if max_tokens is None:
            return None
        known = arrival.known
        expected = known.expected_tokens if known else self._estimates[arrival.cls.name].expected(max_tokens)
        return SequenceSpec(
            sequence_id=arrival.request_id,
            class_name=arrival.cls.name,
            rank=arrival.cls.rank,
            score=0,
            arrival_us=arrival.arrival_us,
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=max_tokens,
            expected_tokens=expected,
            tenant=arrival.tenant,
            block_hashes=known.block_hashes if known else (),
        )

    def _reject(self, record: RequestRecord, reason: Rejection) -> None:
        record.reject(reason)
        self._row.rejected.append((record.arrival.request_id, reason))
        self.num_done += 1

    def _take_leavers(self, now_us: int) -> bool:
        """Those whose clients or deadlines are due end here; whether there were any that had not ended."""
        num_before = self.num_done
        while self._leaving and self._leaving[0][0] <= now_us:
            _, request_id = heapq.heappop(self._leaving)
            if self.records[request_id].result is Result.WAITING:
                self._leave(request_id, now_us)
        return self.num_done > num_before

    def _leave(self, request_id: str, now_us: int) -> None:
        record = self.records[request_id]
        record.result = Result.LEFT
        self.num_done += 1
        spec = self._board.specs.pop(request_id)
        withdrawal = self._queue.withdraw(request_id, now_us)
        if self._log is not None:
            reason = record.arrival.known.leaves if record.arrival.known else Leave.CANCELLED
            self._log.left(now_us, spec, reason, withdrawal.outcome, first_token_us=record.first_output_us)
        for driver in self._drivers:
            if driver.name == withdrawal.driver_id:
                driver.cancel(request_id, now_us)
