"""lm-eval through the gateway, and on transformers in this process: the same numbers.

The harness asks for log-probabilities of prompts (``echo`` with ``max_tokens`` 1), as every evaluation by likelihood
and every perplexity does, in batches of token ids; and for greedy continuations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

from tests.system.cluster import Cluster
from workers.engine_settings import DEFAULT_MODEL
from workers.weights import default_cache, find_model

pytestmark = [pytest.mark.system, pytest.mark.torch, pytest.mark.timeout(900)]

TASKS = ["capitals", "prose", "questions"]
CONTEXT = 64  # a text that is longer is read in several windows
WINDOW = CONTEXT - 2  # as the harness cuts windows for an API: one place is for the output, one for what precedes
NATS = 2e-3  # of a sum over up to 64 tokens, each of which float32 adds up in another order


@pytest.fixture(scope="module")
def direct() -> dict[str, Any]:
    """What transformers says, on a thread of its own: the other core is the worker's."""
    torch.set_num_threads(1)
    folder = str(find_model(DEFAULT_MODEL, default_cache(), lambda _: None).path)
    return evaluate(HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=1, max_length=WINDOW))


@pytest.fixture(scope="module")
def served(real: Cluster) -> dict[str, Any]:
    """What the gateway says, asked for four prompts at a time by several at once."""
    return evaluate(
        LocalCompletionsAPI(
            model=DEFAULT_MODEL,
            base_url=f"{real.base_url}/completions",
            tokenizer=str(find_model(DEFAULT_MODEL, default_cache(), lambda _: None).path),
            tokenizer_backend="huggingface",
            max_length=CONTEXT,
            batch_size=4,
            num_concurrent=4,
        )
    )


def evaluate(model: LM) -> dict[str, Any]:
    manager = TaskManager(include_path=str(Path(__file__).parent / "tasks"))
    results = simple_evaluate(model=model, tasks=TASKS, task_manager=manager, bootstrap_iters=0, log_samples=True)
    assert results is not None
    return dict(results)


def values(results: dict[str, Any], task: str) -> list[Any]:
    """What came of each request of each document."""
    return [sample["filtered_resps"] for sample in results["samples"][task]]


def test_likelihoods_of_choices_are_the_same(direct: dict[str, Any], served: dict[str, Any]) -> None:
    """To the last bits of float32, and with the same mark for a greedy continuation."""
    for ours, theirs in zip(values(served, "capitals"), values(direct, "capitals"), strict=True):
        assert [is_greedy for _, is_greedy in ours] == [is_greedy for _, is_greedy in theirs]
        assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], abs=NATS)


def test_likelihoods_of_whole_texts_are_the_same(direct: dict[str, Any], served: dict[str, Any]) -> None:
    """Perplexities: also of a text of several windows, and of characters that tokens cut."""
    for ours, theirs in zip(values(served, "prose"), values(direct, "prose"), strict=True):
        assert float(ours[0]) == pytest.approx(float(theirs[0]), abs=NATS * 4)


def test_greedy_answers_are_the_same(direct: dict[str, Any], served: dict[str, Any]) -> None:
    """Up to the stop string."""
    assert values(served, "questions") == values(direct, "questions")


@pytest.mark.parametrize("task", TASKS)
def test_the_scores_are_the_same(direct: dict[str, Any], served: dict[str, Any], task: str) -> None:
    """What would stand in a table."""
    ours, theirs = served["results"][task], direct["results"][task]
    numbers = {name for name, value in theirs.items() if isinstance(value, float)}
    assert numbers
    for name in numbers:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4), name
