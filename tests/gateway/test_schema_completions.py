"""What only `/v1/completions` takes: its prompts, and no output at all."""

from __future__ import annotations

import pytest

from gateway.schema_generation import MAX_SEQUENCES
from tests.gateway.bodies import completion, refused_param


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([""], "prompt[0]"),
        (["a", ""], "prompt[1]"),
        ([[]], "prompt[0]"),
        (None, "prompt"),
        ([1, -1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], [2, "a"]], "prompt[1][1]"),
        ([True], "prompt[0]"),
        ([1 << 32], "prompt[0]"),
        ([1 << 64], "prompt[0]"),
        ([1.0], "prompt[0]"),
        (5, "prompt"),
        ({"a": 1}, "prompt"),
    ],
)
def test_a_prompt_is_not_empty_and_of_one_kind(prompt: object, param: str) -> None:
    """A01: an empty prompt has no token to continue from, and a worker must never see one."""
    assert refused_param(completion, prompt=prompt) == param


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        (["a"], ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2]], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_a_prompt_may_be_one_or_several(prompt: object, expected: object) -> None:
    """Evaluation clients send many at once, and wrap a single one in a list."""
    assert completion(prompt=prompt).prompts == expected


def test_choices_times_prompts_have_a_cap() -> None:
    """A10: each takes a place in the queue and a slot."""
    assert len(completion(prompt=["a"] * MAX_SEQUENCES).prompts) == MAX_SEQUENCES
    assert refused_param(completion, prompt=["a"] * (MAX_SEQUENCES + 1)) == "prompt"
    assert refused_param(completion, prompt=[[1]] * 100_000) == "prompt"
    assert completion(prompt=["a", "b"], n=MAX_SEQUENCES // 2).num_choices == MAX_SEQUENCES // 2
    assert refused_param(completion, prompt=["a", "b"], n=MAX_SEQUENCES // 2 + 1) == "n"


def test_no_output_is_wanted_only_where_the_prompt_is_shown() -> None:
    """A11: evaluation clients score a prompt so; without an echo the answer would be empty."""
    assert completion(max_tokens=0, echo=True).output_limit == 0
    assert refused_param(completion, max_tokens=0) == "max_tokens"
    assert refused_param(completion, max_tokens=-1, echo=True) == "max_tokens"


def test_best_of_chooses_nothing() -> None:
    """Picking the best of several would need all of them to the end."""
    assert completion(n=3, best_of=3).num_choices == 3
    assert completion(best_of=1).num_choices == 1
    assert refused_param(completion, best_of=3) == "best_of"
    assert refused_param(completion, n=3, best_of=2) == "best_of"


def test_the_prompt_is_scored_for_whoever_wants_it() -> None:
    """An echo with log-probabilities, or vLLM's parameter; the wider counts."""
    assert completion(logprobs=3).num_prompt_logprobs is None
    assert completion(logprobs=3, echo=True).num_prompt_logprobs == 3
    assert completion(logprobs=3, echo=True, prompt_logprobs=5).num_prompt_logprobs == 5
    assert completion(prompt_logprobs=0).num_prompt_logprobs == 0
