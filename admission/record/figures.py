"""The figures of some requests, class by class: latencies, what was refused, preempted, and served as it should be.

*First token* and *whole* count from the arrival; a *gap* is the time between two tokens of one request, and those of
all requests of a class are taken together. A request is *good* when its answer is whole and keeps every objective.
Percentiles are nearest rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from admission.histogram import Histogram
from admission.record.fates import COMPLETED, Fate, Fates
from admission.summary import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Most microseconds to the first token, between two tokens in the mean of a request, and to its end; None: any."""

    first_token_us: int | None = None
    gap_us: int | None = None
    whole_us: int | None = None

    def are_kept(self, fate: Fate) -> bool:
        if fate.outcome != COMPLETED or not fate.tokens_us:
            return False
        first_us, last_us, gaps = fate.tokens_us[0], fate.tokens_us[-1], len(fate.tokens_us) - 1
        return (
            _within(first_us - fate.arrival_us, self.first_token_us)
            and _within((last_us - first_us) / max(1, gaps), self.gap_us)
            and _within(last_us - fate.arrival_us, self.whole_us)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigures:
    """One class; latencies in microseconds, None where there are none. ``outcomes`` has all but the completed."""

    name: str
    num_requests: int
    num_completed: int
    num_good: int
    outcomes: Mapping[str, int]
    first_token: Spread | None
    gap: Spread | None
    whole: Spread | None
    slot_preemptions: int
    kv_preemptions: int


def figures(fates: Fates, objectives: Objectives) -> tuple[ClassFigures, ...]:
    """Of each class, the best first. What never came to the queue counts among the outcomes alone."""
    by_class: dict[tuple[int, str], list[Fate]] = {}
    for fate in fates.offered:
        by_class.setdefault((fate.offer.rank, fate.offer.class_name), []).append(fate)
    refused: dict[str, Counter[str]] = {}
    for answer in fates.refused:
        refused.setdefault(answer.class_name, Counter())[answer.outcome] += 1
    known = {name for _, name in by_class}
    rows = [
        _figures(name, members, refused.get(name, {}), objectives) for (_, name), members in sorted(by_class.items())
    ]
    others = [_figures(name, (), told, objectives) for name, told in sorted(refused.items()) if name not in known]
    return (*rows, *others)


def _figures(name: str, members: Sequence[Fate], refused: Mapping[str, int], objectives: Objectives) -> ClassFigures:
    outcomes = Counter([fate.outcome for fate in members if fate.outcome != COMPLETED])
    outcomes.update(refused)
    completed = [fate for fate in members if fate.outcome == COMPLETED]
    return ClassFigures(
        name=name,
        num_requests=len(members) + sum(refused.values()),
        num_completed=len(completed),
        num_good=sum([objectives.are_kept(fate) for fate in members]),
        outcomes=dict(sorted(outcomes.items())),
        first_token=_spread([fate.tokens_us[0] - fate.arrival_us for fate in members if fate.tokens_us]),
        gap=_spread([after - before for fate in members for before, after in pairwise(fate.tokens_us)]),
        whole=_spread([fate.tokens_us[-1] - fate.arrival_us for fate in completed if fate.tokens_us]),
        slot_preemptions=sum([fate.slot_preemptions for fate in members]),
        kv_preemptions=sum([fate.kv_preemptions for fate in members]),
    )


def _spread(values: Iterable[int]) -> Spread | None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return Spread.of(histogram)


def _within(value_us: float, most_us: int | None) -> bool:
    return most_us is None or value_us <= most_us
