"""What a body may say: wrong values, unknown fields, and what would change the answer."""

from __future__ import annotations

import pytest
from pydantic.fields import FieldInfo
from pydantic_core.core_schema import any_schema

from gateway.errors import Refused
from gateway.schema import Neutral, shorten
from gateway.schema_completions import CompletionRequest
from gateway.schema_refused import RefusedInChat, RefusedInCompletions, RefusedOfSglang, RefusedOfVllm
from tests.gateway.bodies import COMPLETION, chat, completion, refused_param


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
        ({"stop": ""}, "stop"),
        ({"stop": ["x", ""]}, "stop[1]"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["a"] * 100_000}, "stop"),
        ({"stop": "a" * 257}, "stop"),
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
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"temprature": 1}, "temprature"),
        ({"chat_template_kwargs": {"thinking": "yes"}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"thinking": {}}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"thinking": float("nan")}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"thinking": 1_000_001}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs.a b"),
        ({"chat_template_kwargs": {f"a{index}": 1 for index in range(17)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
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
        ({"messages": [{"role": "user", "content": [{"type": 5}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "messages[0].tool_calls"),
    ],
)
def test_a_wrong_value_is_refused_and_named(fields: dict[str, object], param: str) -> None:
    """A06, A14, A18, A19: a client can mend only what it is told, and a sampler trusts what it is given."""
    assert refused_param(chat, **fields) == param


REFUSED = [
    (name, field)
    for model in (RefusedOfVllm, RefusedOfSglang, RefusedInChat, RefusedInCompletions)
    for name, field in model.model_fields.items()
]


@pytest.mark.parametrize("value", [True, "garbage", {"type": "json_object"}, ["x"], 0.5])
@pytest.mark.parametrize(("param", "field"), REFUSED)
def test_what_would_change_the_answer_is_refused_by_name(param: str, field: FieldInfo, value: object) -> None:
    """Ignoring a parameter gives a wrong answer that looks right."""
    (neutral,) = [annotation for annotation in field.metadata if isinstance(annotation, Neutral)]
    accepted = neutral.__get_pydantic_json_schema__(any_schema(), lambda schema: schema)["enum"]
    body = completion if param == "suffix" else chat
    for harmless in accepted:
        body(**{param: harmless})
    if value not in accepted:
        assert refused_param(body, **{param: value}) == param


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file"},
    ],
)
def test_a_part_that_is_no_text_is_named_as_such(part: dict[str, object]) -> None:
    """Its own fields are known parameters to whoever sends it."""
    with pytest.raises(
        Refused, match=r"should be a text part: no others \(images, audio, files\) are served"
    ) as refused:
        chat(messages=[{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}])
    assert refused.value.param == "messages[0].content[1]"


def test_true_is_not_one() -> None:
    """Equal in Python, two things in JSON."""
    assert refused_param(chat, length_penalty=True) == "length_penalty"


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
        "stop_token_ids": [],
        "stream": None,
    }
    assert chat(**neutral).sampling(fresh_seed=7) == chat().sampling(fresh_seed=7)


@pytest.mark.parametrize("field", ["model", "prompt"])
def test_what_is_needed_is_asked_for_by_name(field: str) -> None:
    """The commonest mistake of all."""
    with pytest.raises(Refused) as refused:
        CompletionRequest.parse({name: value for name, value in COMPLETION.items() if name != field})
    assert refused.value.param == field


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
    """A22: error texts go to logs and terminals."""
    assert refused_param(chat, **{"x" * 300_000: 1}) == "x" * 64 + "..."
    assert shorten("a\x1b[31m\n\u202e") == "a\\x1b[31m\\n\\u202e"


def test_variables_of_the_template_are_what_was_sent() -> None:
    """A template writes 3 and 3.0, true and 1 in different ways."""
    variables = {"whole": 3, "part": 1.5, "flag": True, "nothing": None}
    rendering = chat(chat_template_kwargs=variables).rendering
    assert [(name, type(value)) for name, value in rendering.variables.items()] == [
        (name, type(value)) for name, value in variables.items()
    ]
