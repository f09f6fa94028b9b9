"""The model that is served by default: its greedy output is that of transformers, alone and in a crowd."""

from __future__ import annotations

import json
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tests.workers.engine_support import Options, Outcome, RandomDriver, Request, reference_output, ties_between
from workers.engine import Engine
from workers.engine_settings import DEFAULT_MODEL
from workers.loading import load_engine
from workers.weights import ModelFolder, default_cache, find_model

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

QUESTIONS = (
    "Hi",
    "What is the capital of France?",
    "Name three primary colours.",
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "What is 12 times 12?",
    "Translate 'good morning' into Spanish.",
    "How do I boil an egg?",
    "Who wrote Hamlet?",
    "Give me a synonym for 'happy'.",
)
MAX_TOKENS = 8
ALONE_EVERY = {"fused": 1, "packed": 4}
"""Which of the prompts run alone: oneDNN takes a second for each length that it has not met."""


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    """Converted once and kept, as in service."""
    return find_model(DEFAULT_MODEL, default_cache(), lambda _: None)


@pytest.fixture(scope="module", params=["fused", "packed"])
def forward(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def engine(folder: ModelFolder, forward: str) -> Engine:
    options = Options(
        model=str(folder.path), served_model_name=DEFAULT_MODEL, max_slots=24, block_size=16, forward=forward
    )
    return load_engine(options, lambda _: None)


@pytest.fixture(scope="module")
def reference(folder: ModelFolder) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32)


@pytest.fixture(scope="module")
def requests_(folder: ModelFolder) -> list[Request]:
    """Chats of some ten to some thirty tokens, and bare texts of 1 to 250."""
    tokenizer = AutoTokenizer.from_pretrained(folder.path)
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)["input_ids"]
        for question in QUESTIONS
    ]
    text = tokenizer("The history of the lighthouse begins long before " * 30)["input_ids"]
    texts = [text[:length] for length in (1, 2, 5, 15, 16, 17, 33, 64, 100, 250)]
    return [Request(tokens=tuple(ids), max_tokens=MAX_TOKENS) for ids in (*chats, *texts)]


@pytest.fixture(scope="module")
def expected(reference: PreTrainedModel, requests_: list[Request]) -> list[list[int]]:
    return [reference_output(reference, request) for request in requests_]


def compare(
    reference: PreTrainedModel, requests: list[Request], outcomes: list[Outcome], expected: list[list[int]]
) -> None:
    ties = sum(
        ties_between(reference, request, outcome.tokens, theirs)
        for request, outcome, theirs in zip(requests, outcomes, expected, strict=True)
    )
    print(f"{len(requests)} prompts, {ties} parted at a tie below 1e-4")


def test_one_by_one_the_output_is_that_of_transformers(
    engine: Engine, forward: str, reference: PreTrainedModel, requests_: list[Request], expected: list[list[int]]
) -> None:
    """Neither forward has anything of transformers' code but the rotary embedding."""
    every = ALONE_EVERY[forward]
    alone = requests_[::every]
    outcomes = [RandomDriver(engine, Random(1), largest_chunk=4096).run([request])[0] for request in alone]
    compare(reference, alone, outcomes, expected[::every])


def test_all_at_once_and_chunked_the_output_is_that_of_transformers(
    engine: Engine, reference: PreTrainedModel, requests_: list[Request], expected: list[list[int]]
) -> None:
    """Sharing batches with twenty others changes nothing."""
    outcomes = RandomDriver(engine, Random(2), largest_chunk=48).run(requests_)
    compare(reference, requests_, outcomes, expected)


def test_the_card_tells_the_gateway_what_is_served(engine: Engine) -> None:
    """Admission rests on these numbers; the tokenizer's own idea of a context is 1e30."""
    card = engine.card
    assert (card.name, card.context_length, card.vocab_size, card.eos_ids) == (DEFAULT_MODEL, 8192, 49152, (2,))
    files = engine.tokenizer_files()
    assert files.digest == card.tokenizer_digest
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= {name for name, _ in files.files}
    assert json.loads(dict(files.files)["tokenizer_config.json"])["model_max_length"] == 8192
