"""Passes of one shape: another way through the same layers. What they are for is tested in test_invariance.py."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.workers.engine_support import Options, reference_output, ties_between
from tests.workers.random_plans import RandomPlans
from tests.workers.test_engine_plans import REQUESTS
from tests.workers.tiny_models import CONFIGS, save_tiny_model
from workers.fixed_shapes import PIECE, cut
from workers.loading import load_engine
from workers.slots import SlotState, Work
from workers.wire import Sampling

pytestmark = pytest.mark.torch

FEW = ("llama", "mistral with a window of 8", "gemma2 with soft caps and alternating windows")


@pytest.mark.parametrize("name", FEW)
def test_in_float32_it_is_still_the_model(name: str, tmp_path: Path) -> None:
    """Transformers' own answers come out."""
    folder = save_tiny_model(tmp_path, CONFIGS[name])
    options = Options(model=str(folder), max_slots=5, kv_blocks=40, swap_mib=1, threads=1, deterministic=True)
    lives = RandomPlans(load_engine(options, lambda _: None), Random(5)).run(REQUESTS)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for request, life in zip(REQUESTS, lives, strict=True):
        ties_between(model, request, life.output, reference_output(model, request))


def test_work_is_cut_into_full_pieces_in_order() -> None:
    """Only the last is filled up, and what emits is what emitted before."""
    works = [work(0, 5, 1), work(1, 0, 50), work(2, 9, 14)]
    pieces = cut(works)
    assert [sum(part.length for part in piece) for piece in pieces] == [PIECE, PIECE, 1]
    flat = [(part.work.state.slot, part.start, part.length, part.row, part.emits) for piece in pieces for part in piece]
    assert flat == [
        (0, 5, 1, 0, True),
        (1, 0, 31, 1, False),
        (1, 31, 19, 0, True),
        (2, 9, 13, 19, False),
        (2, 22, 1, 0, True),
    ]


def work(slot: int, start: int, length: int) -> Work:
    state = SlotState(
        slot=slot,
        sequence_id=str(slot),
        tokens=[3] * (start + length),
        prompt_length=start + length,
        emitted=0,
        computed=start + length,
        max_tokens=1,
        sampling=Sampling(),
        blocks=[],
    )
    return Work(state=state, start=start, length=length, emits=True)
