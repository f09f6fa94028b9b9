"""Equal events give equal plans, byte for byte, whatever PYTHONHASHSEED is: replay rests on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

HISTORY = """
import random
from admission.limits import Limits
from admission.presets import PRESETS
from tests.admission.drive import Harness, make_spec

for name, preset in PRESETS.items():
    draw = random.Random(name)
    limits = Limits(max_slots=6, token_budget=24, prefill_chunk=5, kv_blocks=24, block_size=4, max_in_flight=2)
    run = Harness(limits, preset)
    for number in range(120):
        rank = draw.randrange(3)
        spec = make_spec(
            f"s{number}", prompt=draw.randint(1, 14), output=draw.randint(1, 20), expected=draw.randint(1, 8),
            rank=rank, score=number - 10 * (2 - rank), family=draw.choice([None, "a", "b"]),
        )
        weakest = run.scheduler.want().weakest
        if weakest is not None and spec.rank < weakest.rank and draw.random() < 0.3:
            run.exchange(spec, weakest.sequence_id)
        else:
            run.claim(spec)
        if draw.random() < 0.1:
            run.cancel(f"s{draw.randint(0, number)}")
        for _ in range(draw.randint(0, 4)):
            if run.in_flight:
                run.report()
        if run.paused and draw.random() < 0.5:
            run.resume(draw.choice(run.paused))
    run.run_until_idle()
    print(name, [step for _, _, step in run.log])
"""


def _plans(hash_seed: str) -> bytes:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", HISTORY], capture_output=True, timeout=120, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_two_hash_seeds_give_the_same_plans_under_every_preset() -> None:
    """An order that depends on hashes or addresses would make a recorded run impossible to replay."""
    first, second = _plans("1"), _plans("4242")
    assert len(first) > 100_000
    assert first.count(b"PauseReason.KV") > 10, "the histories preempt"
    assert first == second
