"""Chunks put together from bytes: the very JSON that would be serialised."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat import ChatEndpoint
from gateway.chunks import ChoiceJson, ChunkWriter, ReplyHead, Usage, usage_chunk
from gateway.completions import CompletionEndpoint

HEAD = ReplyHead(reply_id='id"\\', created=5, model="org/model ü", service_tier="flex")
CHOICES = [ChatEndpoint.choice, CompletionEndpoint.choice]


def read(event: bytes) -> Any:
    """The JSON of one event."""
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[len(b"data: ") :])


USAGE = Usage(prompt_tokens=2, completion_tokens=3, cached_tokens=1)


def running() -> bytes:
    return json.dumps(USAGE.as_json()).encode()


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("usage_json", [None, lambda: b"null", running])
@given(text=st.text(min_size=1))
def test_a_chunk_put_together_from_bytes_is_the_chunk(
    choice: ChoiceJson, usage_json: Callable[[], bytes] | None, text: str
) -> None:
    """Whatever the text holds: quotes, line feeds, separators that end a line elsewhere."""
    chunk = read(ChunkWriter(HEAD, choice, 7, usage_json).text(text))
    assert (chunk["id"], chunk["created"], chunk["model"]) == (HEAD.reply_id, HEAD.created, HEAD.model)
    (given_choice,) = chunk["choices"]
    assert given_choice["index"] == 7
    assert (given_choice["delta"]["content"] if "delta" in given_choice else given_choice["text"]) == text
    assert given_choice["finish_reason"] is None
    assert given_choice["logprobs"] is None
    assert chunk.get("usage", "none") == ("none" if usage_json is None else json.loads(usage_json()))


@pytest.mark.parametrize("choice", CHOICES)
def test_the_end_is_a_choice_without_text_then_usage_without_choice(choice: ChoiceJson) -> None:
    """As OpenAI orders them."""
    end = read(ChunkWriter(HEAD, choice, 0, lambda: b"null").finish("length", None))
    assert end["choices"][0]["finish_reason"] == "length"
    assert end["choices"][0]["stop_reason"] is None
    usage = read(usage_chunk(HEAD, choice, USAGE))
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize(("stop_reason"), ['a "stop"', 5])
def test_the_end_names_what_ended_the_choice(stop_reason: str | int) -> None:
    """A client that gave several stops wants to know which."""
    end = read(ChunkWriter(HEAD, CHOICES[0], 0).finish("stop", stop_reason))
    assert end["choices"][0]["stop_reason"] == stop_reason


def test_no_text_is_no_event() -> None:
    """A token that only begins a character has nothing to show yet."""
    assert ChunkWriter(HEAD, CHOICES[0], 0).text("") == b""


@pytest.mark.parametrize("choice", CHOICES)
def test_log_probabilities_stand_beside_their_text(choice: ChoiceJson) -> None:
    """Also those whose text never came out, at the end."""
    writer = ChunkWriter(HEAD, choice, 0)
    for text in ("a", ""):
        assert read(writer.text(text, b'{"x":1}'))["choices"][0]["logprobs"] == {"x": 1}
