"""The summary of one simulation, for people: at most 100 columns, nothing that did not happen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from admission.machines import Machine
from admission.scenario import Policy
from admission.summary import ClassSummary, Latency, Spread, Summary
from admission.trace_csv import Arrival
from gateway.simulate_cost import cost_words
from gateway.simulate_settings import shown

COLUMNS = 100
_INDENT = 10
_SPREAD = ("p50", "p90", "p99", "max")


def heading(name: str, arrivals: Sequence[Arrival]) -> str:
    """One line about a trace."""
    prompt = sum(arrival.prompt_tokens for arrival in arrivals)
    output = sum(arrival.output_tokens for arrival in arrivals)
    last_us = arrivals[-1].arrival_us
    when = f"within {seconds(last_us)} s" if last_us else "all at once"
    return f"{name}: {len(arrivals):,} requests {when}, {prompt:,} prompt and {output:,} output tokens"


def in_force(presets: Sequence[str], machine: Machine, values: Mapping[str, Any]) -> str:
    """What a run goes by: presets, cost and every limit, as the options take them."""
    limits = [f"{name}={shown(name, value)}" for name, value in values.items()]
    return "\n".join(
        [
            *_wrapped("preset", ", ".join(presets).split()),
            *_wrapped("cost", [f"{machine.name}:", *machine.origin.split()]),
            *_wrapped("", cost_words(machine.cost)),
            *_wrapped("limits", limits),
        ]
    )


def policy_values(policy: Policy) -> dict[str, Any]:
    """The limits of a scenario, by their names."""
    return {name: getattr(policy, name) for name in policy.__slots__}


def report(summary: Summary, *, token_budget: int | None, kv_blocks: int | None, max_slots: int) -> str:
    """The whole summary of one run."""
    lines = [*_latencies(summary.classes), ""]
    if summary.num_iterations:
        lines += [*_per_iteration(summary), ""]
    facts = _facts(summary, token_budget=token_budget, kv_blocks=kv_blocks, max_slots=max_slots)
    lines += [f"{name:<14}{text}" for name, text in facts]
    return "\n".join(lines)


def seconds(us: int) -> str:
    return f"{us / 1_000_000:,.3f}"


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def ratio(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def _wrapped(label: str, words: Sequence[str]) -> Iterator[str]:
    line = f"{label:<{_INDENT}}"
    start = True
    for word in words:
        if not start and len(line) + 1 + len(word) > COLUMNS:
            yield line
            line, start = " " * _INDENT, True
        line += word if start else f" {word}"
        start = False
    yield line


def _latencies(classes: Sequence[ClassSummary]) -> Iterator[str]:
    if any(entry.first_token.us for entry in classes):
        yield from _latency_header()
    for entry in classes:
        rejected = f", {entry.num_rejected:,} rejected" if entry.num_rejected else ""
        yield f"{entry.name}: {entry.num_completed:,} of {entry.num_requests:,} requests completed{rejected}"
        yield from _latency("first token", entry.first_token)
        yield from _latency("between tokens", entry.gap)
        yield from _latency("whole answer", entry.whole)


def _latency_header() -> Iterator[str]:
    yield f"{'':<20}{'iterations':>32}{'seconds':>46}".rstrip()
    yield f"{'':<20}" + "".join(f"{name:>8}" for name in _SPREAD) + "  " + "".join(f"{name:>11}" for name in _SPREAD)


def _latency(name: str, latency: Latency) -> Iterator[str]:
    if latency.iterations is None or latency.us is None:
        return
    counts = "".join(f"{value:>8,}" for value in latency.iterations)
    yield f"  {name:<18}{counts}  " + "".join(f"{seconds(value):>11}" for value in latency.us)


def _per_iteration(summary: Summary) -> Iterator[str]:
    yield f"{'per iteration':<20}" + "".join(f"{name:>8}" for name in _SPREAD) + f"{'in all':>13}"
    yield from _work("decode tokens", summary.decode, summary.decode_tokens)
    yield from _work("prefill tokens", summary.prefill, summary.prefill_tokens)


def _work(name: str, spread: Spread | None, total: int) -> Iterator[str]:
    if spread is not None:
        yield f"  {name:<18}" + "".join(f"{value:>8,}" for value in spread) + f"{total:>13,}"


def _facts(
    summary: Summary, *, token_budget: int | None, kv_blocks: int | None, max_slots: int
) -> Iterator[tuple[str, str]]:
    yield "iterations", _iterations(summary)
    yield "queue", f"at most {summary.peak_waiting:,} waiting"
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in summary.rejections.items())
    rejected = f"{summary.num_rejected:,} ({percent(summary.num_rejected / summary.num_requests)})"
    yield "rejected", f"{rejected}: {reasons}" if reasons else "0"
    yield "preempted", _preempted(summary)
    if summary.slot_occupancy is not None:
        yield "slots", f"{percent(summary.slot_occupancy)} in use, at most {summary.peak_slots:,} of {max_slots:,}"
        wasted = f"{summary.wasted_rounds:,} wasted ({percent(summary.wasted_rounds / summary.slot_rounds)})"
        yield "slot-rounds", f"{summary.slot_rounds:,}: {summary.useful_rounds:,} useful, {wasted}"
    if kv_blocks is None:
        yield "KV memory", "not limited"
    elif summary.kv_occupancy is not None:
        peak = f"at most {summary.peak_kv_blocks:,} of {kv_blocks:,} blocks"
        yield "KV memory", f"{percent(summary.kv_occupancy)} in use, {peak}"
    if summary.num_iterations:
        yield "token budget", _budget(summary, token_budget)
        yield "held back", _held_back(summary)


def _iterations(summary: Summary) -> str:
    text = f"{summary.num_iterations:,} in {seconds(summary.busy_us)} s; the last ends at {seconds(summary.end_us)} s"
    if summary.span_us:
        text += f"; {summary.output_tokens * 1_000_000 / summary.span_us:,.1f} output tokens/s"
    return text


def _preempted(summary: Summary) -> str:
    number = summary.slot_preemptions + summary.kv_preemptions
    if not number:
        return "0"
    kinds = f"{summary.slot_preemptions:,} for a slot, {summary.kv_preemptions:,} for KV memory"
    return f"{number:,}: {kinds}; {ratio(number, summary.num_completed)} per completed request"


def _budget(summary: Summary, token_budget: int | None) -> str:
    if summary.unused_budget is None or token_budget is None:
        return "none: prompts are computed whole"
    offered = summary.num_iterations * token_budget
    return f"{summary.unused_budget:,} of {offered:,} tokens unused ({percent(summary.unused_budget / offered)})"


def _held_back(summary: Summary) -> str:
    if not summary.num_held_back:
        return "never: no sequence ready to decode waited while prefill took budget"
    return f"{summary.num_held_back:,} times a sequence ready to decode waited while prefill took budget"
