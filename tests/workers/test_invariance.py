"""What --deterministic promises in bfloat16: the very same numbers, whatever else runs and however the work is cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedConfig

from admission.limits import Limits
from tests.workers.engine_support import GREEDY, NOTHING, Options, Request
from tests.workers.fast_support import FAMILY
from tests.workers.random_plans import RandomPlans
from tests.workers.scheduled import ScheduledRun
from tests.workers.test_engine_plans import REQUESTS, RICH, chosen_requests
from tests.workers.tiny_models import CONFIGS, save_tiny_model
from workers.engine import Engine
from workers.errors import LoadError
from workers.invariance import check_invariance
from workers.loading import load_engine
from workers.wire import Logprobs, NewSequence, PrefillSpan, Sampling

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SAMPLINGS = (
    GREEDY,
    RICH,
    replace(GREEDY, presence_penalty=0.5, repetition_penalty=1.3, logit_bias=((4, 1.0),)),
    Sampling(temperature=1.0, top_p=1.0),
    Sampling(temperature=1.3, top_p=0.8),
    Sampling(temperature=0.9, top_p=1.0, min_p=0.1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A model, and the settings by which it is computed in the one way or the other."""

    config: PreTrainedConfig
    is_fused: bool
    settings: Mapping[str, Any]


ONE_SHAPE = {"block_size": 4, "dtype": "bfloat16"}
FUSED = {"block_size": 16, "forward": "fused"}

WAYS = {
    "llama in passes of one shape": Way(config=CONFIGS["llama"], is_fused=False, settings=ONE_SHAPE),
    "mistral in passes of one shape": Way(
        config=CONFIGS["mistral with a window of 8"], is_fused=False, settings=ONE_SHAPE
    ),
    "gemma2 in passes of one shape": Way(
        config=CONFIGS["gemma2 with soft caps and alternating windows"], is_fused=False, settings=ONE_SHAPE
    ),
    "llama fused": Way(
        config=FAMILY["llama with tied embeddings"], is_fused=True, settings={**FUSED, "dtype": "bfloat16"}
    ),
    "mistral fused in eight bits": Way(
        config=FAMILY["mistral with a window of 40"],
        is_fused=True,
        settings={**FUSED, "dtype": "auto", "quantize": "int8"},
    ),
}


def load(folder: Path, **changes: Any) -> tuple[Engine, list[str]]:
    """An engine, and the lines of its start."""
    options = Options(model=str(folder), max_slots=5, kv_blocks=40, swap_mib=1, threads=1)
    lines: list[str] = []
    return load_engine(replace(options, **{"deterministic": True, **changes}), lines.append), lines


@dataclass(slots=True, kw_only=True)
class Case:
    """An engine, and what has been done with it."""

    engine: Engine
    done: Counter[str] = field(default_factory=Counter)


@pytest.fixture(scope="module", params=WAYS, ids=lambda name: name.replace(" ", "-"))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    way = WAYS[request.param]
    engine, lines = load(save_tiny_model(tmp_path_factory.mktemp("model"), way.config), **way.settings)
    assert any("transformers' own forward" in line for line in lines) is not way.is_fused
    assert "Trying out that neighbours change nothing" in lines
    return Case(engine=engine)


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
        requests = [
            replace(REQUESTS[number], sampling=replace(SAMPLINGS[(number + place) % len(SAMPLINGS)], seed=number))
            for place, number in enumerate(chosen)
        ]
        case.engine.reset()
        plans = RandomPlans(case.engine, Random(seed))
        together = [life.output for life in plans.run(requests)]
        case.done.update(plans.done)
        assert together == [alone(case.engine, request) for request in requests]

    check()
    assert {"recompute", "swap out", "swap in", "share"} <= set(case.done)


