import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat import ChatEndpoint
from gateway.chunks import ChoiceJson, ChunkWriter, ReplyHead, Usage
from gateway.completions import CompletionEndpoint

HEAD = ReplyHead(reply_id='id"\\', created=5, model="org/model ü", service_tier="flex")
CHOICES = [ChatEndpoint.choice, CompletionEndpoint.choice]


def read(event: bytes) -> Any:
    """The JSON of one event."""
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[len(b"data: ") :])


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("include_usage", [False, True])
@given(text=st.text(min_size=1))
def test_a_chunk_put_together_from_bytes_is_the_chunk(choice: ChoiceJson, include_usage: bool, text: str) -> None:
    """Whatever the text holds: quotes, line feeds, separators that end a line elsewhere."""
    chunk = read(ChunkWriter(HEAD, choice, include_usage=include_usage).text(text))
    assert (chunk["id"], chunk["created"], chunk["model"]) == (HEAD.reply_id, HEAD.created, HEAD.model)
    (given_choice,) = chunk["choices"]
    assert (given_choice["delta"]["content"] if "delta" in given_choice else given_choice["text"]) == text
    assert given_choice["finish_reason"] is None
    assert ("usage" in chunk) == include_usage


@pytest.mark.parametrize("choice", CHOICES)
def test_the_end_is_a_choice_without_text_then_usage_without_choice(choice: ChoiceJson) -> None:
    """As OpenAI orders them."""
    writer = ChunkWriter(HEAD, choice, include_usage=True)
    end = read(writer.finish("length"))
    assert end["choices"][0]["finish_reason"] == "length"
    usage = read(writer.usage(Usage(prompt_tokens=2, completion_tokens=3)))
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def test_no_text_is_no_event() -> None:
    """A token that only begins a character has nothing to show yet."""
    assert ChunkWriter(HEAD, CHOICES[0], include_usage=False).text("") == b""
