"""How far a prediction of `sluicegate replay` is from the truth. Prints figures, asserts nothing about time.

Run: ``python -m tests.bench.what_if [LOAD ...]``, some two minutes for each load.

The same offered load (Poisson arrivals of a seed, mixed lengths, two classes) is served live under one preset and then
under others, by two gateways over two scripted workers, at several shares of what the workers can do with every slot
busy. The logs of the first are replayed under the same preset, which shows the error of the simulation alone, and under
the others; each beside what did happen, measured in the logs of that run.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from gateway.replay_command import replay_main
from tests.system.what_if import capacity_per_s, record_load

SECONDS = 30.0
LOADS = (0.50, 0.70, 0.85)
RECORDED, OTHERS = "sluicegate", ("orca", "static")
OBJECTIVE = "ttft=500ms,gap=100ms"

Figures = Mapping[str, Any]


def main() -> None:
    loads = [float(word) for word in sys.argv[1:]] or LOADS
    print(f"recorded under {RECORDED}; capacity {capacity_per_s():.1f} requests per second; good: {OBJECTIVE}")
    print(f"{'load':>5} {'preset':>11} {'class':>12} {'':8}{'TTFT p50 ms':>12} {'p90':>7} {'gap p50':>8} {'good':>6}")
    for load in loads:
        with tempfile.TemporaryDirectory() as folder:
            serve_and_predict(Path(folder), load)


def serve_and_predict(folder: Path, load: float) -> None:
    logs = {}
    for preset in (RECORDED, *OTHERS):
        home = folder / preset
        home.mkdir()
        asyncio.run(record_load(home, preset=preset, load=load, seconds=SECONDS, seed=1))
        logs[preset] = home / "logs"
    for preset in (RECORDED, *OTHERS):
        happened = replayed(logs[preset], preset)["happened"]
        predicted = replayed(logs[RECORDED], preset)["replayed"]
        for truth, guess in zip(happened, predicted, strict=True):
            assert truth["class"] == guess["class"]
            print_beside(load, preset, truth, guess)


def replayed(logs: Path, preset: str) -> Figures:
    """What `sluicegate replay` says."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = replay_main([str(logs), "--preset", preset, "--objective", OBJECTIVE, "--json"])
    assert code == 0, out.getvalue()
    answer: Figures = json.loads(out.getvalue())
    return answer


def print_beside(load: float, preset: str, truth: Figures, guess: Figures) -> None:
    """Three lines: what happened, what was predicted, and the error."""
    was, would = numbers(truth), numbers(guess)
    errors = [
        f"{100 * (after / before - 1):+.1f}%" if before else "-" for before, after in zip(was, would, strict=True)
    ]
    label = f"{100 * load:>4.0f}% {preset:>11} {truth['class']:>12}"
    for name, cells in (("happened", _shown(was)), ("replayed", _shown(would)), ("error", errors)):
        print(f"{label} {name:<8}{cells[0]:>11} {cells[1]:>7} {cells[2]:>8} {cells[3]:>6}", flush=True)
        label = " " * len(label)


def numbers(row: Figures) -> tuple[float, float, float, int]:
    first, gap = row["first_token_us"], row["gap_us"]
    return first["p50"] / 1000, first["p90"] / 1000, gap["p50"] / 1000, row["good"]


def _shown(values: tuple[float, float, float, int]) -> list[str]:
    return [f"{values[0]:.1f}", f"{values[1]:.1f}", f"{values[2]:.1f}", str(values[3])]


if __name__ == "__main__":
    main()
