"""One request's life in plain sentences: where it waited and behind whom, what held it, and what came of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from admission.events import EndReason, PauseReason
from admission.queue import Offered
from admission.record.clocks import Clocks
from admission.record.entries import Answered, LogEntry, OfferMade, Withdrew
from admission.record.story import Begin, Claim, Hold, Life, Part, Pause, Run, Story
from admission.record.waiting import QueueMoment, queues

MOST_NAMES = 3
"""Of others that are named in a sentence; the rest are counted."""


class Kind(StrEnum):
    """What a sentence is about."""

    OFFERED = "offered"
    CLAIMED = "claimed"
    STARTED = "started"
    PREFILL = "prefill"
    DECODE = "decode"
    PAUSED = "paused"
    WITHDRAWN = "withdrawn"
    CANCELLED = "cancelled"
    ENDED = "ended"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """``first`` to ``last``: iterations of ``driver_id``; None: it is of the queue. ``at_us`` is when it began."""

    at_us: int
    kind: Kind
    text: str
    driver_id: str | None = None
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One sequence of the request: what it is, then what happened, in the order of time."""

    sequence_id: str
    about: str
    sentences: tuple[Sentence, ...]


class UnknownRequest(Exception):
    """No log knows it."""


class Explainer:
    """Knows all logs of a cluster: the doors' records and the drivers' stories, on one clock."""

    def __init__(self, doors: Sequence[Sequence[LogEntry]], stories: Sequence[Story], clocks: Clocks) -> None:
        self._stories = stories
        self._names = _Names(doors)
        self._told: defaultdict[str, list[Sentence]] = defaultdict(list)  # by sequence: what the queue did
        self._answers: defaultdict[str, list[Sentence]] = defaultdict(list)  # by request
        self._about_answers: dict[str, str] = {}
        offsets = {id(entry): clocks.offset_us(door) for door in doors for entry in door}
        for queue in queues(doors):
            for moment in queue:
                self._tell(moment, offsets[id(moment.act)])
        for door in doors:
            for entry in door:
                if isinstance(entry, Answered):
                    self._answers[entry.request_id].append(_answered(entry, offsets[id(entry)]))
                    self._about_answers[entry.request_id] = _about_answer(entry)

    def request(self, request_id: str) -> tuple[Explanation, ...]:
        """Every sequence of the request (or the sequence of that id). Raises ``UnknownRequest``."""
        sequence_ids = self._names.sequences_of(request_id)
        if not sequence_ids and self._is_known(request_id):
            sequence_ids = [request_id]
        answers = tuple(self._answers.get(request_id, ()))
        if not sequence_ids and not answers:
            raise UnknownRequest(request_id)
        if not sequence_ids:
            return (Explanation(sequence_id="", about=self._about_answers[request_id], sentences=answers),)
        *others, last = [self.sequence(sequence_id) for sequence_id in sequence_ids]
        return (*others, replace(last, sentences=(*last.sentences, *answers)))

    def sequence(self, sequence_id: str) -> Explanation:
        """One sequence that ``sequence_ids`` has."""
        sentences = list(self._told.get(sequence_id, ()))
        for story in self._stories:
            life = story.lives.get(sequence_id)
            if life is not None:
                sentences += _LifeTeller(life, story, self._names).sentences()
        sentences.sort(key=lambda sentence: (sentence.at_us, _ORDER[sentence.kind]))
        return Explanation(sequence_id=sequence_id, about=self._about(sequence_id), sentences=tuple(sentences))

    def sequence_ids(self) -> tuple[str, ...]:
        """All that any log knows, those that were offered first."""
        lives = [sequence_id for story in self._stories for sequence_id in story.lives]
        return tuple(dict.fromkeys([*self._names.offered(), *lives]))

    def name_of(self, sequence_id: str) -> str:
        """What its client calls it, as far as the doors tell."""
        return self._names.of(sequence_id)

    def class_of(self, sequence_id: str) -> str:
        offer = self._names.offer(sequence_id)
        if offer is not None:
            return offer.class_name
        return next(s.lives[sequence_id].spec.class_name for s in self._stories if sequence_id in s.lives)

    def _is_known(self, sequence_id: str) -> bool:
        return any(sequence_id in story.lives for story in self._stories)

    def _tell(self, moment: QueueMoment, offset_us: int) -> None:
        act, at_us = moment.act, moment.act.now_us + offset_us
        if isinstance(act, OfferMade):
            self._told[act.sequence_id].append(_offered(act, moment, self._names, at_us))
            for shed in act.shed:
                text = f"was shed: {self._names.with_class(act.sequence_id)} took its place in the queue"
                self._told[shed].append(Sentence(at_us=at_us, kind=Kind.ENDED, text=text))
        elif isinstance(act, Withdrew):
            text = "was taken out of the queue"
            self._told[act.sequence_id].append(Sentence(at_us=at_us, kind=Kind.WITHDRAWN, text=text))

    def _about(self, sequence_id: str) -> str:
        offer, name = self._names.offer(sequence_id), self._names.of(sequence_id)
        if offer is not None:
            return _about(name, offer.class_name, offer.prompt_tokens, offer.max_tokens)
        spec = next(story.lives[sequence_id].spec for story in self._stories if sequence_id in story.lives)
        return _about(name, spec.class_name, spec.prompt_tokens, spec.max_tokens)


