"""The engine against transformers' own generation, on tiny models of many architectures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from tests.workers.engine_support import (
    GREEDY,
    NOTHING,
    Options,
    RandomDriver,
    Request,
    embedding_of,
    reference_output,
    ties_between,
)
from tests.workers.tiny_models import CONFIGS, CONTEXT, EOS, FEW, VOCAB_SIZE, save_tiny_model
from workers.engine import Engine
from workers.executor import PlanError
from workers.loading import load_engine
from workers.wire import NewSequence, PrefillSpan, Sampling

pytestmark = pytest.mark.torch

few_examples = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=FEW, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, PreTrainedModel]:
    """An engine, and the same model as transformers runs it."""
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), CONFIGS[request.param])
    engine = load_engine(Options(model=str(folder)), lambda _: None)
    return engine, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), CONFIGS["llama"])
    return load_engine(Options(model=str(folder)), lambda _: None)


def random_requests(random: Random, count: int, sampling: Sampling = GREEDY) -> list[Request]:
    return [
        Request(
            tokens=tuple(random.randrange(2, VOCAB_SIZE) for _ in range(random.randint(1, 40))),
            max_tokens=random.randint(1, 16),
            sampling=sampling,
        )
        for _ in range(count)
    ]


@few_examples
@given(seed=st.integers(0, 2**32))
def test_greedy_output_is_that_of_transformers_under_any_chunks_and_neighbours(
    pair: tuple[Engine, PreTrainedModel], seed: int
) -> None:
    """The promise of the worker: batching changes when a token comes, never which."""
    engine, reference = pair
    random = Random(seed)
    requests = random_requests(random, 6)
    outcomes = RandomDriver(engine, random).run(requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        theirs = reference_output(reference, request)
        if ties_between(reference, request, outcome.tokens, theirs):
            print("a tie")
        assert outcome.finish == ("stop" if outcome.tokens[-1] == EOS else "length")


@few_examples
@given(seed=st.integers(0, 2**32))
def test_seeded_sampling_does_not_depend_on_neighbours_or_chunks(engine: Engine, seed: int) -> None:
    """A client that repeats a seeded request gets the same answer on a busy server."""
    random = Random(seed)
    requests = [
        replace(request, sampling=Sampling(temperature=0.9, top_p=0.8, seed=index))
        for index, request in enumerate(random_requests(random, 5))
    ]
    together = RandomDriver(engine, random).run(requests)
    alone = [RandomDriver(engine, random).run([request])[0] for request in requests]
    assert together == alone


def test_a_sequence_that_moves_continues_exactly(engine: Engine) -> None:
    """After a move the tokens so far come as input, and the next draw is that of the same output position."""
    request = Request(tokens=(5, 6, 7), max_tokens=12, sampling=Sampling(temperature=1.0, seed=3, ignore_eos=True))
    whole = RandomDriver(engine, Random(1)).run([request])[0].tokens
    moved = replace(request, tokens=(*request.tokens, *whole[:5]), emitted=5)
    assert RandomDriver(engine, Random(2)).run([moved])[0].tokens == whole[5:]


def test_choices_of_one_seed_differ(engine: Engine) -> None:
    """Several choices of one request would be pointless otherwise."""
    outputs = [
        RandomDriver(engine, Random(1))
        .run([Request(tokens=(5, 6), sampling=Sampling(temperature=1.5, seed=1, choice=choice, ignore_eos=True))])[0]
        .tokens
        for choice in range(2)
    ]
    assert outputs[0] != outputs[1]


def test_a_broken_request_fails_alone(engine: Engine) -> None:
    """One bad value must not take the batch with it."""
    good = Request(tokens=(5, 6, 7, 8), max_tokens=6, sampling=Sampling(temperature=0.0, ignore_eos=True))
    bad_id = Request(tokens=(5, VOCAB_SIZE, 7))
    bad_temperature = Request(tokens=(5, 6), sampling=Sampling(temperature=float("nan")))
    alone = RandomDriver(engine, Random(1)).run([good])[0]
    outcomes = RandomDriver(engine, Random(1)).run([bad_id, good, bad_temperature])
    assert [outcome.finish for outcome in outcomes] == ["failed", "length", "failed"]
    assert outcomes[1] == alone


@pytest.mark.parametrize("forward", ["packed", "generic"])
def test_a_sequence_of_broken_numbers_neither_harms_neighbours_nor_later_owners(forward: str, tmp_path: Path) -> None:
    """NaN spreads through everything it touches; here it must end with its sequence."""
    folder = save_tiny_model(tmp_path, CONFIGS["qwen2"])  # its embedding is not tied to its head
    engine = load_engine(Options(model=str(folder), kv_blocks=4, forward=forward), lambda _: None)
    poisoned = 9
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    good = Request(tokens=(5, 6, 7), max_tokens=3, sampling=sampling)
    alone = RandomDriver(engine, Random(1)).run([good])[0]
    embedding = embedding_of(engine)
    kept = embedding[poisoned].clone()
    embedding[poisoned] = float("nan")
    outcomes = RandomDriver(engine, Random(1)).run([Request(tokens=(poisoned, 5, 6, 7, 8)), good])
    embedding[poisoned] = kept
    assert outcomes[0].finish == "failed"
    assert outcomes[1] == alone
    for seed in range(4):  # other slots and blocks, among them those of the broken sequence
        assert RandomDriver(engine, Random(seed)).run([good])[0] == alone


def test_ignore_eos_runs_on_to_the_length(engine: Engine) -> None:
    """Load tests rely on outputs of a known length."""
    request = Request(tokens=(5,), max_tokens=30, sampling=Sampling(temperature=3.0, seed=1, ignore_eos=True))
    outcome = RandomDriver(engine, Random(0)).run([request])[0]
    assert (len(outcome.tokens), outcome.finish) == (30, "length")


def test_an_eos_is_reported_with_its_token(engine: Engine) -> None:
    """The origin drops it from the text; the worker says what it sampled."""
    for seed in range(200):
        request = Request(tokens=(5,), max_tokens=30, sampling=Sampling(temperature=3.0, seed=seed))
        outcome = RandomDriver(engine, Random(0)).run([request])[0]
        if outcome.finish == "stop":
            assert outcome.tokens[-1] == EOS
            assert EOS not in outcome.tokens[:-1]
            return
    raise AssertionError("no sequence met an eos")


def test_any_of_several_eos_ids_ends_a_sequence(tmp_path: Path) -> None:
    """Chat models end turns and texts with different tokens."""
    several = tuple(range(1, 30))
    config = LlamaConfig(**CONFIGS["llama"].to_dict() | {"eos_token_id": list(several)})
    folder = save_tiny_model(tmp_path, config)
    engine = load_engine(Options(model=str(folder), threads=1), lambda _: None)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    assert engine.card.eos_ids == several
    requests = random_requests(Random(3), 12)
    outcomes = RandomDriver(engine, Random(4)).run(requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        ties_between(reference, request, outcome.tokens, reference_output(reference, request))
    assert len({outcome.tokens[-1] for outcome in outcomes if outcome.finish == "stop"}) > 1


def test_a_finished_sequence_is_skipped_although_named(engine: Engine) -> None:
    """The next plan may already be on its way when a sequence ends."""
    engine.reset()
    start = NewSequence(
        slot=0, sequence_id="a", tokens=(5,), emitted=0, computed=0, max_tokens=1, sampling=GREEDY, blocks=(3,)
    )
    chunk = PrefillSpan(slot=0, start=0, length=1, emits=True)
    assert engine.execute(replace(NOTHING, starts=(start,), prefill=(chunk,))).finished == ((0, "length"),)
    report = engine.execute(replace(NOTHING, decode=(0,)))
    assert (report.tokens, report.finished, report.live_blocks) == ((), (), 1)
    assert engine.execute(replace(NOTHING, frees=(0,))).live_blocks == 0


def test_a_shared_prefix_needs_no_second_prefill(engine: Engine) -> None:
    """A newcomer may start on blocks that another sequence has filled."""
    engine.reset()
    prompt = (5, 6, 7, 8, 9, 10)
    first = NewSequence(
        slot=0, sequence_id="a", tokens=prompt, emitted=0, computed=0, max_tokens=2, sampling=GREEDY, blocks=(0, 1)
    )
    whole = PrefillSpan(slot=0, start=0, length=6, emits=True)
    alone = engine.execute(replace(NOTHING, starts=(first,), prefill=(whole,))).tokens[0][1]
    second = replace(first, slot=1, sequence_id="b", computed=4, blocks=(0, 2))
    rest = PrefillSpan(slot=1, start=4, length=2, emits=True)
    report = engine.execute(replace(NOTHING, starts=(second,), prefill=(rest,)))
    assert (report.tokens, report.live_blocks) == (((1, alone),), 3)
    engine.reset()


def test_copied_blocks_hold_the_same_tokens(engine: Engine) -> None:
    """A partly filled block that is shared is copied before somebody writes on."""
    engine.reset()
    prompt = (5, 6, 7, 8, 9, 10)
    first = NewSequence(
        slot=0, sequence_id="a", tokens=prompt, emitted=0, computed=0, max_tokens=2, sampling=GREEDY, blocks=(0, 1)
    )
    whole = PrefillSpan(slot=0, start=0, length=6, emits=True)
    alone = engine.execute(replace(NOTHING, starts=(first,), prefill=(whole,))).tokens[0][1]
    second = replace(first, slot=1, sequence_id="b", computed=5, blocks=(0, 2))
    rest = PrefillSpan(slot=1, start=5, length=1, emits=True)
    report = engine.execute(replace(NOTHING, starts=(second,), copies=((1, 2),), prefill=(rest,)))
    assert report.tokens == ((1, alone),)
    engine.reset()


def test_a_block_table_longer_than_a_context_is_refused(engine: Engine) -> None:
    """Nothing may grow without a bound, not even by the driver's mistake."""
    engine.reset()
    start = NewSequence(
        slot=0,
        sequence_id="a",
        tokens=(5,),
        emitted=0,
        computed=0,
        max_tokens=1,
        sampling=GREEDY,
        blocks=tuple(range(CONTEXT // 4 + 1)),
    )
    with pytest.raises(PlanError, match="a whole context"):
        engine.execute(replace(NOTHING, starts=(start,)))
    engine.reset()


def test_reset_frees_everything(engine: Engine) -> None:
    """A lost link leaves nothing behind."""
    engine.reset()
    start = NewSequence(
        slot=0, sequence_id="a", tokens=(5,), emitted=0, computed=0, max_tokens=1, sampling=GREEDY, blocks=(3,)
    )
    assert engine.execute(replace(NOTHING, starts=(start,))).live_blocks == 1
    engine.reset()
    assert engine.execute(NOTHING).live_blocks == 0


def test_bfloat16_serves_too(tmp_path: Path) -> None:
    """Its numbers are coarser, its path is the same."""
    folder = save_tiny_model(tmp_path, CONFIGS["llama"])
    engine = load_engine(Options(model=str(folder), dtype="bfloat16"), lambda _: None)
    outcomes = RandomDriver(engine, Random(0)).run(random_requests(Random(1), 6))
    assert engine.card.dtype == "bfloat16"
    assert {outcome.finish for outcome in outcomes} <= {"stop", "length"}
