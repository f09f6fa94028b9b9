"""The parameters that both endpoints share."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import Refused
from gateway.schema_generation import MAX_BIASES, MAX_SEQUENCES, MAX_STOP_IDS, SEED_MASK
from tests.gateway.bodies import chat, completion, refused_param
from workers.wire import Sampling

BODIES = [chat, completion]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    ("param", "lowest", "highest"),
    [
        ("temperature", 0, 2),
        ("top_p", 0, 1),
        ("min_p", 0, 1),
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
        ("repetition_penalty", 0.01, 100),
    ],
)
def test_a_number_out_of_its_range_or_none_at_all_is_refused(
    body: Any, param: str, lowest: float, highest: float
) -> None:
    """A06, A08: one comparison with NaN lets it through, and it poisons the batch that it joins."""
    nan, infinity = float("nan"), float("inf")
    for value in (lowest - 0.0001, highest + 0.0001, 999_999, nan, infinity, -infinity, "0.7", True, [1]):
        assert refused_param(body, **{param: value}) == param
    for value in (lowest, highest, None):
        body(**{param: value})


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    ("param", "most"),
    [
        ("n", MAX_SEQUENCES),
        ("prompt_logprobs", 20),
    ],
)
def test_a_count_that_multiplies_work_has_a_cap(body: Any, param: str, most: int) -> None:
    """A10: one small request must not cost a million units."""
    assert getattr(body(**{param: most}), param) == most
    for value in (most + 1, 5_000_000, 10**9, 1 << 64, -1, 1.0, True):
        assert refused_param(body, **{param: value}) == param


def test_the_likeliest_tokens_are_at_most_twenty() -> None:
    """A10: each costs a name and a number at every token."""
    assert chat(logprobs=True, top_logprobs=20).num_top_logprobs == 20
    assert completion(logprobs=20).num_top_logprobs == 20
    for count in (21, 10**9):
        assert refused_param(chat, logprobs=True, top_logprobs=count) == "top_logprobs"
        assert refused_param(completion, logprobs=count) == "logprobs"


def test_lists_have_caps() -> None:
    """A10: so many stops or biases would be compared at every token."""
    ids = list(range(MAX_STOP_IDS + 1))
    biases = {str(token_id): 1 for token_id in range(MAX_BIASES)}
    assert chat(stop_token_ids=ids[:-1], logit_bias=biases).stop_token_ids == tuple(ids[:-1])
    assert refused_param(chat, stop_token_ids=ids) == "stop_token_ids"
    assert refused_param(chat, logit_bias=biases | {"99999": 1}) == "logit_bias"
    assert chat(stop=["a"] * 4).stops == ("a",) * 4
    assert refused_param(chat, stop=["a"] * 5) == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {"01": 1}}, "logit_bias.01"),
        ({"logit_bias": {"1\n": 1}}, "logit_bias.1\\n"),
        ({"logit_bias": {"1": 100.5}}, "logit_bias.1"),
        ({"logit_bias": {"1": "5"}}, "logit_bias.1"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1 << 32]}, "stop_token_ids[0]"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1 << 31}, "top_k"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_what_a_worker_could_not_use_is_refused_and_named(fields: dict[str, object], param: str) -> None:
    """A sequence that fails in the worker is a 500, and its client cannot know why."""
    for body in BODIES:
        assert refused_param(body, **fields) == param


@pytest.mark.parametrize("param", ["logit_bias", "stop_token_ids"])
def test_a_token_that_the_model_does_not_have_is_refused(param: str) -> None:
    """It would index past a row of logits."""
    fields = {"logit_bias": {"299": 1, "300": -1}, "stop_token_ids": [299, 300]}
    body = chat(**{param: fields[param]})
    body.check_token_ids(301)
    with pytest.raises(Refused) as refused:
        body.check_token_ids(300)
    assert refused.value.param == param


def test_sampling_parameters_reach_the_worker_as_they_are() -> None:
    """And a seed of either sign fits the generator's."""
    body = chat(
        temperature=0,
        top_p=0.5,
        top_k=7,
        min_p=0.25,
        seed=-1,
        presence_penalty=1,
        frequency_penalty=-1.5,
        repetition_penalty=2,
        logit_bias={"5": -100, "6": 0.5},
        min_tokens=2,
        stop_token_ids=[3, 4],
        ignore_eos=True,
        logprobs=True,
        top_logprobs=3,
        prompt_logprobs=2,
    )
    assert body.sampling(fresh_seed=7, choice=4) == Sampling(
        temperature=0.0,
        top_p=0.5,
        top_k=7,
        min_p=0.25,
        seed=SEED_MASK,
        choice=4,
        presence_penalty=1.0,
        frequency_penalty=-1.5,
        repetition_penalty=2.0,
        logit_bias=((5, -100.0), (6, 0.5)),
        min_tokens=2,
        stop_token_ids=(3, 4),
        ignore_eos=True,
        top_logprobs=3,
        prompt_logprobs=2,
    )
    assert chat().sampling(fresh_seed=7) == Sampling(seed=7)


@pytest.mark.parametrize("top_k", [None, 0, -1])
def test_top_k_may_be_switched_off_in_every_dialect(top_k: int | None) -> None:
    """VLLM says 0, SGLang says -1."""
    assert chat(top_k=top_k).sampling(fresh_seed=0).top_k is None


def test_a_top_logprobs_of_none_is_the_tokens_own_alone() -> None:
    """``logprobs`` without ``top_logprobs`` is the commonest form."""
    assert chat(logprobs=True).num_top_logprobs == 0
    assert chat(logprobs=False).num_top_logprobs is None
    assert refused_param(chat, top_logprobs=3) == "top_logprobs"
    assert refused_param(chat, logprobs=False, top_logprobs=3) == "top_logprobs"


@pytest.mark.parametrize("fields", [{"include_stop_str_in_output": True}, {"no_stop_trim": True}])
def test_both_dialects_can_ask_for_the_stop_string(fields: dict[str, object]) -> None:
    """VLLM's name and SGLang's."""
    assert chat(**fields).shows_stop
    assert not chat().shows_stop