class _Names:
    """What sequences are called: by the request that clients know, where the doors tell it."""

    def __init__(self, doors: Sequence[Sequence[LogEntry]]) -> None:
        self._offers = {entry.sequence_id: entry for door in doors for entry in door if isinstance(entry, OfferMade)}

    def offered(self) -> list[str]:
        return list(self._offers)

    def offer(self, sequence_id: str) -> OfferMade | None:
        return self._offers.get(sequence_id)

    def sequences_of(self, request_id: str) -> list[str]:
        return [name for name, offer in self._offers.items() if offer.request_id == request_id]

    def of(self, sequence_id: str) -> str:
        offer = self._offers.get(sequence_id)
        if offer is None:
            return sequence_id
        return offer.request_id if offer.choice == 0 else f"{offer.request_id} (choice {offer.choice})"

    def with_class(self, sequence_id: str) -> str:
        offer = self._offers.get(sequence_id)
        return self.of(sequence_id) if offer is None else f"{self.of(sequence_id)} ({offer.class_name})"

    def several(self, sequence_ids: Sequence[str]) -> str:
        """``A, B and 3 others``."""
        shown = [self.of(name) for name in sequence_ids[:MOST_NAMES]]
        left = len(sequence_ids) - len(shown)
        if left == 1:
            shown.append(self.of(sequence_ids[-1]))
        elif left > 1:
            shown.append(f"{left} others")
        return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


_ORDER = {
    kind: place
    for place, kind in enumerate(
        (
            Kind.OFFERED,
            Kind.PAUSED,
            Kind.CLAIMED,
            Kind.STARTED,
            Kind.PREFILL,
            Kind.DECODE,
            Kind.WITHDRAWN,
            Kind.CANCELLED,
            Kind.ENDED,
            Kind.ANSWERED,
        )
    )
}
"""Of what happened at the same time."""


def _about(name: str, class_name: str, prompt_tokens: int, max_tokens: int) -> str:
    return f"{name}: class {class_name}, prompt of {_tokens(prompt_tokens)}, output of at most {_tokens(max_tokens)}"


def _about_answer(answer: Answered) -> str:
    return f"{answer.request_id}: class {answer.class_name}, prompt of {_tokens(answer.prompt_tokens)}"


def _offered(act: OfferMade, moment: QueueMoment, names: _Names, at_us: int) -> Sentence:
    match act.outcome:
        case Offered.HANDED:
            text = "arrived, and was handed to a driver that wanted it at once"
        case Offered.QUEUED:
            behind = f"behind {names.several(moment.ahead)}" if moment.ahead else "first in line"
            text = f"arrived, and waited {behind}"
        case Offered.QUEUE_FULL:
            text = f"arrived, and was refused: the queue was full, with {_requests(len(moment.waiting))} waiting"
        case Offered.QUEUE_TOKENS_FULL:
            text = "arrived, and was refused: the queue held as many tokens as it may"
        case Offered.CLASS_FULL:
            text = f"arrived, and was refused: as much of class {act.class_name} waited as may"
        case _:
            text = f"was offered again: {act.outcome.value}"
    if act.outcome is Offered.QUEUE_FULL and moment.waiting:
        text += f" ({names.several(moment.waiting)})"
    return Sentence(at_us=at_us, kind=Kind.OFFERED, text=text)


def _answered(answer: Answered, offset_us: int) -> Sentence:
    text = (
        f"the client was answered: {answer.outcome} (HTTP {answer.status}), {_tokens(answer.output_tokens)} of output"
    )
    return Sentence(at_us=answer.now_us + offset_us, kind=Kind.ANSWERED, text=text)


