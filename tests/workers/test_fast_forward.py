"""The fused forward against transformers: the logits of every position, in every kind of batch."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from random import Random

import pytest
import torch

from tests.workers.fast_support import CPU, FAMILY, Bench, compile_for_tiles, make_fast, square_distances
from tests.workers.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny_model
from workers.fast.assemble import fast_model
from workers.fast.decoder import FAMILY as KNOWN
from workers.fast.decoder import NotFast, decoder_of
from workers.fast.step import PASS_ROWS
from workers.model import load_model
from workers.sampler import sample
from workers.slots import Work
from workers.weights import default_cache

pytestmark = pytest.mark.torch

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
NUMBERS = {"float32": (torch.float32, None), "bfloat16": (torch.bfloat16, None), "int8": (torch.bfloat16, torch.int8)}
OWN, TILES = "this processor's own products", "emulated tiles"


@pytest.fixture(params=[OWN, TILES])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What multiplies bfloat16. A processor's own are tiles where it has AMX, vectors elsewhere."""
    if request.param == TILES:
        compile_for_tiles(monkeypatch)
    return str(request.param)


@pytest.mark.parametrize("name", FAMILY)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Four sequences advance by random steps in shared batches, through scattered blocks."""
    bench = Bench(tmp_path, make_fast(tmp_path, FAMILY[name], torch.float32))
    compared = 0
    for works in bench.advance(Random(3)):
        emitting, logits = bench.passes.emitted(works)
        for work, row in zip(emitting, logits, strict=True):
            torch.testing.assert_close(row, bench.expected(work), **CLOSE)
            compared += 1
    assert compared > 40


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("name", FAMILY)
def test_in_bfloat16_logits_are_no_farther_from_the_exact_ones_than_transformers_are(name: str, tmp_path: Path) -> None:
    """Weights and activations are rounded there and here; the residual stream only there."""
    bench = Bench(tmp_path, make_fast(tmp_path, FAMILY[name], torch.bfloat16))
    ours_off, theirs_off = square_distances(bench, tmp_path)
    print(f"{name}: mean square distance {ours_off:.2e}, transformers' {theirs_off:.2e}")
    assert ours_off < 1.1 * theirs_off


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("numbers", NUMBERS)
def test_the_bits_of_a_row_do_not_depend_on_the_batch(numbers: str, tmp_path: Path) -> None:
    """Alone and in one piece, or by chunks and tokens among others: sums run in the same order."""
    dtype, weights = NUMBERS[numbers]
    model = make_fast(tmp_path, FAMILY["mistral with a window of 40"], dtype, weights=weights)
    bench = Bench(tmp_path, model)
    whole = [
        bench.passes.all_logits(Work(state=state, start=0, length=len(state.tokens), emits=True))
        for state in bench.states
    ]
    for works in bench.advance(Random(5)):
        emitting, logits = bench.passes.emitted(works)
        for work, row in zip(emitting, logits, strict=True):
            assert torch.equal(row, whole[work.state.slot][work.start + work.length - 1])


@pytest.mark.usefixtures("products")
def test_the_bits_of_a_row_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    """They share items of work; within an item one of them sums, and the results of items are put together in order."""
    one, three = (
        Bench(tmp_path, make_fast(tmp_path, FAMILY["qwen2"], torch.bfloat16, threads=threads)) for threads in (1, 3)
    )
    for works in one.advance(Random(7)):
        assert torch.equal(one.passes.emitted(works)[1], three.passes.emitted(works)[1])
        assert one.passes.best(works)[1] == three.passes.best(works)[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_longer_than_a_pass_is_cut_and_changes_nothing(dtype: torch.dtype, tmp_path: Path) -> None:
    """A plan may bring several whole prompts; a sequence that is cut finds its first part in the pool."""
    bench = Bench(tmp_path, make_fast(tmp_path, FAMILY["qwen2"], dtype), lengths=(300, 300, 10, 5))
    works = [Work(state=state, start=0, length=len(state.tokens), emits=True) for state in bench.states]
    assert sum(work.length for work in works) > PASS_ROWS
    _, logits = bench.passes.emitted(works)
    for work, row in zip(works, logits, strict=True):
        assert torch.equal(bench.passes.emitted([work])[1][0], row)
        if dtype == torch.float32:
            torch.testing.assert_close(row, bench.expected(work), **CLOSE)


def test_the_best_token_is_that_of_the_logits(tmp_path: Path) -> None:
    """The greedy batch writes no logits down; a sequence whose numbers are broken fails alone."""
    bench = Bench(tmp_path, make_fast(tmp_path, FAMILY["llama with tied embeddings"], torch.float32))
    works = [Work(state=state, start=0, length=len(state.tokens), emits=True) for state in bench.states]
    emitting, logits = bench.passes.emitted(works)
    assert bench.passes.best(works) == (emitting, logits.argmax(dim=-1).tolist())
    bench.break_numbers(0)
    broken = [Work(state=bench.states[0], start=299, length=1, emits=True), works[2]]
    assert bench.passes.best(broken)[1] == [None, int(logits[2].argmax())]


def test_of_equal_tokens_the_first_is_the_best_in_the_head_and_among_logits(tmp_path: Path) -> None:
    """Whether logits are written down depends on what the neighbours ask for, and must not decide a tie."""
    plain = load_model(save_tiny_model(tmp_path, FAMILY["qwen2"]), CPU, torch.bfloat16)
    words = plain.module.lm_head.weight.data
    words[VOCAB_SIZE // 2 :] = words[: VOCAB_SIZE // 2]  # every token twice
    model = fast_model(plain, block_size=16, cache=default_cache(), weights=torch.bfloat16, threads=1)
    bench = Bench(tmp_path, model)
    works = [Work(state=state, start=0, length=len(state.tokens), emits=True) for state in bench.states]
    best = bench.passes.best(works)[1]
    assert best == sample(bench.passes.emitted(works)[1], {})
    assert all(token is not None and token < VOCAB_SIZE // 2 for token in best)


def test_nothing_that_emits_gives_no_logits(tmp_path: Path) -> None:
    """The first chunks of long prompts, alone in a step."""
    bench = Bench(tmp_path, make_fast(tmp_path, FAMILY["qwen2"], torch.float32))
    works = [Work(state=bench.states[0], start=0, length=30, emits=False)]
    assert bench.passes.best(works) == ([], [])
    assert bench.passes.emitted(works)[1].shape[0] == 0


@pytest.mark.parametrize("name", [name for name in CONFIGS if not name.startswith(("llama", "mistral", "qwen"))])
def test_other_architectures_are_left_to_transformers(name: str, tmp_path: Path) -> None:
    """Also those that differ from the family in one thing only."""
    model = load_model(save_tiny_model(tmp_path, CONFIGS[name]), CPU, torch.float32)
    assert type(model.module).__name__ not in KNOWN
    with pytest.raises(NotFast, match="not of the common family"):
        fast_model(model, block_size=16, cache=default_cache(), weights=torch.float32, threads=1)


def test_angles_that_change_with_the_length_are_left_to_transformers(tmp_path: Path) -> None:
    """The kernels keep one table of them, for every sequence and for as long as they run."""
    config = deepcopy(CONFIGS["llama"])
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    model = load_model(save_tiny_model(tmp_path, config), CPU, torch.float32)
    with pytest.raises(NotFast, match="rotary embedding"):
        decoder_of(model)


@pytest.mark.parametrize(("block_size", "reason"), [(12, "KV blocks of 12"), (16, "heads of 8")])
def test_shapes_that_do_not_fit_the_vectors_are_left_to_transformers(
    block_size: int, reason: str, tmp_path: Path
) -> None:
    """The model must be whole afterwards: it is served all the same."""
    model = load_model(save_tiny_model(tmp_path, CONFIGS["llama"]), CPU, torch.float32)
    with pytest.raises(NotFast, match=reason):
        fast_model(model, block_size=block_size, cache=default_cache(), weights=torch.float32, threads=1)
    assert model.module.model.layers[0].mlp is not None
