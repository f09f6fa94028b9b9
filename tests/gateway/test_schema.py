import pytest

from gateway.errors import Reason, Refused
from gateway.schema import SEED_MASK, shorten
from gateway.schema_chat import ChatCompletionRequest
from gateway.schema_completions import CompletionRequest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": "x"}


def chat(**fields: object) -> ChatCompletionRequest:
    request = ChatCompletionRequest.parse(CHAT | fields)
    request.check()
    return request


def refused_param(**fields: object) -> str | None:
    with pytest.raises(Refused) as refused:
        chat(**fields)
    assert refused.value.reason is Reason.INVALID_VALUE
    assert refused.value.message.isprintable()
    return refused.value.param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "0.7"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.0001}, "temperature"),
        ({"temperature": 2.0001}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_p": 1.0001}, "top_p"),
        ({"temperature": 999999, "top_p": -1, "repetition_penalty": 0}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": 1e30}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"seed": 1 << 63}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"stop": ""}, "stop[0]"),
        ({"stop": ["x", ""]}, "stop[1]"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["a"] * 100_000}, "stop"),
        ({"stop": "a" * 257}, "stop[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"priority": "high"}, "priority"),
        ({"priority": 0.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1 << 31}, "priority"),
        ({"model": 5}, "model"),
        ({"metadata": {"a": []}}, "metadata.a"),
        ({"metadata": {str(key): "" for key in range(17)}}, "metadata"),
        ({"user": 5}, "user"),
        ({"temprature": 1}, "temprature"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "root", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "messages[0].tool_calls"),
    ],
)
def test_a_wrong_value_is_refused_and_named(fields: dict[str, object], param: str) -> None:
    """A client can mend only what it is told; a value let through meets a sampler that trusts it."""
    assert refused_param(**fields) == param


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", 2),
        ("n", 5_000_000),
        ("n", True),
        ("presence_penalty", 0.5),
        ("presence_penalty", "0"),
        ("frequency_penalty", True),
        ("repetition_penalty", 0),
        ("logit_bias", {"1": 5}),
        ("logprobs", True),
        ("top_logprobs", 10**9),
        ("top_k", 5),
        ("min_p", 0.1),
        ("best_of", 3),
        ("response_format", {"type": "json_object"}),
        ("response_format", "garbage"),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("store", True),
        ("reasoning_effort", "high"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(param: str, value: object) -> None:
    """Ignoring a parameter gives a wrong answer that looks right."""
    assert refused_param(**{param: value}) == param


def test_values_that_change_nothing_are_accepted() -> None:
    """Clients send their defaults along."""
    neutral = {
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": {},
        "logprobs": False,
        "top_logprobs": None,
        "top_k": -1,
        "min_p": 0,
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "store": False,
        "metadata": {"a": "b"},
        "user": "someone",
        "temperature": None,
        "top_p": None,
        "max_tokens": None,
        "seed": None,
        "stop": None,
        "stream": None,
    }
    assert chat(**neutral).sampling(fresh_seed=7) == chat().sampling(fresh_seed=7)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([""], "prompt"),
        ([[]], "prompt"),
        (None, "prompt"),
        (["a", "b"], "prompt"),
        ([[1]] * 100_000, "prompt"),
        ([1, -1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([True], "prompt[0]"),
        (5, "prompt"),
    ],
)
def test_a_prompt_is_one_text_or_one_list_of_ids(prompt: object, param: str) -> None:
    """An empty prompt has no token to continue from; several are not served yet."""
    with pytest.raises(Refused) as refused:
        CompletionRequest.parse(COMPLETION | {"prompt": prompt})
    assert refused.value.param == param


@pytest.mark.parametrize(("prompt", "expected"), [("a", "a"), (["a"], "a"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))])
def test_a_list_of_one_prompt_is_that_prompt(prompt: object, expected: object) -> None:
    """Evaluation clients wrap a single prompt in a list."""
    assert CompletionRequest.parse(COMPLETION | {"prompt": prompt}).prompt == expected


@pytest.mark.parametrize("field", ["model", "prompt"])
def test_what_is_needed_is_asked_for_by_name(field: str) -> None:
    """The commonest mistake of all."""
    with pytest.raises(Refused) as refused:
        CompletionRequest.parse({name: value for name, value in COMPLETION.items() if name != field})
    assert refused.value.param == field


def test_sampling_parameters_reach_the_worker_as_they_are() -> None:
    """And a seed of either sign fits the generator's."""
    sampling = chat(temperature=0, top_p=0.5, seed=-1, ignore_eos=True).sampling(fresh_seed=7)
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.ignore_eos) == (0.0, 0.5, SEED_MASK, True)
    assert chat().sampling(fresh_seed=7).seed == 7


def test_text_parts_are_joined_by_a_line_feed() -> None:
    """Templates know one string; parts run together would change words."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(messages=[{"role": "tool", "content": parts, "tool_call_id": "c"}])
    assert request.messages[0].for_template() == {"role": "tool", "content": "a\nb", "tool_call_id": "c"}


def test_an_answer_sent_back_as_the_sdk_writes_it_is_history() -> None:
    """``message.model_dump()`` has fields that say nothing."""
    message = {"role": "assistant", "content": "a", "refusal": None, "annotations": None, "tool_calls": None}
    assert chat(messages=[message]).messages[0].text == "a"


def test_both_names_of_the_limit_may_agree() -> None:
    """Libraries set both to serve old and new servers."""
    assert chat(max_tokens=3, max_completion_tokens=3).output_limit == 3
    assert chat(max_completion_tokens=4).output_limit == 4


def test_a_clients_own_words_are_repeated_short_and_plain() -> None:
    """Error texts go to logs and terminals."""
    assert refused_param(**{"x" * 300_000: 1}) == "x" * 64 + "..."
    assert shorten("a\x1b[31m\n\u202e") == "a\\x1b[31m\\n\\u202e"
