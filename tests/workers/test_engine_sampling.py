"""Sampling in the engine: what is asked for comes, whoever else is in the batch and wherever the sequence has been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.workers.engine_support import Options, embedding_of
from tests.workers.planner import GREEDY, Planner, Request, generate
from tests.workers.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny_model
from workers import engine as engine_module
from workers.engine import Engine
from workers.loading import load_engine
from workers.wire import Logprobs, ReportMessage, Sampling, encode

pytestmark = pytest.mark.torch

PROMPT = (5, 9, 23, 9, 41, 60, 7, 9, 88, 30, 31)
RICH = Sampling(
    temperature=0.9,
    top_p=0.9,
    top_k=30,
    min_p=0.01,
    presence_penalty=0.5,
    frequency_penalty=0.4,
    repetition_penalty=1.2,
    logit_bias=((4, 2.0), (6, -3.0)),
    min_tokens=12,
    stop_token_ids=(8, 11, 13),
    seed=5,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), CONFIGS["qwen2"])


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load_engine(Options(model=str(folder), kv_blocks=64, threads=1), lambda _: None)


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def scores_of(reports: list[ReportMessage], slot: int) -> dict[int, Logprobs]:
    """By position, one entry for each token; the last one counts."""
    found: dict[int, Logprobs] = {}
    for scores in (scores for report in reports for scores in report.logprobs if scores.slot == slot):
        width = len(scores.top) // len(scores.own)
        for place, own in enumerate(scores.own):
            part = slice(place * width, (place + 1) * width)
            found[scores.start + place] = replace(
                scores, start=scores.start + place, own=(own,), top_ids=scores.top_ids[part], top=scores.top[part]
            )
    return found


@pytest.mark.parametrize(("chunk", "rows"), [(100, 256), (4, 256), (100, 3), (1, 256)])
def test_log_probabilities_are_those_of_the_dense_model(
    engine: Engine, reference: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, chunk: int, rows: int
) -> None:
    """By the model's own logits, whatever sampling made of them, and however the prompt was cut."""
    monkeypatch.setattr(engine_module, "ROWS_SCORED_AT_ONCE", rows)
    asking = replace(RICH, top_logprobs=4, prompt_logprobs=2)
    planner = Planner(engine, chunk=chunk)
    reports = [planner.iterate(starts=[Request(prompt=(7, 8)), Request(prompt=PROMPT, sampling=asking, max_tokens=9)])]
    scored = planner.running()[1]
    while scored.finish is None:
        reports.append(planner.iterate(frees=[running for running in planner.running() if running.finish]))
    planner.finish()
    tokens = [*PROMPT, *scored.output]
    with torch.inference_mode():
        expected = torch.log_softmax(reference(torch.tensor([tokens])).logits[0], dim=-1)
    found = scores_of(reports, scored.slot)
    assert sorted(found) == list(range(1, len(tokens)))
    for position, scores in found.items():
        row = expected[position - 1]
        assert scores.own == pytest.approx([float(row[tokens[position]])], abs=1e-4)
        best = row.topk(2 if position < len(PROMPT) else 4)
        assert scores.top == pytest.approx(best.values.tolist(), abs=1e-4)
        assert scores.top_ids == tuple(best.indices.tolist())
    assert all(encode(report) for report in reports)


@pytest.mark.parametrize("chunk", [3, 100])
def test_rich_sampling_does_not_depend_on_neighbours_chunks_or_moves(engine: Engine, chunk: int) -> None:
    """Penalties count what the sequence has, which comes in full when it starts again anywhere."""
    request = Request(prompt=PROMPT, sampling=RICH, max_tokens=20)
    alone = generate(engine, request)[0]
    others = [Request(prompt=(5, 6, 7), sampling=replace(RICH, seed=seed), max_tokens=20) for seed in (6, 7)]
    assert generate(engine, others[0], request, others[1], Request(prompt=(9,)), chunk=chunk)[1] == alone
    assert len(alone) >= RICH.min_tokens
    for split in (1, 5, len(alone) - 1):
        moved = replace(request, emitted=tuple(alone[:split]))
        assert generate(engine, others[0], moved, chunk=chunk)[1] == alone[split:]


def test_log_probabilities_of_a_prompt_come_once_although_it_is_computed_again(engine: Engine) -> None:
    """One that has output was reported on before its first token; its origin has them."""
    asking = replace(GREEDY, prompt_logprobs=1)
    planner = Planner(engine)
    report = planner.iterate(starts=[Request(prompt=PROMPT, sampling=asking, emitted=(4, 5), max_tokens=3)])
    planner.finish()
    assert report.logprobs == ()


@pytest.mark.parametrize(
    "bad",
    [
        Sampling(temperature=float("nan")),
        Sampling(repetition_penalty=-1.0),
        Sampling(logit_bias=((VOCAB_SIZE, 1.0),)),
        Sampling(temperature=0.0, top_logprobs=1000),
        Sampling(temperature=0.0, min_tokens=1, stop_token_ids=tuple(range(VOCAB_SIZE))),
    ],
    ids=lambda bad: str(bad)[:60],
)
def test_a_bad_value_fails_its_sequence_and_not_the_batch(engine: Engine, bad: Sampling) -> None:
    """Whatever got past the gateway."""
    good = [Request(prompt=PROMPT, sampling=RICH), Request(prompt=PROMPT)]
    alone = [generate(engine, request)[0] for request in good]
    planner = Planner(engine)
    report = planner.iterate(starts=[good[0], Request(prompt=(5, 6), sampling=bad), good[1]])
    started = planner.running()
    assert report.finished == ((started[1].slot, "failed"),)
    planner.finish()
    assert [started[0].output, started[2].output] == alone


def test_a_prompt_that_cannot_be_scored_fails_alone(engine: Engine) -> None:
    """Its numbers are none, and none may reach the wire."""
    embedding = embedding_of(engine)
    kept = embedding[50].clone()
    embedding[50] = float("nan")
    try:
        planner = Planner(engine, chunk=2)
        asking = replace(GREEDY, prompt_logprobs=1)
        never = replace(GREEDY, logit_bias=((50, -1e9),))  # the sound one must not choose that token itself
        requests = Request(prompt=(5, 6, 50, 7, 8), sampling=asking), Request(prompt=(5, 6), sampling=never)
        reports = [planner.iterate(starts=requests)]
        broken, sound = planner.running()
        reports.append(planner.iterate())
        assert reports[1].finished == ((broken.slot, "failed"),)
        assert all(encode(report) for report in reports)
        planner.finish()
        assert len(sound.output) == 6
    finally:
        embedding[50] = kept
