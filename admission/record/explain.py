"""One request's life in plain sentences: where it waited and behind whom, what held it, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from admission.events import EndReason, PauseReason
from admission.queue import Offered
from admission.record.entries import Answered, LogEntry, OfferMade, Withdrew
from admission.record.story import Begin, Claim, Hold, Life, Part, Pause, Run, Story
from admission.record.waiting import QueueMoment, WaitingLine, merge

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


def explain(request_id: str, doors: Sequence[Iterable[LogEntry]], stories: Sequence[Story]) -> tuple[Explanation, ...]:
    """Every sequence of the request (or the sequence of that id). Raises ``UnknownRequest``."""
    known = [list(door) for door in doors]
    names = _Names(known)
    moments = _moments(known)
    answers = [
        entry for door in known for entry in door if isinstance(entry, Answered) and entry.request_id == request_id
    ]
    sequence_ids = names.sequences_of(request_id) or [
        name for name in [request_id] if any(name in story.lives for story in stories)
    ]
    if not sequence_ids and not answers:
        raise UnknownRequest(request_id)
    told = [_of_sequence(sequence_id, moments, stories, names) for sequence_id in sequence_ids]
    ends = tuple([_answered(answer) for answer in answers])
    if not told:
        return (Explanation(sequence_id="", about=_about_answer(answers[0]), sentences=ends),)
    last = told[-1]
    return (*told[:-1], Explanation(sequence_id=last.sequence_id, about=last.about, sentences=(*last.sentences, *ends)))


class _Names:
    """What sequences are called: by the request that clients know, where the doors tell it."""

    def __init__(self, doors: Sequence[Sequence[LogEntry]]) -> None:
        self._offers = {entry.sequence_id: entry for door in doors for entry in door if isinstance(entry, OfferMade)}

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


def _moments(doors: Sequence[Sequence[LogEntry]]) -> list[QueueMoment]:
    """The queues of all models, act by act; each is a line of its own."""
    lines: dict[str, WaitingLine] = {}
    models = sorted({entry.model for door in doors for entry in door if isinstance(entry, OfferMade)})
    moments = []
    for model in models:
        line = lines.setdefault(model, WaitingLine())
        of_model = [[entry for entry in door if getattr(entry, "model", None) == model] for door in doors]
        moments += [line.take(act) for act in merge(of_model)]
    return moments


def _of_sequence(
    sequence_id: str, moments: Sequence[QueueMoment], stories: Sequence[Story], names: _Names
) -> Explanation:
    sentences: list[Sentence] = []
    about = sequence_id
    for moment in moments:
        act = moment.act
        if isinstance(act, OfferMade) and act.sequence_id == sequence_id:
            about = _about(names.of(sequence_id), act.class_name, act.prompt_tokens, act.max_tokens)
            sentences.append(_offered(act, moment, names))
        elif isinstance(act, Withdrew) and act.sequence_id == sequence_id:
            sentences.append(Sentence(at_us=act.now_us, kind=Kind.WITHDRAWN, text="was taken out of the queue"))
        elif isinstance(act, OfferMade) and sequence_id in act.shed:
            text = f"was shed: {names.with_class(act.sequence_id)} took its place in the queue"
            sentences.append(Sentence(at_us=act.now_us, kind=Kind.ENDED, text=text))
    for story in stories:
        life = story.lives.get(sequence_id)
        if life is not None:
            spec = life.spec
            about = _about(names.of(sequence_id), spec.class_name, spec.prompt_tokens, spec.max_tokens)
            sentences += _LifeTeller(life, story, names).sentences()
    sentences.sort(key=lambda sentence: (sentence.at_us, _ORDER[sentence.kind]))
    return Explanation(sequence_id=sequence_id, about=about, sentences=tuple(sentences))


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


def _offered(act: OfferMade, moment: QueueMoment, names: _Names) -> Sentence:
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
    return Sentence(at_us=act.now_us, kind=Kind.OFFERED, text=text)


def _answered(answer: Answered) -> Sentence:
    text = (
        f"the client was answered: {answer.outcome} (HTTP {answer.status}), {_tokens(answer.output_tokens)} of output"
    )
    return Sentence(at_us=answer.now_us, kind=Kind.ANSWERED, text=text)


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
            told.append(Sentence(at_us=life.cancelled_us, kind=Kind.CANCELLED, text="nobody wanted it any more"))
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
        """Iterations of a run after its first. It is in each of them, and they may be numbered with gaps."""
        beats = self._story.beats
        return beats.index(run.last) - beats.index(run.first)

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
            at_us=at_us,
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
