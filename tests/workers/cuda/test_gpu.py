"""On a real GPU, and only there: ``pytest -m cuda``. A machine without one fails these tests; it never skips them.

None of this has run yet. docs/worker.md says so, and how to try it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from admission.limits import Limits
from tests.workers.cuda.engines import Ahead
from tests.workers.engine_support import Options, reference_output, ties_between
from tests.workers.random_plans import RandomPlans
from tests.workers.scheduled import ScheduledRun
from tests.workers.test_engine_plans import REQUESTS, RICH
from tests.workers.tiny_models import CONFIGS, FEW, save_tiny_model
from workers.attention import Arguments
from workers.cuda.capability import attend_densely, find_kernel, torchs_varlen_attn
from workers.cuda.engine import OverlappingEngine
from workers.cuda.transfer import SideStreamTransfer
from workers.cuda.varlen import Pages, Ragged, attend_to_pages
from workers.kv_cache import KVPool, LayerShape
from workers.loading import load_engine

pytestmark = [pytest.mark.torch, pytest.mark.cuda, pytest.mark.timeout(600)]

GPU = torch.device("cuda")


def load(folder: Path, said: list[str], **others: object) -> OverlappingEngine:
    options = Options(model=str(folder), device="cuda", max_slots=5, kv_blocks=40, swap_mib=1)
    engine = load_engine(replace(options, **others), said.append)  # type: ignore[arg-type]  # the callers name options
    assert isinstance(engine, OverlappingEngine)
    return engine


@pytest.mark.parametrize("name", FEW, ids=lambda name: name.replace(" ", "-"))
def test_tokens_in_float32_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Gathered, replayed as graphs, swapped through pinned memory, and begun ahead: the promise holds on a GPU too."""
    folder = save_tiny_model(tmp_path, CONFIGS[name])
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    expected = [reference_output(reference, request) for request in REQUESTS]
    said: list[str] = []
    engine = load(folder, said)
    print(said)
    assert engine._decodes is not None
    assert len(engine._decodes.replays) == len(engine._decodes.buckets.all_largest_first())
    random = Random(5)
    for _ in range(8):
        chosen = [random.randrange(len(REQUESTS)) for _ in range(8)]
        engine.reset()
        lives = RandomPlans(engine, random).run([REQUESTS[number] for number in chosen])
        engine.reset()
        ahead = scheduled(engine, random).run([REQUESTS[number] for number in chosen])
        for number, life, output in zip(chosen, lives, ahead, strict=True):
            for ours in (life.output, output):
                if ties_between(reference, REQUESTS[number], ours, expected[number]):
                    print("a tie")


def test_seeded_sampling_in_float32_does_not_depend_on_the_plans(tmp_path: Path) -> None:
    """Drawn ahead, with penalties that wait, and alone."""
    engine = load(save_tiny_model(tmp_path, CONFIGS["llama"]), [])
    requests = [replace(request, sampling=replace(RICH, seed=seed)) for seed, request in enumerate(REQUESTS[:8])]
    alone = [RandomPlans(engine, Random(1)).run([request])[0].output for request in requests]
    engine.reset()
    assert scheduled(engine, Random(2)).run(requests) == alone


def test_bfloat16_serves_with_pages_of_the_kernels_size_where_it_can(tmp_path: Path) -> None:
    """Prints what was found; the numbers of a kernel were compared by its trial."""
    config = LlamaConfig(**CONFIGS["llama"].to_dict() | {"hidden_size": 128, "head_dim": 32})
    said: list[str] = []
    engine = load(save_tiny_model(tmp_path, config), said, dtype="bfloat16", block_size=16, kv_blocks=None)
    print(said, engine.block_size)
    lives = RandomPlans(engine, Random(1)).run(REQUESTS[:8])
    assert {life.finish for life in lives} <= {"stop", "length"}


def test_a_kernel_that_is_found_has_the_numbers_of_plain_attention() -> None:
    """Over more than its trial showed: five sequences on scattered pages, chunks and decodes. Prints what was found."""
    layer = LayerShape(kv_heads=4, key_dim=128, value_dim=128, window=100)
    found = find_kernel([layer], dtype=torch.bfloat16, device=GPU, block_size=16, function=torchs_varlen_attn())
    print(found.why)
    if found.kernel is None:
        return
    torch.manual_seed(3)
    size, lengths, queries = found.kernel.page_size, (700, 3, 257, 40, 511), (1, 3, 200, 1, 17)
    width = -(-700 // size)
    ragged = Ragged(
        query_offsets=torch.tensor([0, *accumulate(queries)], dtype=torch.int32),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        tables=torch.randperm(5 * width).view(5, width).to(torch.int32),
        places=torch.empty(0, dtype=torch.int64),
        longest_query=200,
        longest=700,
    )
    query = torch.randn(sum(queries), 8, 128).to(torch.bfloat16)
    pages = Pages(*torch.randn(2, 5 * width, size, 4, 128).to(torch.bfloat16))
    arguments = Arguments(layer=0, scale=128**-0.5, softcap=None, window=100)
    expected = attend_densely(ragged, query, pages, arguments)
    moved = replace(
        ragged,
        query_offsets=ragged.query_offsets.to(GPU),
        lengths=ragged.lengths.to(GPU),
        tables=ragged.tables.to(GPU),
    )
    ours = attend_to_pages(found.kernel, moved, query.to(GPU), Pages(*(part.to(GPU) for part in pages)), arguments)
    torch.testing.assert_close(ours.float().cpu(), expected, rtol=2e-2, atol=2e-2)


def test_swapped_blocks_come_back_as_they_went() -> None:
    """On a stream of their own, while the pool's stream overwrites what they were copied from."""
    layer = LayerShape(kv_heads=2, key_dim=64, value_dim=64, window=None)
    pool = KVPool(
        layers=[layer] * 4,
        num_blocks=64,
        block_size=16,
        dtype=torch.float32,
        device=GPU,
        transfer=SideStreamTransfer(GPU),
    )
    keys = torch.randn(64 * 16, 2, 64, device=GPU)
    for index in range(4):
        pool.write_tokens(index, torch.arange(64 * 16, device=GPU), keys + index, keys - index)
    kept = pool.take_out(range(0, 64, 2))
    for index in range(4):
        pool.write_tokens(index, torch.arange(64 * 16, device=GPU), keys * 0, keys * 0)
    pool.put_back(range(1, 64, 2), kept, first=0)
    expected = keys.view(64, 16, 2, 64)[::2]
    for index in range(4):
        found_keys, found_values = pool.pages(index)
        assert torch.equal(found_keys[1:64:2], expected + index)
        assert torch.equal(found_values[1:64:2], expected - index)


def test_no_decode_waits_for_the_device(tmp_path: Path) -> None:
    """Torch raises where an operation would make the host wait; only reading the tokens may."""
    engine = load(save_tiny_model(tmp_path, CONFIGS["llama"]), [])
    run = scheduled(engine, Random(3))
    run.run(REQUESTS[:4])
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.reset()
        scheduled(engine, Random(3)).run(REQUESTS[:4])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def scheduled(engine: OverlappingEngine, random: Random) -> ScheduledRun:
    limits = Limits(
        max_slots=random.randint(3, 5),
        token_budget=random.randint(8, 40),
        prefill_chunk=random.choice((1, 3, 16, None)),
        kv_blocks=random.randint(15, 18),
        block_size=engine.block_size,
        max_in_flight=2,
    )
    return ScheduledRun(Ahead(engine), random, preset_name="sluicegate", limits=limits)  # type: ignore[arg-type]  # what it uses of an engine