@pytest.mark.parametrize("chunk", [1, 7])
def test_log_probabilities_are_the_same_beside_any_others(case: Case, chunk: int) -> None:
    """Of prompt and output, to the last bit, and whatever width the neighbours ask for."""
    mine = Sampling(temperature=0.0, ignore_eos=True, top_logprobs=3, prompt_logprobs=1)
    others = [replace(mine, temperature=1.0, top_logprobs=width, prompt_logprobs=None) for width in (None, 20)]
    expected = scores(case.engine, mine, [], chunk=40)
    assert len(expected) == 39 + 4
    assert scores(case.engine, mine, others, chunk=chunk) == expected


def scores(engine: Engine, mine: Sampling, others: list[Sampling], *, chunk: int) -> list[tuple[object, ...]]:
    """For each of 40 tokens of prompt but the first, and of 4 of output: its score, the likeliest, and theirs."""
    engine.reset()
    tokens = tuple(2 + number for number in range(40))
    per_sequence = -(-44 // engine.block_size)
    starts = [
        NewSequence(
            slot=slot,
            sequence_id=str(slot),
            tokens=tokens if sampling is mine else tokens[slot::2],
            emitted=0,
            computed=0,
            max_tokens=4 if sampling is mine else 24,
            sampling=sampling,
            blocks=tuple(range(slot * per_sequence, (slot + 1) * per_sequence)),
        )
        for slot, sampling in enumerate([mine, *others])
    ]
    whole = [PrefillSpan(slot=new.slot, start=0, length=len(new.tokens), emits=True) for new in starts[1:]]
    plan = replace(NOTHING, starts=tuple(starts), prefill=tuple(whole))
    neighbours = tuple(new.slot for new in starts[1:])
    found: list[Logprobs] = []
    for at in range(0, 40, chunk):
        end = min(at + chunk, 40)
        span = PrefillSpan(slot=0, start=at, length=end - at, emits=end == 40)
        found += engine.execute(replace(plan, prefill=(*plan.prefill, span))).logprobs
        plan = replace(NOTHING, decode=neighbours)
    for _ in range(3):
        found += engine.execute(replace(NOTHING, decode=(0, *neighbours))).logprobs
    return [one for part in found if part.slot == 0 for one in _by_token(part)]


def _by_token(part: Logprobs) -> list[tuple[object, ...]]:
    width = len(part.top) // len(part.own)
    return [
        (own, part.top_ids[at * width : (at + 1) * width], part.top[at * width : (at + 1) * width])
        for at, own in enumerate(part.own)
    ]


def test_of_the_fused_forward_neither_threads_nor_sizes_change_a_bit(tmp_path: Path) -> None:
    """A sequence may come from a worker with other settings, and go on as it would have there."""
    way = WAYS["llama fused"]
    folder = save_tiny_model(tmp_path, way.config)
    sampling = Sampling(temperature=0.7, top_p=0.9, ignore_eos=True, seed=3, top_logprobs=3, prompt_logprobs=1)
    one, _ = load(folder, **way.settings)
    other, _ = load(folder, **{**way.settings, "block_size": 32}, threads=3, max_slots=2, kv_blocks=9, max_model_len=99)
    assert scores(one, sampling, [], chunk=40) == scores(other, sampling, [], chunk=13)


def test_a_model_of_experts_is_refused(tmp_path: Path) -> None:
    """An expert computes as many tokens as are sent to it, of everybody."""
    folder = save_tiny_model(tmp_path, CONFIGS["mixtral with experts"])
    with pytest.raises(LoadError, match=r"routes tokens to experts.*cannot be served with --deterministic"):
        load(folder)


def test_an_engine_whose_neighbours_matter_is_found_out(tmp_path: Path) -> None:
    """A check at load that cannot fail would promise nothing."""
    folder = save_tiny_model(tmp_path, CONFIGS["llama"])
    engine, _ = load(folder, deterministic=False, **ONE_SHAPE)
    with pytest.raises(LoadError, match="computes a sequence differently beside others"):
        check_invariance(engine)
