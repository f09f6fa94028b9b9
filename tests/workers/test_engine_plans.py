"""The promise of the worker, under whatever plans: the tokens of a request are those of the dense model alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

from admission.limits import Limits
from tests.workers.engine_support import GREEDY, Options, Request, reference_output, ties_between
from tests.workers.random_plans import RandomPlans
from tests.workers.scheduled import ScheduledRun
from tests.workers.tiny_models import CONFIGS, FEW, VOCAB_SIZE, save_tiny_model
from workers.engine import Engine
from workers.loading import load_engine
from workers.wire import Sampling

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

random_plans = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

RICH = Sampling(
    temperature=0.8,
    top_p=0.9,
    top_k=40,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    logit_bias=((5, 2.0), (9, -3.0)),
    min_tokens=4,
    stop_token_ids=(7, 11),
)


def make_requests() -> list[Request]:
    """Of three families with a common beginning each, so that prefixes can be shared."""
    random = Random(17)
    families = [tuple(random.randrange(2, VOCAB_SIZE) for _ in range(length)) for length in (9, 17, 30)]
    return [
        Request(
            tokens=(
                *families[number % 3][: random.randint(4, 30)],
                *(random.randrange(2, VOCAB_SIZE) for _ in range(random.randint(1, 9))),
            ),
            max_tokens=random.randint(1, 18),
        )
        for number in range(18)
    ]


REQUESTS = make_requests()


@dataclass(slots=True, kw_only=True)
class Pair:
    """An engine, and the same model as transformers runs it with what it makes of ``REQUESTS``."""

    engine: Engine
    reference: PreTrainedModel
    expected: list[list[int]]
    done: Counter[str] = field(default_factory=Counter)

    def compare(self, chosen: list[int], outputs: list[list[int]]) -> None:
        for number, output in zip(chosen, outputs, strict=True):
            self.done["tie"] += ties_between(self.reference, REQUESTS[number], output, self.expected[number])
            self.done["request"] += 1


@pytest.fixture(scope="module", params=FEW, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), CONFIGS[request.param])
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    options = Options(model=str(folder), max_slots=5, kv_blocks=40, swap_mib=1, threads=1)
    engine = load_engine(options, lambda _: None)
    return Pair(engine=engine, reference=reference, expected=[reference_output(reference, one) for one in REQUESTS])


chosen_requests = st.lists(st.integers(0, len(REQUESTS) - 1), min_size=1, max_size=9)
many_requests = st.lists(st.integers(0, len(REQUESTS) - 1), min_size=5, max_size=9)


def test_tokens_are_exact_under_recompute_swap_sharing_and_any_chunks(pair: Pair) -> None:
    """Whatever a scheduler may do changes when a token comes, never which."""
    pair.done.clear()

    @random_plans
    @given(chosen=chosen_requests, seed=st.integers(0, 2**32))
    def check(chosen: list[int], seed: int) -> None:
        pair.engine.reset()
        plans = RandomPlans(pair.engine, Random(seed))
        lives = plans.run([REQUESTS[number] for number in chosen])
        pair.done.update(plans.done)
        pair.compare(chosen, [life.output for life in lives])

    check()
    print(dict(pair.done))
    assert {"recompute", "swap out", "swap in", "drop", "share"} <= set(pair.done)


@pytest.mark.parametrize("preset_name", ["sluicegate", "vllm-v1", "trtllm-max-utilization"])
def test_tokens_are_exact_under_the_schedulers_own_plans(pair: Pair, preset_name: str) -> None:
    """Two plans deep, sharing prefixes, with a pool so small that sequences are preempted."""
    pair.done.clear()

    @random_plans
    @given(chosen=many_requests, seed=st.integers(0, 2**32))
    def check(chosen: list[int], seed: int) -> None:
        random = Random(seed)
        limits = Limits(
            max_slots=random.randint(3, 5),
            token_budget=random.randint(8, 40),
            prefill_chunk=random.choice((1, 3, 16, None)),
            kv_blocks=random.randint(15, 18),
            block_size=pair.engine.block_size,
            max_in_flight=2,
        )
        pair.engine.reset()
        run = ScheduledRun(pair.engine, random, preset_name=preset_name, limits=limits)
        pair.compare(chosen, run.run([REQUESTS[number] for number in chosen]))
        pair.done["pause"] += run.pauses
        pair.done["reused token"] += run.reused_tokens

    check()
    print(dict(pair.done))
    assert pair.done["pause"] > 0
    assert pair.done["reused token"] > 0


@random_plans
@given(chosen=chosen_requests, seed=st.integers(0, 2**32))
def test_seeded_sampling_is_exact_under_any_plans(pair: Pair, chosen: list[int], seed: int) -> None:
    """Penalties and min_tokens count what was emitted, wherever and however often the sequence was interrupted."""
    requests = [replace(REQUESTS[number], sampling=replace(RICH, seed=number)) for number in chosen]
    pair.engine.reset()
    together = [life.output for life in RandomPlans(pair.engine, Random(seed)).run(requests)]
    alone = [_alone(pair.engine, request) for request in requests]
    assert together == alone


def _alone(engine: Engine, request: Request) -> list[int]:
    engine.reset()
    limits = Limits(max_slots=1, token_budget=None, prefill_chunk=None, kv_blocks=40, block_size=engine.block_size)
    (output,) = ScheduledRun(engine, Random(0), preset_name="orca", limits=limits).run([request])
    return output


def test_the_requests_are_greedy_and_of_many_lengths() -> None:
    """Or the tests above would show less than they say."""
    assert all(request.sampling == GREEDY for request in REQUESTS)
    assert len({len(request.tokens) for request in REQUESTS}) > 8
