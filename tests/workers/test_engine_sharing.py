"""Blocks that several sequences share, and what becomes of them when one of their owners fails."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from tests.workers.engine_support import Options, embedding_of
from tests.workers.planner import Planner, Request, generate
from tests.workers.tiny_models import CONFIGS, save_tiny_model
from workers.engine import Engine
from workers.loading import load_engine

pytestmark = pytest.mark.torch

PROMPT = tuple(5 + 7 * at % 80 for at in range(13))
POISON = 93


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Its embedding is not tied to its head: token ``POISON`` gives NaN, and spoils nothing else."""
    folder = save_tiny_model(Path(tmp_path_factory.mktemp("model")), CONFIGS["qwen2"])
    engine = load_engine(Options(model=str(folder), kv_blocks=24, threads=1), lambda _: None)
    embedding_of(engine)[POISON] = float("nan")
    return engine


@pytest.mark.parametrize("order", tuple(permutations(range(3))), ids=str)
def test_sharers_give_what_they_give_alone_in_whatever_order_they_go(engine: Engine, order: tuple[int, ...]) -> None:
    """A block counts once, and lives until its last owner has gone."""
    requests = [Request(prompt=(*PROMPT, tail), max_tokens=5) for tail in (20, 30, 40)]
    alone = [generate(engine, request)[0] for request in requests]
    planner = Planner(engine)
    planner.iterate(starts=[requests[0]])
    (first,) = planner.running()
    planner.iterate(starts=requests[1:], share=first)  # its report's live blocks are checked against the planner's
    sharers = planner.running()
    while any(sharer.finish is None for sharer in sharers):
        planner.iterate()
    assert [sharer.output for sharer in sharers] == alone
    for index in order:
        planner.iterate(frees=[sharers[index]])
    assert planner.live_blocks == 0


def test_a_sharer_that_fails_leaves_the_shared_blocks_as_they_are(engine: Engine) -> None:
    """Its neighbour reads them, and so does one that comes later, when nobody held them for a while."""
    sound = Request(prompt=(*PROMPT, 20), max_tokens=6)
    alone = generate(engine, sound)[0]
    planner = Planner(engine)
    planner.iterate(starts=[sound])
    (first,) = planner.running()
    report = planner.iterate(starts=[Request(prompt=(*PROMPT, POISON), max_tokens=6)], share=first)
    broken = planner.running()[1]
    assert report.finished == ((broken.slot, "failed"),)
    shared = list(first.blocks)
    while first.finish is None:
        planner.iterate()
    assert first.output == alone
    planner.iterate(frees=[first, broken])
    again = planner.iterate_on(sound, blocks=shared[: len(PROMPT) // engine.block_size])
    planner.finish()
    assert again.output == alone


@pytest.mark.parametrize("chunk", [3, 100])
def test_what_a_broken_sequence_left_reaches_no_later_owner(engine: Engine, chunk: int) -> None:
    """Whether it failed or was cancelled before anybody could tell that it would."""
    good = [Request(prompt=(*PROMPT, tail), max_tokens=6) for tail in (20, 30, 40, 50)]
    alone = [generate(engine, request)[0] for request in good]
    bad = [Request(prompt=(POISON, *PROMPT, tail)) for tail in (20, 30, 40)]
    planner = Planner(engine, chunk=chunk)
    planner.iterate(starts=bad)
    planner.iterate(frees=planner.running())
    planner.iterate(starts=good)
    running = planner.running()
    planner.finish()
    assert [one.output for one in running] == alone
