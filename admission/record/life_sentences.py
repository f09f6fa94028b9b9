"""One sequence's life at one driver, in sentences."""

from __future__ import annotations

from admission.events import EndReason, PauseReason
from admission.record.names import Names
from admission.record.sentences import Kind, Sentence, counted
from admission.record.story import Begin, Claim, Gap, Hold, Life, Part, Pause, Run, Story


def life_sentences(life: Life, story: Story, names: Names, *, place: str) -> list[Sentence]:
    """Times are those that all logs share. ``place`` names the driver after a slot, where there are several."""
    return _LifeTeller(life, story, names, place).sentences()


class _LifeTeller:
    def __init__(self, life: Life, story: Story, names: Names, place: str) -> None:
        self._life = life
        self._story = story
        self._names = names
        self._place = place

    def sentences(self) -> list[Sentence]:
        life = self._life
        is_new = life.found_us is None
        told = [
            *[self._claim(claim) for claim in life.claims if claim.held_by is not None],
            *[self._begin(begin, is_first=is_new and number == 0) for number, begin in enumerate(life.begins)],
            *[self._run(run) for run in life.runs],
            *[self._pause(pause) for pause in life.pauses],
            *[self._gap(gap) for gap in life.missed],
        ]
        if life.found_us is not None:
            told.append(self._plain(life.found_us, Kind.OFFERED, "had come to a driver before its log tells of it"))
        if life.cancelled_us is not None:
            told.append(self._plain(life.cancelled_us, Kind.CANCELLED, "was cancelled: nobody waits for it any more"))
        return told + self._end()

    def _end(self) -> list[Sentence]:
        life, story = self._life, self._story
        if life.end is not None:
            return [self._sentence(life.end.at_us, Kind.ENDED, _ENDS[life.end.reason], life.end.iteration)]
        if life.is_paused:
            return []
        if story.stopped_us is None:
            return [self._plain(story.until_us, Kind.GAP, "here its driver's log ends: what came then is not in it")]
        return [
            self._plain(story.stopped_us, Kind.ENDED, "its driver stopped, or lost the worker, before it had ended")
        ]

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
        text = f"{'started' if is_first else 'resumed'} in slot {begin.slot}{self._place}"
        if begin.swapped:
            text += f", with the KV of {counted(begin.swapped, 'token')} back from host memory"
        elif begin.kept and is_first:
            text += f", with {counted(begin.kept, 'token')} of its prompt found in memory"
        elif begin.kept:
            text += f", with {self._kept(begin.kept)} kept"
        elif not is_first:
            text += ", with nothing kept"
        return self._sentence(begin.beat.planned_us, Kind.STARTED, text, begin.beat.iteration)

    def _kept(self, tokens: int) -> str:
        prompt = min(tokens, self._life.spec.prompt_tokens)
        text = counted(prompt, "prompt token")
        return text if prompt == tokens else f"{text} and {tokens - prompt} of its output"

    def _run(self, run: Run) -> Sentence:
        if run.part is Part.DECODE:
            text = f"decoded {counted(run.tokens, 'token')}"
        else:
            chunks = 1 + run.last.number - run.first.number  # it is in every iteration of the run
            text = f"prefill of {counted(run.tokens, 'token')}" + (f" in {chunks} chunks" if chunks > 1 else "")
            text += ", and a token of output" if run.emits else ""
        return self._sentence(run.first.planned_us, Kind(run.part.value), text, run.first.iteration, run.last.iteration)

    def _pause(self, pause: Pause) -> Sentence:
        if pause.by is not None:
            text = f"{self._names.with_class(pause.by)} preempted it, {_WANTING[pause.reason]}; it waits"
        elif pause.reason is PauseReason.KV:
            text = "was preempted, as there was no KV memory left; it waits"
        else:
            text = "was preempted, as there are fewer slots now; it waits"
        return self._sentence(pause.at_us, Kind.PAUSED, text, pause.iteration)

    def _gap(self, gap: Gap) -> Sentence:
        lasted = (gap.to_us - gap.from_us) / 1_000_000
        return self._plain(gap.from_us, Kind.GAP, f"what its driver did now was not recorded, for {lasted:.3f} s")

    def _plain(self, at_us: int, kind: Kind, text: str) -> Sentence:
        return Sentence(at_us=at_us + self._story.offset_us, kind=kind, text=text, driver_id=self._story.driver_id)

    def _sentence(self, at_us: int, kind: Kind, text: str, first: int, last: int | None = None) -> Sentence:
        return Sentence(
            at_us=at_us + self._story.offset_us,
            kind=kind,
            text=text,
            driver_id=self._story.driver_id,
            first=first,
            last=first if last is None else last,
        )


_WANTING = {
    PauseReason.SLOT: "as every slot was taken",
    PauseReason.KV: "as there was no KV memory for both",
}

_ENDS = {
    EndReason.STOP: "finished: its last token was a stop",
    EndReason.LENGTH: "finished: it had all the output that it may have",
    EndReason.FAILED: "ended: the worker could not go on with it",
    EndReason.CANCELLED: "ended: it was cancelled",
    EndReason.DEADLINE: "ended: its deadline had passed",
    EndReason.WORKER_LOST: "ended here: the worker was lost",
}
