"""What tokens are called in log-probabilities."""

from __future__ import annotations

from gateway.token_names import TokenNames
from gateway.tokens import ChatTokenizer
from tests.gateway.tiny_tokenizer import (
    FIRST_BYTE_ID,
    ids_of_bytes,
    ids_of_text,
    sentencepiece_like,
    tokenizer_files,
)

BYTE_LEVEL = ChatTokenizer(tokenizer_files()).names
WORDS = TokenNames(sentencepiece_like(), None, {0: "<s>"})


def test_a_token_is_called_by_its_text() -> None:
    """Spaces are part of it."""
    (token_id,) = ids_of_text(" ")
    assert (BYTE_LEVEL.text_of(token_id), BYTE_LEVEL.bytes_of(token_id)) == (" ", b" ")
    assert WORDS.text_of(1) == " Hello"
    assert WORDS.text_of(3) == "!"
    assert WORDS.text_of(4) == " "


def test_control_tokens_are_called_by_their_literal() -> None:
    """They make no text, but they are among the likeliest."""
    assert BYTE_LEVEL.text_of(2) == "<|im_end|>"
    assert WORDS.text_of(0) == "<s>"


def test_half_a_character_is_called_by_its_bytes() -> None:
    """B01: each of them apart; one replacement character for all would lose which it was."""
    first, second, _ = ids_of_bytes("今".encode())
    assert (BYTE_LEVEL.text_of(first), BYTE_LEVEL.bytes_of(first)) == ("bytes:\\xe4", b"\xe4")
    assert BYTE_LEVEL.text_of(second) == "bytes:\\xbb"
    assert WORDS.text_of(FIRST_BYTE_ID + 0xE4) == "bytes:\\xe4"
    assert WORDS.text_of(FIRST_BYTE_ID + ord("a")) == "a"


def test_an_id_without_a_token_has_an_empty_name() -> None:
    """Models pad their vocabulary, and a padding id can be sampled."""
    for names in (BYTE_LEVEL, WORDS):
        assert (names.text_of(100_000), names.bytes_of(100_000), names.piece_of(100_000)) == ("", b"", "")


def test_a_piece_is_what_the_vocabulary_writes() -> None:
    """Whoever looks at a tokenizer wants to see its marks."""
    assert BYTE_LEVEL.piece_of(ids_of_text(" ")[0]) == "Ġ"
    assert WORDS.piece_of(1) == "▁Hello"
