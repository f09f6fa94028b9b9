"""What --deterministic promises in bfloat16: the very same numbers, whatever else runs and however the work is cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from admission.limits import Limits
from tests.workers.engine_support import NOTHING, Options, Request, reference_output, ties_between
from tests.workers.random_plans import RandomPlans
from tests.workers.scheduled import ScheduledRun
from tests.workers.test_engine_plans import REQUESTS, RICH, chosen_requests
from tests.workers.tiny_models import CONFIGS, save_tiny_model
from workers.engine import Engine
from workers.errors import LoadError
from workers.fixed_shapes import PIECE, cut
from workers.invariance import check_invariance
from workers.loading import load_engine
from workers.slots import SlotState, Work
from workers.wire import Logprobs, NewSequence, PrefillSpan, Sampling

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

FEW = ("llama", "mistral with a window of 8", "gemma2 with soft caps and alternating windows")


def load(folder: Path, *, deterministic: bool = True, dtype: str = "bfloat16") -> Engine:
    options = Options(
        model=str(folder),
        dtype=dtype,
        max_slots=5,
        kv_blocks=40,
        swap_mib=1,
        threads=1,
        deterministic=deterministic,
    )
    return load_engine(options, lambda _: None)


@dataclass(slots=True, kw_only=True)
class Case:
    """An engine, the model that it runs, and what has been done with it."""

    folder: Path
    engine: Engine
    done: Counter[str] = field(default_factory=Counter)


@pytest.fixture(scope="module", params=FEW, ids=lambda name: name.replace(" ", "-"))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), CONFIGS[request.param])
    return Case(folder=folder, engine=load(folder))


def alone(engine: Engine, request: Request) -> list[int]:
    engine.reset()
    limits = Limits(max_slots=1, token_budget=None, prefill_chunk=None, kv_blocks=40, block_size=engine.block_size)
    (output,) = ScheduledRun(engine, Random(0), preset_name="orca", limits=limits).run([request])
    return output


def test_bfloat16_tokens_are_the_same_under_any_plans(case: Case) -> None:
    """C01: chunks, neighbours, recomputation, swaps and shared prefixes change no bit, so no token, drawn or greedy."""
    case.done.clear()

    @settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(chosen=chosen_requests, seed=st.integers(0, 2**32))
    def check(chosen: list[int], seed: int) -> None:
        drawn = [replace(REQUESTS[number], sampling=replace(RICH, seed=number)) for number in chosen[::2]]
        requests = [*drawn, *(REQUESTS[number] for number in chosen[1::2])]
        case.engine.reset()
        plans = RandomPlans(case.engine, Random(seed))
        together = [life.output for life in plans.run(requests)]
        case.done.update(plans.done)
        assert together == [alone(case.engine, request) for request in requests]

    check()
    assert {"recompute", "swap out", "swap in", "share"} <= set(case.done)


def test_in_float32_it_is_still_the_model(case: Case) -> None:
    """Passes of another shape are another way through the same layers: transformers' own answers come out."""
    engine = load(case.folder, dtype="float32")
    model = AutoModelForCausalLM.from_pretrained(case.folder, dtype=torch.float32, attn_implementation="eager")
    lives = RandomPlans(engine, Random(5)).run(REQUESTS)
    for request, life in zip(REQUESTS, lives, strict=True):
        ties_between(model, request, life.output, reference_output(model, request))


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_log_probabilities_of_a_prompt_are_the_same_in_any_chunks(case: Case, chunk: int) -> None:
    """They are computed by the same passes."""
    whole = prompt_scores(case.engine, 40)
    assert len(whole) == 39
    assert prompt_scores(case.engine, chunk) == whole


def prompt_scores(engine: Engine, chunk: int) -> list[float]:
    engine.reset()
    sampling = Sampling(temperature=0.0, prompt_logprobs=1)
    tokens = tuple(2 + number for number in range(40))
    start = NewSequence(
        slot=3,
        sequence_id="s",
        tokens=tokens,
        emitted=0,
        computed=0,
        max_tokens=2,
        sampling=sampling,
        blocks=tuple(range(10)),
    )
    found: list[Logprobs] = []
    starts: tuple[NewSequence, ...] = (start,)
    for at in range(0, 40, chunk):
        end = min(at + chunk, 40)
        span = PrefillSpan(slot=3, start=at, length=end - at, emits=end == 40)
        found += engine.execute(replace(NOTHING, starts=starts, prefill=(span,))).logprobs
        starts = ()
    return [own for scores in found for own in scores.own]


def test_a_model_of_experts_is_refused(tmp_path: Path) -> None:
    """An expert computes as many tokens as are sent to it, of everybody."""
    folder = save_tiny_model(tmp_path, CONFIGS["mixtral with experts"])
    with pytest.raises(LoadError, match=r"routes tokens to experts.*cannot be served with --deterministic"):
        load(folder)


def test_an_engine_whose_neighbours_matter_is_found_out(tmp_path: Path) -> None:
    """A check at load that cannot fail would promise nothing."""
    folder = save_tiny_model(tmp_path, CONFIGS["llama"])
    with pytest.raises(LoadError, match="computes a sequence differently beside others"):
        check_invariance(load(folder, deterministic=False))


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
