"""What the commands that read logs begin with: the stories of all drivers, the records of all doors, one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from admission.record.clocks import Clocks
from admission.record.entries import LogEntry, TimeUnit
from admission.record.explain import Explainer
from admission.record.sentences import Sentence
from admission.record.skew import skew
from admission.record.snapshot import SnapshotError
from admission.record.story import Story
from admission.record.tell import NoStory, tell
from gateway.log_files import BadLog, Segment, read_logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Stories:
    """All that the given logs hold. ``remarks``: what is missing from them."""

    drivers: tuple[Story, ...]
    doors: tuple[tuple[LogEntry, ...], ...]
    clocks: Clocks
    remarks: tuple[str, ...]

    def explainer(self) -> Explainer:
        return Explainer(self.doors, self.drivers, self.clocks)


def read_stories(paths: Sequence[Path]) -> Stories:
    """Read logs and tell what happened in them. Raises ``BadLog``."""
    logs = read_logs(paths)
    drivers = [(segments[0].path, entries_of(segments)) for segments in logs.drivers]
    doors = tuple([entries_of(segments) for segments in logs.doors])
    clocks = Clocks([*[entries for _, entries in drivers], *doors])
    stories = []
    for path, entries in drivers:
        try:
            stories.append(tell(entries, offset_us=clocks.offset_us(entries)))
        except (NoStory, SnapshotError) as error:
            raise BadLog(f"{path}: {error}") from None
    remarks = (*logs.remarks(), *clock_remarks(doors, clocks))
    return Stories(drivers=tuple(stories), doors=doors, clocks=clocks, remarks=remarks)


def clock_remarks(doors: Sequence[Sequence[LogEntry]], clocks: Clocks) -> list[str]:
    """Whether times of different gateways may be held against each other."""
    found = skew(doors, clocks)
    if found is None:
        return []
    by = f"{found.least_us / 1_000_000:.1f} s or more"
    return [f"the clock of {found.ahead} is ahead of that of {found.behind} by {by}: their times do not go together"]


def entries_of(segments: Sequence[Segment]) -> tuple[LogEntry, ...]:
    """The records of a log, whatever its segments."""
    return tuple([entry for segment in segments for entry in segment.entries])


def when(sentence: Sentence, unit: TimeUnit) -> str:
    """The time of a sentence: iterations as they are, microseconds as seconds since the logs began."""
    if sentence.first is None:
        iterations = f"iteration {sentence.at_us}" if unit is TimeUnit.ITERATIONS else ""
    elif sentence.first == sentence.last:
        iterations = f"iteration {sentence.first}"
    else:
        iterations = f"iterations {sentence.first} to {sentence.last}"
    if unit is TimeUnit.ITERATIONS:
        return iterations
    return f"{sentence.at_us / 1_000_000:.3f} s  {iterations}".rstrip()
