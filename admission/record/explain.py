"""One request's life in plain sentences: where it waited and behind whom, what held it, and what came of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from admission.queue import Offered, QueueBounds
from admission.record.clocks import Clocks
from admission.record.entries import Answered, DoorOpened, Forgot, LogEntry, OfferMade, Withdrew
from admission.record.life_sentences import life_sentences
from admission.record.names import Names
from admission.record.sentences import Kind, Sentence, counted, in_order
from admission.record.story import Hold, Story
from admission.record.waiting import QueueMoment, queues

COMPLETED, CANCELLED = "completed", "cancelled"
"""Outcomes of an answer that are no refusal."""

FIRST_ERROR = 400
"""A status from which on an answer is an error; one that had begun before it failed has a lower one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One choice of a request, or one sequence: what it is, then what happened, in the order of time.

    ``sequence_ids`` are several when it went on elsewhere, and none when it was never offered.
    """

    name: str
    about: str
    sequence_ids: tuple[str, ...]
    sentences: tuple[Sentence, ...]


class UnknownRequest(Exception):
    """No log knows it."""


class Explainer:
    """Knows all logs of a cluster: the doors' records and the drivers' stories, on one clock."""

    def __init__(self, doors: Sequence[Sequence[LogEntry]], stories: Sequence[Story], clocks: Clocks) -> None:
        self._stories = stories
        self._names = Names(doors)
        bounds = [entry.bounds for door in doors for entry in door if isinstance(entry, DoorOpened)]
        self._bounds = bounds[0] if bounds else None
        self._told: defaultdict[str, list[Sentence]] = defaultdict(list)  # by sequence: what the queue did
        self._answers: dict[str, tuple[Answered, int]] = {}  # by request, with the time that all logs share
        for queue in queues(doors, clocks):
            for moment in queue:
                self._tell(moment)
        for door in doors:
            offset_us = clocks.offset_us(door)
            answers = [entry for entry in door if isinstance(entry, Answered)]
            self._answers |= {answer.request_id: (answer, answer.now_us + offset_us) for answer in answers}

    def request(self, asked: str) -> tuple[Explanation, ...]:
        """Every choice of a request, by any of its ids, or the sequence of that id. Raises ``UnknownRequest``."""
        explained = [each for request_id in self._names.requests(asked) for each in self._request(request_id)]
        if not explained and any(asked in story.lives for story in self._stories):
            explained = [self.sequence(asked)]
        if not explained:
            raise UnknownRequest(asked)
        return tuple(explained)

    def sequence(self, sequence_id: str) -> Explanation:
        """One sequence that ``sequence_ids`` has."""
        return self._explained((sequence_id,))

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

    def _request(self, request_id: str) -> list[Explanation]:
        explained = [self._explained(sequence_ids) for sequence_ids in self._names.choices_of(request_id)]
        if request_id not in self._answers:
            return explained
        answer, at_us = self._answers[request_id]
        told = Sentence(at_us=at_us, kind=Kind.ANSWERED, text=_answered(answer, max(1, len(explained))))
        if not explained:
            about = _about(request_id, answer.class_name, answer.prompt_tokens, None)
            return [Explanation(name=request_id, about=about, sequence_ids=(), sentences=(told,))]
        return [replace(each, sentences=in_order((*each.sentences, told))) for each in explained]

    def _explained(self, sequence_ids: Sequence[str]) -> Explanation:
        sentences = [sentence for sequence_id in sequence_ids for sentence in self._life(sequence_id)]
        name = self._names.of(sequence_ids[0])
        about = self._about(name, sequence_ids[0])
        return Explanation(name=name, about=about, sequence_ids=tuple(sequence_ids), sentences=in_order(sentences))

    def _life(self, sequence_id: str) -> list[Sentence]:
        sentences = list(self._told.get(sequence_id, ()))
        for story in self._stories:
            life = story.lives.get(sequence_id)
            if life is not None:
                place = f" of {story.driver_id}" if len(self._stories) > 1 else ""
                sentences += life_sentences(life, story, self._names, place=place)
        return sentences

    def _about(self, name: str, sequence_id: str) -> str:
        offer = self._names.offer(sequence_id)
        if offer is not None:
            return _about(name, offer.class_name, offer.prompt_tokens, offer.max_tokens)
        spec = next(story.lives[sequence_id].spec for story in self._stories if sequence_id in story.lives)
        return _about(name, spec.class_name, spec.prompt_tokens, spec.max_tokens)

    # --- what the queue did -------------------------------------------------------------------------------------------

    def _tell(self, moment: QueueMoment) -> None:
        act, at_us = moment.act, moment.at_us
        if isinstance(act, OfferMade):
            self._told[act.sequence_id].append(
                Sentence(at_us=at_us, kind=Kind.OFFERED, text=self._offered(act, moment))
            )
            for shed in act.shed:
                text = f"was shed: {self._names.with_class(act.sequence_id)} took its place in the queue"
                self._told[shed].append(Sentence(at_us=at_us, kind=Kind.ENDED, text=text))
        elif isinstance(act, Forgot):
            for name in act.waiting:
                text = "its driver was gone: it waits for any other"
                self._told[name].append(Sentence(at_us=at_us, kind=Kind.PAUSED, text=text, driver_id=act.driver_id))
        elif isinstance(act, Withdrew) and moment.left:
            text = "was taken out of the queue, as nobody waits for it any more"
            self._told[act.sequence_id].append(Sentence(at_us=at_us, kind=Kind.WITHDRAWN, text=text))

    def _offered(self, act: OfferMade, moment: QueueMoment) -> str:
        came = "arrived"
        if not self._names.is_first(act):
            came = f"went on elsewhere with {counted(act.emitted_tokens, 'token')} of its output"
        match act.outcome:
            case Offered.HANDED:
                return f"{came}, and was handed to a driver that wanted it at once"
            case Offered.QUEUED:
                behind = (
                    f"behind {self._names.several(moment.others, moment.num_others)}"
                    if moment.others
                    else "first in line"
                )
                return f"{came}, and waited {behind}{self._what_held(act, moment.at_us)}"
            case Offered.QUEUE_FULL:
                return f"{came}, and was refused: {_full(self._bounds)}{self._who_waited(act, moment)}"
            case Offered.QUEUE_TOKENS_FULL:
                return f"{came}, and was refused: the queue held as many tokens as it may"
            case Offered.CLASS_FULL:
                return f"{came}, and was refused: as much of class {act.class_name} waited as may"
            case Offered.SHED | Offered.WITHDRAWN:
                return f"{came}, but had been {act.outcome.value} already"

    def _what_held(self, offer: OfferMade, at_us: int) -> str:
        """Why no driver took it, if all drivers of the model say the same."""
        tokens = offer.prompt_tokens + offer.expected_tokens
        latest: dict[str, Hold | None] = {}  # by driver: it may have been started several times
        for story in sorted(self._stories, key=lambda story: story.began_us + story.offset_us):
            if story.model == offer.model and story.was_there(at_us - story.offset_us):
                latest[story.driver_id] = story.hold_at(at_us - story.offset_us, tokens=tokens)
        holds = set(latest.values())
        return _HELD.get(holds.pop(), "") if len(holds) == 1 else ""

    def _who_waited(self, refused: OfferMade, moment: QueueMoment) -> str:
        """By name, if the logs know of all of them: that of a killed gateway ends before its last acts."""
        if moment.num_others != refused.waiting_requests:
            return f" ({refused.waiting_requests:,} waited)"
        return f" ({self._names.several(moment.others, moment.num_others)} waited)" if moment.others else ""


_HELD: dict[Hold | None, str] = {
    Hold.SLOTS: ", as every slot was taken",
    Hold.MEMORY: ", as there was no KV memory for it",
    Hold.ORDER: ", as the batch had begun and nobody joins it",
}


def _about(name: str, class_name: str, prompt_tokens: int | None, max_tokens: int | None) -> str:
    about = f"{name}: class {class_name}" if class_name else f"{name}: of no class yet"
    if prompt_tokens is not None:
        about += f", prompt of {counted(prompt_tokens, 'token')}"
    if max_tokens is not None:
        about += f", output of at most {counted(max_tokens, 'token')}"
    return about


def _full(bounds: QueueBounds | None) -> str:
    return (
        "the queue was full" if bounds is None else f"the queue, of {counted(bounds.max_requests, 'place')}, was full"
    )


def _answered(answer: Answered, num_choices: int) -> str:
    tokens = counted(answer.output_tokens, "token")
    if num_choices > 1:
        tokens += f" in its {num_choices} choices"
    took = f"{(answer.now_us - answer.received_us) / 1_000_000:.3f} s"
    if answer.outcome == COMPLETED:
        text = f"the client had its whole answer, {tokens}, {took} after it asked"
        if answer.first_token_us is not None:
            text += f" (the first after {(answer.first_token_us - answer.received_us) / 1_000_000:.3f} s)"
        return text
    if answer.outcome == CANCELLED:
        return f"the client had left, {took} after it asked; {tokens} had come for it"
    if answer.status >= FIRST_ERROR:
        return f"the client was told: {answer.outcome} (HTTP {answer.status})"
    return f"the answer ended with an error after {tokens}: {answer.outcome}"
