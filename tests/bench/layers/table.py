"""One table of a burst from what its worker and its gateway wrote down.

On the worker's engine thread the layers share an iteration, whatever else runs beside it. The second part is about the
processors: what each process computes in the time of an iteration takes cores from the step's own threads where there
are too few, so it is there that a gateway costs, even when the worker never waits for it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from tests.bench.layers.marks import Kind, Mark, between


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The burst as its clients saw it: from when until when, when each event came, and processor time by process."""

    began_s: float
    ended_s: float
    arrivals_s: Sequence[float]
    cpu_s: Mapping[str, float]


def table(worker: Sequence[Mark], gateway: Sequence[Mark], seen: Seen) -> Iterator[str]:
    """The lines. Those of the engine's thread begin behind the burst's first iteration."""
    worker = [mark for mark in _within(worker, seen) if mark.decodes or mark.prompt_tokens]
    gateway = _within(gateway, seen)
    steps = list(pairwise(worker))
    most = max(mark.decodes for mark in worker)
    full = [(first, last) for first, last in steps if last.decodes == most and not last.prompt_tokens]
    rows = fmean(last.decodes + last.prompt_tokens for _, last in steps)
    yield f"{len(steps)} iterations of {rows:.1f} tokens; {len(full)} decode {most} sequences and compute no prompt"
    yield f"{'on the worker, ms of an iteration':44} {'all':>7} {'share':>6} {f'{most} decode':>10}"
    yield from _engine_lines(mean_ms(steps, "engine"), mean_ms(full, "engine"))
    yield f"{'on the processors, ms in the time of one':44} {'all':>7} {'share':>6}"
    yield from _lines(processors_ms(worker, gateway, seen), f"{os.cpu_count()} processors")
    yield from _on_their_way(worker, gateway, seen)


def mean_ms(steps: Sequence[tuple[Mark, Mark]], stopwatch: str) -> dict[str, float]:
    """By layer; they add up to the mean time from one mark to the next."""
    spent = [between(first, last, stopwatch) for first, last in steps]
    layers = dict.fromkeys(layer for one in spent for layer in one)
    return {layer: 1000 * fmean(one.get(layer, 0.0) for one in spent) for layer in layers}


def processors_ms(worker: Sequence[Mark], gateway: Sequence[Mark], seen: Seen) -> dict[str, float]:
    """Of one iteration, all processors together. What nobody here used is the last."""
    iterations = len(worker)
    spent = _of_worker(worker) | {
        layer: 1000 * seconds / iterations for layer, seconds in (_of_gateway(gateway) | dict(seen.cpu_s)).items()
    }
    whole = 1000 * (seen.ended_s - seen.began_s) * (os.cpu_count() or 1) / iterations
    return spent | {"idle, or others'": whole - sum(spent.values())}


def _within(marks: Sequence[Mark], seen: Seen) -> list[Mark]:
    return [mark for mark in marks if seen.began_s <= mark.at_s <= seen.ended_s]


def _of_worker(marks: Sequence[Mark]) -> dict[str, float]:
    """Milliseconds of an iteration."""
    first, last = marks[0], marks[-1]
    links = between(first, last, "links")
    spent = {"worker: the step, all its threads": last.cpu_s - first.cpu_s - sum(links.values())}
    spent |= {f"worker: {layer}": seconds for layer, seconds in links.items()}
    return {layer: 1000 * seconds / (len(marks) - 1) for layer, seconds in spent.items()}


def _of_gateway(marks: Sequence[Mark]) -> dict[str, float]:
    """Seconds of the burst."""
    first, last = marks[0], marks[-1]
    loop = between(first, last, "loop")
    layers = {f"gateway: {layer}": loop[layer] for layer in sorted(loop, key=lambda layer: -loop[layer])}
    others_s = last.cpu_s - first.cpu_s - sum(loop.values())
    return layers | {"gateway: other threads": max(0.0, others_s)}  # below by the moment between two readings


def _engine_lines(spent: Mapping[str, float], of_full: Mapping[str, float]) -> Iterator[str]:
    whole = sum(spent.values())
    for layer, ms in sorted(spent.items(), key=lambda item: -item[1]):
        yield f"  {layer:42} {ms:7.2f} {ms / whole:6.1%} {of_full.get(layer, 0.0):10.2f}"
    yield f"  {'an iteration':42} {whole:7.2f} {'':6} {sum(of_full.values()):10.2f}"


def _lines(spent: Mapping[str, float], name: str) -> Iterator[str]:
    whole = sum(spent.values())
    for layer, ms in spent.items():
        yield f"  {layer:42} {ms:7.2f} {ms / whole:6.1%}"
    yield f"  {name:42} {whole:7.2f}"


def _on_their_way(worker: Sequence[Mark], gateway: Sequence[Mark], seen: Seen) -> Iterator[str]:
    """Each event belongs to the last report before it: its way takes a small part of an iteration."""
    made_s = [mark.at_s for mark in worker]
    to_gateway = _behind(made_s, [mark.at_s for mark in gateway if mark.kind is Kind.REPORT])
    to_client = _behind(made_s, seen.arrivals_s)
    yield (
        f"from a report's making: {median(to_gateway):.1f} ms in the median until the gateway has it,"
        f" {median(to_client):.1f} until a client has its token, {to_client[int(0.99 * len(to_client))]:.1f} at p99"
    )


def _behind(causes_s: Sequence[float], effects_s: Sequence[float]) -> list[float]:
    """Milliseconds of each effect behind the last cause before it, in ascending order."""
    found = ((at_s, bisect_right(causes_s, at_s)) for at_s in effects_s)
    return sorted(1000 * (at_s - causes_s[index - 1]) for at_s, index in found if index)
