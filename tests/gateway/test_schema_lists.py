"""Lists and objects of a body: bounded in length, and in the errors that they can make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.errors import Refused
from gateway.schema_chat import ChatCompletionRequest
from gateway.schema_completions import CompletionRequest
from gateway.schema_tokenize import DetokenizeRequest
from tests.gateway.bodies import CHAT, COMPLETION, chat, completion, refused_param

MANY = 200_000


def user(content: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("body", "made", "param"),
    [
        (completion, lambda: {"prompt": [-1] * MANY}, "prompt[0]"),
        (completion, lambda: {"prompt": [1] * MANY + [1 << 32]}, f"prompt[{MANY}]"),
        (completion, lambda: {"prompt": [1] * MANY + ["a"]}, f"prompt[{MANY}]"),
        (completion, lambda: {"prompt": [[-1] * 1000] * 100}, "prompt[0][0]"),
        (completion, lambda: {"prompt": ["a"] + [1] * MANY}, "prompt[1]"),
        (chat, lambda: {"stop": [1] * MANY}, "stop[0]"),
        (chat, lambda: {"stop_token_ids": [-1] * MANY}, "stop_token_ids"),
        (chat, lambda: {"logit_bias": {f"x{index}": 1 for index in range(MANY)}}, "logit_bias"),
        (chat, lambda: {"metadata": {str(index): 1 for index in range(MANY)}}, "metadata"),
        (chat, lambda: {f"x{index}": 1 for index in range(MANY)}, "x0"),
        (chat, lambda: {"messages": [{}] * MANY}, "messages[0].role"),
        (chat, lambda: user([{}] * 4096), "messages[0].content[0].type"),
        (chat, lambda: user([{"type": "text", "text": ""}] * 4097), "messages"),
        (chat, lambda: {"messages": [{f"x{index}": 1 for index in range(MANY)}]}, "messages[0].x0"),
    ],
)
def test_a_body_full_of_errors_costs_one(body: Any, made: Callable[[], dict[str, object]], param: str) -> None:
    """A10: an error for each of a million members took half a minute, in which nobody else was served."""
    fields = made()  # here, for they are large
    assert refused_param(body, **fields) == param
    model, plain = (CompletionRequest, COMPLETION) if body is completion else (ChatCompletionRequest, CHAT)
    with pytest.raises(ValidationError) as raised:
        model.model_validate(plain | fields)
    assert raised.value.error_count() < 10  # of the first place, and of what holds it


def test_token_ids_are_whole_numbers_of_32_bits() -> None:
    """As the wire to the workers has them."""
    ids = [0, 1, (1 << 32) - 1]
    assert DetokenizeRequest.parse({"model": "m", "tokens": ids}).tokens == tuple(ids)
    for wrong in (-1, 1 << 32, 1.0, True, None, "1", [1]):
        with pytest.raises(Refused) as refused:
            DetokenizeRequest.parse({"model": "m", "tokens": [5, wrong]})
        assert refused.value.param == "tokens[1]"


def test_the_description_of_token_ids_has_their_bounds() -> None:
    """It is made from the models, and this one is not pydantic's own."""
    tokens = DetokenizeRequest.model_json_schema()["properties"]["tokens"]
    assert tokens["items"] == {"type": "integer", "minimum": 0, "maximum": (1 << 32) - 1}
    assert tokens["maxItems"] == 1 << 18
    assert "minItems" not in tokens
