"""The tokens and the custody of a driver's sequences: what the scheduler does not know.

    claimed ──▶ HELD ──(exchanged, or paused: given back)──▶ RETURNED ──(claimed again)──▶ HELD
                 └──(ended)──▶ settled                          └──(ended, cancelled)──▶ withdrawn

A returned sequence stays pinned to its driver, which keeps its tokens; in a plan that was in flight when it was
displaced it may still give a token, and that token counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from admission.events import EndReason, FinishReason, Paused, PauseReason, Start
from admission.queue import Claim
from admission.redis_queue import RedisQueue
from admission.scheduler import ReportError
from gateway.errors import Reason
from gateway.metrics import WorkerMetrics
from gateway.prefix_hashes import block_hashes
from gateway.relay import Relay
from gateway.scores import is_whole, since
from gateway.sequence_records import Custody, SequenceRecord, job_of, unreadable
from gateway.store_acts import StoreActs
from workers.wire import Delivery, Job, Logprobs, PromptNews, ReportMessage, Scores

_log = structlog.get_logger(__name__)

_REASONS = {
    EndReason.FAILED: Reason.INTERNAL_ERROR,
    EndReason.DEADLINE: Reason.DEADLINE_EXCEEDED,
    EndReason.WORKER_LOST: Reason.WORKER_LOST,
}


class SequenceBook:
    """Every sequence of one driver that has not ended, and the output that has not left yet.

    ``most_tokens`` is what the worker can hold of one sequence, prompt and output. ``shared_block_size``: tokens of a
    KV block, if equal ones are shared. ``withdrawn`` is told what has ended and is being taken out of the line.
    """

    def __init__(
        self,
        *,
        driver_id: str,
        most_tokens: int,
        shared_block_size: int | None,
        queue: RedisQueue,
        acts: StoreActs,
        relay: Relay,
        metrics: WorkerMetrics,
        withdrawn: Callable[[str], None],
    ) -> None:
        self._driver_id = driver_id
        self._withdrawn = withdrawn
        self._most_tokens = most_tokens
        self._shared_block_size = shared_block_size
        self._queue = queue
        self._acts = acts
        self._relay = relay
        self._metrics = metrics
        self._records: dict[str, SequenceRecord] = {}
        self._slots: dict[int, SequenceRecord] = {}
        self._output: defaultdict[str, list[Delivery]] = defaultdict(list)

    @property
    def records(self) -> Mapping[str, SequenceRecord]:
        return self._records

    def of_origin(self, origin: str) -> list[str]:
        """Ids of the sequences that are made for ``origin``."""
        return [sequence_id for sequence_id, record in self._records.items() if record.job.origin == origin]

    def holds(self, sequence_id: str) -> bool:
        """Whether it is here and not returned to the store."""
        record = self._records.get(sequence_id)
        return record is not None and record.custody is Custody.HELD

    # --- what begins, runs and pauses ---------------------------------------------------------------------------------

    def admit(self, claim: Claim) -> SequenceRecord:
        """Hold what was claimed. The record is closed when its sequence cannot run here: its origin is told."""
        record = self._records.get(claim.entry.entry_id)
        if record is None:
            record = self._records[claim.entry.entry_id] = self._new_record(claim)
        record.custody = Custody.HELD
        return record

    def start(self, starts: Iterable[Start]) -> None:
        """These take their slots."""
        for start in starts:
            record = self._records[start.sequence_id]
            record.slot = start.slot
            if record.cached_tokens is None:
                record.cached_tokens = min(start.computed_tokens, len(record.job.prompt_ids))
            self._slots[start.slot] = record

    def take_report(self, report: ReportMessage, finished: Mapping[int, FinishReason]) -> None:
        """Keep the tokens of sequences that have not ended, and make deliveries of them.

        Raises ``ReportError`` when log-probabilities are missing, or are those of other tokens.
        """
        scores = self._take_scores(report.logprobs) if report.logprobs else {}
        for slot, token in report.tokens:
            record = self._slots.get(slot)
            if record is None or record.closed:
                self._metrics.unwanted_tokens.inc()
            elif record.output and slot not in finished and record.job.sampling.top_logprobs is None:
                self._output[record.job.origin].append(_next_token(record, token))
                record.output.append(token)
            else:
                self._take_token(record, token, finished.get(slot), scores.get(slot))
        for slot, reason in finished.items():
            record = self._slots.get(slot)
            if reason is FinishReason.FAILED and record is not None and not record.closed:
                self._close(record, error=Reason.INTERNAL_ERROR)

    def give_back(self, paused: Iterable[Paused]) -> None:
        """The scheduler has paused these: they wait in this driver's line in the store."""
        for pause in paused:
            self._metrics.preemptions.labels(pause.reason.value).inc()
            record = self._records.get(pause.sequence_id)
            if record is not None:
                record.custody = Custody.RETURNED
                self._acts.give_back(self._queue, self._driver_id, (pause.sequence_id,))

    def return_victim(self, victim_id: str) -> None:
        """An exchange has put the victim into this driver's line. One that has ended meanwhile must not stay there."""
        self._metrics.preemptions.labels(PauseReason.SLOT.value).inc()
        victim = self._records.get(victim_id)
        if victim is not None:
            victim.custody = Custody.RETURNED
        else:
            self._withdraw(victim_id)

    # --- what ends ----------------------------------------------------------------------------------------------------

    def end(self, sequence_id: str, reason: EndReason) -> None:
        """The scheduler has let it go. Tokens that are still on their way are dropped."""
        record = self._records.pop(sequence_id, None)
        if record is None:
            return  # handed over: the store and its origin know
        if record.slot is not None and self._slots.get(record.slot) is record:
            del self._slots[record.slot]
        if not record.closed:
            self._tell_end(record, reason)
        if record.custody is Custody.HELD:
            self._acts.settle(self._queue, self._driver_id, (sequence_id,))
        else:
            self._withdraw(sequence_id)

    def abandon(self) -> None:
        """The worker is lost, and with it all that it held: its origins are told, and offer it again.

        What was returned waits for whoever claims it next.
        """
        for record in self._records.values():
            if record.custody is Custody.RETURNED:
                self._relay.release(record.job.origin, record.job.sequence_id)
            elif not record.closed:
                self._close(record, error=Reason.WORKER_LOST)
        held = self._held()
        if held:
            self._acts.settle(self._queue, self._driver_id, held)
        self._clear()
        self.deliver()

    def hand_over(self) -> None:
        """Give back what has not ended, so that another driver continues it; its origin notices nothing."""
        held = self._held()
        if held:
            self._acts.give_back(self._queue, self._driver_id, held)
        for record in self._records.values():
            self._relay.release(record.job.origin, record.job.sequence_id)
        self._clear()

    def deliver(self) -> None:
        """Send what came of this turn: one message for each origin."""
        output, self._output = self._output, defaultdict(list)
        for origin, deliveries in output.items():
            self._relay.deliver(self._driver_id, origin, deliveries)

    # --- details ------------------------------------------------------------------------------------------------------

    def _new_record(self, claim: Claim) -> SequenceRecord:
        job = job_of(claim)
        if job is None:
            _log.error("unreadable job", driver=self._driver_id, entry=claim.entry.entry_id)
            return SequenceRecord(job=unreadable(claim), closed=True)
        record = SequenceRecord.of(job)
        if _length(job) > self._most_tokens:
            self._close(record, error=Reason.CONTEXT_LENGTH_EXCEEDED)
        elif self._shared_block_size is not None and job.sampling.prompt_logprobs is None:  # those need every token
            record.block_hashes = block_hashes(
                job.prompt_ids, block_size=self._shared_block_size, tenant=claim.entry.tenant
            )
        return record

    def _take_scores(self, logprobs: Iterable[Logprobs]) -> dict[int, Scores]:
        """Tell those of prompts, as far as they are new; the result has those of emitted tokens, by slot."""
        emitted: dict[int, Scores] = {}
        for found in logprobs:
            record = self._slots.get(found.slot)
            if record is None or record.closed:
                continue
            scores = Scores(own=found.own, top_ids=found.top_ids, top=found.top)
            end, length = found.start + len(found.own), len(record.job.prompt_ids)
            if not is_whole(scores):
                raise ReportError(f"log-probabilities of slot {found.slot} do not fit each other")
            if end <= length and found.start <= record.scored_tokens:
                self._tell_prompt_scores(record, since(scores, min(record.scored_tokens, end) - found.start))
            elif found.start == length + len(record.output) and end == found.start + 1:
                emitted[found.slot] = scores
            else:
                raise ReportError(f"log-probabilities of slot {found.slot} from {found.start} on are of other tokens")
        return emitted

    def _tell_prompt_scores(self, record: SequenceRecord, scores: Scores) -> None:
        """Nothing is told when it was all told before, as after a preemption."""
        if scores.own:
            self._say(record, len(record.output), (), prompt=PromptNews(start=record.scored_tokens, scores=scores))
            record.scored_tokens += len(scores.own)

    def _take_token(
        self, record: SequenceRecord, token: int, finish: FinishReason | None, scores: Scores | None
    ) -> None:
        """An eos or a stop id ends the output and is no part of it."""
        if scores is None and record.job.sampling.top_logprobs is not None:
            raise ReportError(f"no log-probability of a token of slot {record.slot}")
        position = len(record.output)
        prompt = self._prompt_news(record) if position == 0 else None
        if finish is None or finish is FinishReason.LENGTH:
            record.output.append(token)
            ending = "" if finish is None else finish.value
            self._say(record, position, (token,), finish=ending, scores=scores, prompt=prompt)
        elif finish is FinishReason.STOP:
            stop_id = token if token in record.job.sampling.stop_token_ids else None
            self._say(record, position, (), finish=finish.value, prompt=prompt, stop_id=stop_id)
        record.closed = finish is FinishReason.LENGTH or finish is FinishReason.STOP

    def _prompt_news(self, record: SequenceRecord) -> PromptNews | None:
        """What comes with the first token: the prompt has been computed."""
        if record.job.sampling.prompt_logprobs is not None and record.scored_tokens < len(record.job.prompt_ids):
            raise ReportError(f"log-probabilities of the prompt in slot {record.slot} are missing")
        return PromptNews(cached_tokens=record.cached_tokens) if record.cached_tokens else None

    def _tell_end(self, record: SequenceRecord, reason: EndReason) -> None:
        match reason:
            case EndReason.CANCELLED:
                self._relay.release(record.job.origin, record.job.sequence_id)
            case EndReason.STOP | EndReason.LENGTH:
                self._close(record, finish=reason.value)
            case _:
                self._close(record, error=_REASONS[reason])

    def _close(self, record: SequenceRecord, *, error: Reason | None = None, finish: str = "") -> None:
        record.closed = True
        self._say(record, len(record.output), (), finish=finish, error="" if error is None else error.value)

    def _say(
        self,
        record: SequenceRecord,
        position: int,
        token_ids: tuple[int, ...],
        *,
        finish: str = "",
        error: str = "",
        scores: Scores | None = None,
        prompt: PromptNews | None = None,
        stop_id: int | None = None,
    ) -> None:
        self._output[record.job.origin].append(
            Delivery(
                sequence_id=record.job.sequence_id,
                position=position,
                token_ids=token_ids,
                finish=finish,
                error=error,
                scores=scores,
                prompt=prompt,
                stop_id=stop_id,
            )
        )

    def _withdraw(self, sequence_id: str) -> None:
        """Out of the line; when a claim of it is on its way, or comes first, it is cancelled on arrival."""
        self._withdrawn(sequence_id)
        self._acts.withdraw(
            self._queue, sequence_id, lambda entry_id, driver_id: self._relay.cancel(driver_id, (entry_id,))
        )

    def _held(self) -> Sequence[str]:
        return [sequence_id for sequence_id, record in self._records.items() if record.custody is Custody.HELD]

    def _clear(self) -> None:
        self._records.clear()
        self._slots.clear()


def _next_token(record: SequenceRecord, token: int) -> Delivery:
    """What most deliveries are: one more token, and nothing else."""
    return Delivery(record.job.sequence_id, len(record.output), (token,))


def _length(job: Job) -> int:
    return len(job.prompt_ids) + job.max_tokens
