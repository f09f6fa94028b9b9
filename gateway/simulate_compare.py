"""One table for several presets on the same input, at most 100 columns wide: metrics down, presets across."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from admission.summary import Latency, Summary
from gateway.simulate_report import COLUMNS, percent, ratio, seconds

_LABEL = 28
_COLUMN = 14
_LEGEND = "-: nothing to tell: no token budget (prompts are computed whole), memory not limited, or nothing ran"
_ACROSS = (COLUMNS - _LABEL) // _COLUMN


def comparison(summaries: Mapping[str, Summary]) -> str:
    """The table; more presets than fit side by side continue below."""
    names = list(summaries)
    parts = [names[start : start + _ACROSS] for start in range(0, len(names), _ACROSS)]
    tables = ["\n".join(_part({name: summaries[name] for name in part}, summaries)) for part in parts]
    return "\n\n".join([*tables, _LEGEND])


def _part(part: Mapping[str, Summary], everything: Mapping[str, Summary]) -> Iterator[str]:
    yield from _header(part)
    columns = [dict(_metrics(summary)) for summary in part.values()]
    rows = dict.fromkeys(label for summary in everything.values() for label, _ in _metrics(summary))
    for label in rows:
        cells = [column.get(label, "-") for column in columns]
        yield f"{label:<{_LABEL}}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells)


def _header(part: Mapping[str, Summary]) -> Iterator[str]:
    """The names, broken at hyphens where they are too long, standing on the last line."""
    broken = [list(_broken(name)) for name in part]
    height = max(map(len, broken))
    for line in range(height):
        cells = [(["", *[""] * (height - len(lines)), *lines])[line + 1] for lines in broken]
        yield (" " * _LABEL + "".join(f"{cell:>{_COLUMN}}" for cell in cells)).rstrip()


def _broken(name: str) -> Iterator[str]:
    line = ""
    for piece in name.replace("-", "- ").split():
        if line and len(line) + len(piece) > _COLUMN - 2:
            yield line
            line = ""
        line += piece
    yield line


def _metrics(summary: Summary) -> Iterator[tuple[str, str]]:
    preempted = summary.slot_preemptions + summary.kv_preemptions
    yield "requests completed", f"{summary.num_completed:,}"
    yield "requests rejected", f"{summary.num_rejected:,}"
    for reason, number in summary.rejections.items():
        yield f"  {reason}", f"{number:,}"
    yield "iterations", f"{summary.num_iterations:,}"
    yield "ends after, s", seconds(summary.end_us)
    yield "output tokens/s", f"{summary.output_tokens * 1_000_000 / max(1, summary.span_us):,.1f}"
    yield "slot-rounds", f"{summary.slot_rounds:,}"
    yield "  useful", f"{summary.useful_rounds:,}"
    yield "  wasted", f"{summary.wasted_rounds:,}"
    yield "  wasted share", percent(summary.wasted_rounds / summary.slot_rounds) if summary.slot_rounds else "-"
    yield "slots in use", "-" if summary.slot_occupancy is None else percent(summary.slot_occupancy)
    yield "KV memory in use", "-" if summary.kv_occupancy is None else percent(summary.kv_occupancy)
    yield "unused token budget", "-" if summary.unused_budget is None else f"{summary.unused_budget:,}"
    yield "peak queue", f"{summary.peak_waiting:,}"
    yield "preempted for a slot", f"{summary.slot_preemptions:,}"
    yield "preempted for KV memory", f"{summary.kv_preemptions:,}"
    yield "  per completed request", ratio(preempted, summary.num_completed)
    yield "ready to decode, held back", f"{summary.num_held_back:,}"
    for entry in summary.classes:
        for name, latency in (("first token", entry.first_token), ("gap", entry.gap), ("whole", entry.whole)):
            yield from _latency(f"{entry.name}: {name}", latency)


def _latency(label: str, latency: Latency) -> Iterator[tuple[str, str]]:
    if latency.us is None:
        return
    yield f"{label} p50, s", seconds(latency.us.p50)
    yield f"{label} p99, s", seconds(latency.us.p99)
    if label.endswith("gap"):
        yield f"{label} max, s", seconds(latency.us.greatest)
