"""A request's tokens, and the log-probabilities behind them, do not depend on what else is in the batch."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.workers.engine_support import Options
from tests.workers.planner import GREEDY, Planner, Request
from tests.workers.tiny_models import CONFIGS, FEW, VOCAB_SIZE, save_tiny_model
from workers.engine import Engine
from workers.loading import load_engine

pytestmark = pytest.mark.torch

NEIGHBOURS = (1, 3, 7, 15, 31)
ROUNDING = 1e-4
"""Far above float32's rounding in these models, far below what a wrong block or mask would do."""


@pytest.fixture(scope="module", params=FEW, ids=lambda name: name.replace(" ", "-"))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), CONFIGS[request.param])
    return load_engine(Options(model=str(folder), max_slots=32, kv_blocks=512, threads=1), lambda _: None)


def make_request(number: int) -> Request:
    random = Random(number)
    prompt = tuple(random.randrange(2, VOCAB_SIZE) for _ in range(random.randint(3, 40)))
    return Request(prompt=prompt, sampling=replace(GREEDY, top_logprobs=0), max_tokens=8)


def run(engine: Engine, request: Request, neighbours: list[Request], *, chunk: int) -> tuple[list[int], list[float]]:
    """The request's tokens and their log-probabilities; its neighbours arrive one per iteration before and after it."""
    planner = Planner(engine, chunk=chunk)
    arrivals = [*neighbours[::2], request, *neighbours[1::2]]
    mine = None
    scores: list[float] = []
    while arrivals or mine is None or mine.finish is None:
        started = [arrivals.pop(0)] if arrivals else []
        report = planner.iterate(starts=started, frees=[one for one in planner.running() if one.finish])
        if started == [request]:
            mine = planner.running()[-1]
        if mine is not None:
            scores += [own for found in report.logprobs if found.slot == mine.slot for own in found.own]
    engine.reset()
    return mine.output, scores


@pytest.mark.parametrize("chunk", [1_000, 5])
def test_neighbours_change_neither_tokens_nor_log_probabilities(engine: Engine, chunk: int) -> None:
    """C01: solo runs are identical; in company a tie might tip, and none is near one here."""
    largest = 0.0
    for number in range(5):
        request = make_request(number)
        alone, scores = run(engine, request, [], chunk=1_000)
        assert run(engine, request, [], chunk=1_000) == (alone, scores)
        for count in NEIGHBOURS:
            neighbours = [make_request(100 + 50 * number + other) for other in range(count)]
            tokens, others = run(engine, request, neighbours, chunk=chunk)
            assert tokens == alone
            largest = max(largest, *(abs(a - b) for a, b in zip(scores, others, strict=True)))
    print(f"largest difference between log-probabilities: {largest:.1e}")
    assert largest < ROUNDING
