"""Tokens to text, a token at a time: the text that all of them together have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer, byte_table, without
from tests.gateway.tiny_tokenizer import (
    FIRST_BYTE_ID,
    ids_of_bytes,
    ids_of_text,
    sentencepiece_like,
    tiny_tokenizer,
)

SPECIAL_IDS = frozenset({0, 1, 2})
FULL_TABLE = byte_table(tiny_tokenizer(), SPECIAL_IDS)
TABLE = without(FULL_TABLE, SPECIAL_IDS)
SAMPLE = "děľá 🌶️ 👨‍👩‍👧 今天 สวัสดี"


def text_of(detokenizer: Detokenizer, token_ids: tuple[int, ...]) -> str:
    return "".join(map(detokenizer.feed, token_ids)) + detokenizer.flush()


FALLBACK = sentencepiece_like()


def test_characters_split_over_tokens_come_out_whole() -> None:
    """One byte per token is how models write rare scripts; U+FFFD on the wire cannot be mended by a client."""
    detokenizer = ByteDetokenizer(TABLE, ())
    parts = [detokenizer.feed(token_id) for token_id in ids_of_bytes(SAMPLE.encode())]
    assert all("\ufffd" not in part for part in parts)
    assert "".join(parts) == SAMPLE


@given(st.text(max_size=40))
def test_byte_tokens_give_back_any_text(text: str) -> None:
    """The whole text and its tokens one by one are the same."""
    token_ids = tuple(tiny_tokenizer().encode(text, add_special_tokens=False).ids)
    plain = tuple(token_id for token_id in token_ids if token_id not in SPECIAL_IDS)
    assert text_of(ByteDetokenizer(TABLE, ()), plain) == tiny_tokenizer().decode(plain)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_text_decode_as_the_whole_would(data: bytes) -> None:
    """Invalid bytes are replaced once each, wherever the tokens cut them."""
    assert text_of(ByteDetokenizer(TABLE, ()), ids_of_bytes(data)) == data.decode("utf-8", "replace")


def test_special_tokens_and_padding_ids_make_no_text() -> None:
    """An eos in the middle (ignore_eos) or an id past the tokenizer's vocabulary must not show."""
    assert text_of(ByteDetokenizer(TABLE, ()), (*ids_of_text("a"), 1, 2, 100_000, *ids_of_text("b"))) == "ab"


def test_special_tokens_are_text_where_they_are_asked_for() -> None:
    """A client may parse them itself."""
    assert text_of(ByteDetokenizer(FULL_TABLE, ()), (*ids_of_text("a"), 2)) == "a<|im_end|>"
    assert text_of(WindowDetokenizer(FALLBACK, frozenset(), ()), (1, 0)) == "Hello<s>"


def test_added_tokens_that_are_not_special_are_text() -> None:
    """A model writes tool tags with them, and the client parses those."""
    (tag,) = tiny_tokenizer().encode("<tool>", add_special_tokens=False).ids
    assert text_of(ByteDetokenizer(TABLE, ()), (tag,)) == "<tool>"


@pytest.mark.parametrize(("in_prompt", "in_output"), [(1, 2), (2, 1)])
def test_a_character_begun_in_the_prompt_belongs_to_the_prompt(in_prompt: int, in_output: int) -> None:
    """Nothing of the prompt may leak into the first delta, nor may its half character become U+FFFD."""
    data = "今".encode()
    prompt = ids_of_text("secret words ") + ids_of_bytes(data[:in_prompt])
    output = ids_of_bytes(data[in_prompt:]) + ids_of_text("next")
    assert len(data) - in_prompt == in_output
    assert text_of(ByteDetokenizer(TABLE, prompt), output) == "next"


def test_output_that_does_not_complete_the_prompts_character_is_whole() -> None:
    """Only continuation bytes are dropped, and only as many as the prompt lacked."""
    prompt = ids_of_bytes("今".encode()[:2])
    assert text_of(ByteDetokenizer(TABLE, prompt), ids_of_text("abc")) == "abc"


def test_a_window_decoder_keeps_the_space_after_the_prompt() -> None:
    """Decoded alone the first word would lose its space, and prompt plus output would run together."""
    assert text_of(WindowDetokenizer(FALLBACK, frozenset({0}), (0, 1)), (2, 3)) == " world!"


def test_a_window_decoder_shows_nothing_of_the_prompt() -> None:
    """A prompt that ends inside a character is left out of the window altogether."""
    prompt = (1, *(FIRST_BYTE_ID + byte for byte in "今".encode()[:2]))
    shown = text_of(WindowDetokenizer(FALLBACK, frozenset({0}), prompt), (2,))
    assert "Hello" not in shown
    assert shown == "world"


@given(st.text(alphabet=st.characters(min_codepoint=0x80, exclude_categories=["Cs"]), max_size=20))
def test_a_window_decoder_puts_byte_tokens_together(text: str) -> None:
    """Byte fallback decodes a run of bytes all or nothing; windows must not cut a run inside a character."""
    token_ids = tuple(FIRST_BYTE_ID + byte for byte in text.encode())
    detokenizer = WindowDetokenizer(FALLBACK, frozenset({0}), (0, 1))
    parts = [detokenizer.feed(token_id) for token_id in token_ids]
    assert "".join(parts) + detokenizer.flush() == text


def test_a_window_decoder_gives_up_on_endless_invalid_bytes() -> None:
    """Holding them for ever would cost more with each token."""
    detokenizer = WindowDetokenizer(FALLBACK, frozenset({0}), (0, 1))
    parts = [detokenizer.feed(FIRST_BYTE_ID + 0xFF) for _ in range(200)]
    assert any(parts)
    assert "".join(parts) + detokenizer.flush() == "\ufffd" * 200
