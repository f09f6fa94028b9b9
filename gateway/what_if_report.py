"""What happened beside what would have happened, class by class: one table, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from admission.record.figures import ClassFigures, Objectives
from admission.summary import Spread
from gateway.simulate_report import seconds

_LABEL = 44
_COLUMN = 16
_NOTHING = "-"


def table(happened: Sequence[ClassFigures], replayed: Sequence[ClassFigures], objectives: Objectives) -> str:
    """Metrics down; what happened, what the replay gives, and the difference across."""
    lines = [f"{'':<{_LABEL}}{'happened':>{_COLUMN}}{'replayed':>{_COLUMN}}{'difference':>{_COLUMN}}"]
    beside = {each.name: each for each in replayed}
    for each in happened:
        lines.append(f"{each.name}: {each.num_requests:,} requests")
        lines += _rows(each, beside[each.name], objectives)
    return "\n".join(lines)


def _rows(was: ClassFigures, would: ClassFigures, objectives: Objectives) -> Iterator[str]:
    yield _counts("completed", was.num_completed, would.num_completed)
    yield _counts(f"good: {_words(objectives)}", was.num_good, would.num_good)
    for outcome in sorted({*was.outcomes, *would.outcomes}):
        yield _counts(outcome, was.outcomes.get(outcome, 0), would.outcomes.get(outcome, 0))
    if any((was.slot_preemptions, would.slot_preemptions)):
        yield _counts("preempted for a slot", was.slot_preemptions, would.slot_preemptions)
    if any((was.kv_preemptions, would.kv_preemptions)):
        yield _counts("preempted for KV memory", was.kv_preemptions, would.kv_preemptions)
    yield from _spreads("first token", was.first_token, would.first_token)
    yield from _spreads("between tokens", was.gap, would.gap)
    yield from _spreads("whole answer", was.whole, would.whole)


def _words(objectives: Objectives) -> str:
    named = (("ttft", objectives.first_token_us), ("gap", objectives.gap_us), ("whole", objectives.whole_us))
    return ", ".join([f"{name} {us / 1000:g} ms" for name, us in named if us is not None])


def _counts(label: str, was: int, would: int) -> str:
    return _line(label, f"{was:,}", f"{would:,}", f"{would - was:+,}" if would != was else "=")


def _spreads(label: str, was: Spread | None, would: Spread | None) -> Iterator[str]:
    if was is None and would is None:
        return
    for percentile in ("p50", "p90", "p99"):
        before = None if was is None else getattr(was, percentile)
        after = None if would is None else getattr(would, percentile)
        yield _line(f"{label} {percentile}, s", _shown(before), _shown(after), _change(before, after))


def _shown(us: int | None) -> str:
    return _NOTHING if us is None else seconds(us)


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None or not before:
        return _NOTHING
    return "=" if before == after else f"{100 * (after / before - 1):+.1f} %"


def _line(label: str, *cells: str) -> str:
    return f"  {label:<{_LABEL - 2}}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells)