class _LifeTeller:
    """Tells a life at one driver."""

    def __init__(self, life: Life, story: Story, names: _Names) -> None:
        self._life = life
        self._story = story
        self._names = names

    def sentences(self) -> list[Sentence]:
        life = self._life
        told = [
            *[self._claim(claim) for claim in life.claims if claim.held_by is not None],
            *[self._begin(begin, is_first=number == 0) for number, begin in enumerate(life.begins)],
            *[self._run(run) for run in life.runs],
            *[self._pause(pause) for pause in life.pauses],
        ]
        if life.cancelled_us is not None:
            at_us = life.cancelled_us + self._story.offset_us
            told.append(Sentence(at_us=at_us, kind=Kind.CANCELLED, text="nobody wanted it any more"))
        if life.end is not None:
            end = life.end
            told.append(self._sentence(end.at_us, Kind.ENDED, _ENDS[end.reason], end.iteration))
        return told

    def _claim(self, claim: Claim) -> Sentence:
        text = "was given to a driver"
        match claim.held_by:
            case Hold.SLOTS:
                text += f", where all {self._story.max_slots} slots were taken"
            case Hold.MEMORY:
                text += ", where there was no KV memory for it"
            case Hold.ORDER:
                text += ", where it could not start at once"
        return self._sentence(claim.at_us, Kind.CLAIMED, text, claim.iteration)

    def _begin(self, begin: Begin, *, is_first: bool) -> Sentence:
        text = f"{'started' if is_first else 'resumed'} in slot {begin.slot}"
        if begin.swapped:
            text += f", with the KV of {_tokens(begin.swapped)} back from host memory"
        elif begin.kept and is_first:
            text += f", with {_tokens(begin.kept)} of its prompt found in memory"
        elif begin.kept:
            text += f", with {self._kept(begin.kept)} kept"
        elif not is_first:
            text += ", with nothing kept"
        return self._sentence(begin.beat.planned_us, Kind.STARTED, text, begin.beat.iteration)

    def _kept(self, tokens: int) -> str:
        prompt = min(tokens, self._life.spec.prompt_tokens)
        text = f"{prompt} prompt {'token' if prompt == 1 else 'tokens'}"
        return text if prompt == tokens else f"{text} and {tokens - prompt} of its output"

    def _run(self, run: Run) -> Sentence:
        if run.part is Part.DECODE:
            text = f"decoded {_tokens(run.tokens)}"
        else:
            chunks = 1 + self._between(run)
            text = f"prefill of {_tokens(run.tokens)}" + (f" in {chunks} chunks" if chunks > 1 else "")
            text += ", and a token of output" if run.emits else ""
        return self._sentence(run.first.planned_us, Kind(run.part.value), text, run.first.iteration, run.last.iteration)

    def _between(self, run: Run) -> int:
        """Iterations of a run after its first: it is in each of them."""
        return run.last.number - run.first.number

    def _pause(self, pause: Pause) -> Sentence:
        if pause.by is not None:
            text = f"{self._names.with_class(pause.by)} preempted it, as every slot was taken; it waits"
        elif pause.reason is PauseReason.KV:
            text = "was preempted, as there was no KV memory left; it waits"
        else:
            text = "was preempted, as there are fewer slots now; it waits"
        return self._sentence(pause.at_us, Kind.PAUSED, text, pause.iteration)

    def _sentence(self, at_us: int, kind: Kind, text: str, first: int, last: int | None = None) -> Sentence:
        return Sentence(
            at_us=at_us + self._story.offset_us,
            kind=kind,
            text=text,
            driver_id=self._story.driver_id,
            first=first,
            last=first if last is None else last,
        )


_ENDS = {
    EndReason.STOP: "finished: its last token was a stop",
    EndReason.LENGTH: "finished: it had all the output that it may have",
    EndReason.FAILED: "ended: the worker could not go on with it",
    EndReason.CANCELLED: "ended: it was cancelled",
    EndReason.DEADLINE: "ended: its deadline had passed",
    EndReason.WORKER_LOST: "ended here: the worker was lost",
}


def _tokens(number: int) -> str:
    return f"{number} token" if number == 1 else f"{number:,} tokens"


def _requests(number: int) -> str:
    return f"{number} request" if number == 1 else f"{number:,} requests"
