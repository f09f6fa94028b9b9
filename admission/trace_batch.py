"""The worker of a simulated trace: it executes each plan as it comes, and knows when each sequence will end.

A sequence that decodes is touched when it joins the decoding ones, when it leaves them, and when it ends: its last
iteration is known when it joins. How far it is in between is read off the number of the iteration, and what all of them
read of the KV memory is one sum that grows by their number. The decoding slots are compared with those of the iteration
before only when the plan has another tuple of them.

A sequence that was *ready* to decode (its prefill is done, it has neither ended nor been preempted) and is not in the
plan was *held back*.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from admission.cost import Work
from admission.events import Plan
from admission.trace_rows import Gap, RequestRecord


@dataclass(slots=True, kw_only=True, eq=False)
class Running:
    """A sequence from its first start to its end. ``emitted`` is as of ``since``, when it began to decode; if it does.

    ``last_emission`` and ``last_emission_us``: the iteration that gave its newest token, and when that ended.
    """

    record: RequestRecord
    slot: int = 0
    emitted: int = 0
    since: int = 0
    due: int = 0
    last_emission: int = 0
    last_emission_us: int = 0

    @property
    def request_id(self) -> str:
        return self.record.arrival.request_id

    @property
    def class_name(self) -> str:
        return self.record.arrival.cls.name

    @property
    def known_tokens(self) -> int:
        return self.record.arrival.prompt_tokens + self.emitted

    @property
    def is_done(self) -> bool:
        return self.emitted == self.record.arrival.output_tokens


class TraceBatch:
    """What runs. Iterations are numbered by the caller, one after the other."""

    def __init__(self) -> None:
        self._running: dict[str, Running] = {}
        self._by_slot: dict[int, Running] = {}
        self._decoding: dict[int, Running] = {}
        self._by_class: Counter[str] = Counter()
        self._due: dict[int, dict[int, Running]] = {}  # by iteration, then by slot
        self._slots: tuple[int, ...] = ()
        self._context = 0  # tokens that the decoding sequences attend to, all together
        self._joined: list[Running] = []
        self._ends_us = 0  # when the last iteration ended

    @property
    def num_decoding(self) -> int:
        """How many sequences the plan that was applied gives a token by decoding."""
        return len(self._decoding)

    def running_in(self, slot: int) -> Running:
        return self._by_slot[slot]

    def apply(self, plan: Plan, records: dict[str, RequestRecord], iteration: int) -> int:
        """Take in what the plan frees, starts and decodes; the number of sequences that it holds back."""
        for slot in plan.frees:
            del self._by_slot[slot]
        for start in plan.starts:
            running = self._running.get(start.sequence_id)
            if running is None:
                running = self._running[start.sequence_id] = Running(record=records[start.sequence_id])
            running.slot = start.slot
            self._by_slot[start.slot] = running
        self._joined = []
        if plan.decode is self._slots and len(plan.decode) == len(self._decoding):
            return 0
        self._slots = plan.decode
        planned = dict.fromkeys(plan.decode)
        held_back = [running for slot, running in self._decoding.items() if slot not in planned]
        for running in held_back:
            self._stop(running, iteration)
        joined = [self._by_slot[slot] for slot in plan.decode if slot not in self._decoding]
        self._joined = [running for running in joined if not running.is_done]  # planned before its end was reported
        for running in self._joined:
            self._join(running, iteration)
        return len(held_back)

    def work(self, plan: Plan) -> Work:
        """What the plan that was applied costs."""
        return Work(
            decode_tokens=len(self._decoding),
            prefill_tokens=sum([span.length for span in plan.prefill]),
            kv_tokens=self._context + sum([span.start + span.length for span in plan.prefill]),
            swapped_tokens=sum([start.swapped_tokens for start in plan.starts]),
        )

    def execute(self, plan: Plan, iteration: int, ends_us: int, took_us: int) -> tuple[list[Gap], list[Running]]:
        """Run the plan that was applied: the gaps between tokens that it closes, and the sequences that end with it."""
        closed = Counter(self._by_class)
        gaps = []
        for running in self._joined:
            closed[running.class_name] -= 1
            gaps.append(self._gap(running, iteration, ends_us))
        gaps += [Gap(name, 1, took_us, times) for name, times in closed.items() if times > 0]
        self._context += len(self._decoding)
        finished = list(self._due.pop(iteration, {}).values())
        for running in finished:
            self._leave(running, iteration + 1)
        for span in plan.prefill:
            if span.emits:
                running = self._by_slot[span.slot]
                if running.emitted > 0:
                    gaps.append(self._gap(running, iteration, ends_us))
                running.emitted += 1
                running.last_emission, running.last_emission_us = iteration, ends_us
                if running.is_done:
                    finished.append(running)
        for running in finished:
            del self._running[running.request_id]
        self._ends_us = ends_us
        return gaps, finished

    def pause(self, request_id: str, iteration: int) -> None:
        """It was preempted before this iteration. It keeps what it has emitted."""
        running = self._running.get(request_id)
        if running is not None and self._decoding.get(running.slot) is running:
            self._stop(running, iteration)

    def _join(self, running: Running, iteration: int) -> None:
        running.since = iteration
        running.due = iteration + running.record.arrival.output_tokens - running.emitted - 1
        self._decoding[running.slot] = running
        self._due.setdefault(running.due, {})[running.slot] = running
        self._by_class[running.class_name] += 1
        self._context += running.known_tokens

    def _stop(self, running: Running, iteration: int) -> None:
        """It decodes no more from ``iteration`` on, before its end."""
        del self._due[running.due][running.slot]
        self._leave(running, iteration)

    def _leave(self, running: Running, iteration: int) -> None:
        running.emitted += iteration - running.since
        running.last_emission, running.last_emission_us = iteration - 1, self._ends_us
        del self._decoding[running.slot]
        self._by_class[running.class_name] -= 1
        self._context -= running.known_tokens

    @staticmethod
    def _gap(running: Running, iteration: int, ends_us: int) -> Gap:
        return Gap(running.class_name, iteration - running.last_emission, ends_us - running.last_emission_us, 1)
