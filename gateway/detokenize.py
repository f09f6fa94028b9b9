"""Tokens to text, one at a time: any split of the output gives the same text as the whole.

Two ways. A byte-level vocabulary (GPT-2's and its heirs') is a table of bytes per id, and an incremental UTF-8 decoder
puts characters together that are split over tokens. Any other vocabulary goes through the tokenizer's own decoder,
which is given a window of tokens, since it may treat a token by its neighbours (leading spaces, byte fallback).

Special tokens make no text, unless it is asked for. Of the prompt nothing is shown: a character that the prompt's last
tokens began, and the output completes, belongs to the prompt.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_TOKENS = 6
"""How much of the prompt's end a decoder sees before the first output token."""
_MOST_PENDING_TOKENS = 64
"""A character takes four tokens at most; what is still invalid after this many is shown as it is."""


class Detokenizer(Protocol):
    """The text of one output sequence."""

    def feed(self, token_id: int) -> str:
        """The text that is complete with this token."""
        ...

    def flush(self) -> str:
        """The text still held back, when no more tokens come. A cut character becomes U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class ByteTable:
    """A byte-level vocabulary: the bytes of each id, empty for those that make no text.

    ``texts`` has the same as text, None where the bytes are no whole characters.
    """

    data: tuple[bytes, ...]
    texts: tuple[str | None, ...]

    @classmethod
    def of(cls, data: Iterable[bytes]) -> ByteTable:
        known = tuple(data)
        return cls(known, tuple([_whole_text(token) for token in known]))

    def bytes_of(self, token_id: int) -> bytes:
        """Models pad their vocabulary: ids past the tokenizer's have no text."""
        return self.data[token_id] if token_id < len(self.data) else b""


class ByteDetokenizer:
    """For byte-level vocabularies. Between whole characters a token that is whole itself is its text."""

    def __init__(self, table: ByteTable, prompt_ids: Sequence[int]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._prompt_rest = _missing_bytes(b"".join(table.bytes_of(token_id) for token_id in prompt_ids[-4:]))
        self._is_between = not self._prompt_rest

    def feed(self, token_id: int) -> str:
        if self._is_between and token_id < len(self._table.texts):
            text = self._table.texts[token_id]
            if text is not None:
                return text
        data = self._table.bytes_of(token_id)
        if self._prompt_rest and data:
            data = self._skip_prompt_rest(data)
        text = self._decoder.decode(data)
        pending, _ = self._decoder.getstate()
        self._is_between = not (pending or self._prompt_rest)
        return text

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _skip_prompt_rest(self, data: bytes) -> bytes:
        """Drop the continuation bytes that complete the prompt's last character."""
        start = 0
        while start < min(self._prompt_rest, len(data)) and data[start] & 0xC0 == 0x80:
            start += 1
        self._prompt_rest = self._prompt_rest - start if start == len(data) else 0
        return data[start:]


class WindowDetokenizer:
    """For every other vocabulary: decode the pending tokens behind those shown last, and take what is new.

    Windows are cut only where text was shown, that is between whole characters. The first one begins with the end of
    the prompt, so that a decoder which drops the first space of a text does not drop the one after the prompt; when
    the prompt ends inside a character it is left out, and what is left of that character shows as U+FFFD.

    ``hidden_ids`` are special tokens that make no text: all of them or none.
    """

    def __init__(self, tokenizer: Tokenizer, hidden_ids: frozenset[int], prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = hidden_ids
        self._context = list(prompt_ids[-_CONTEXT_TOKENS:])
        self._context_text = self._decode(self._context)
        if _REPLACEMENT in self._context_text:
            self._context, self._context_text = [], ""
        self._pending: list[int] = []

    def feed(self, token_id: int) -> str:
        if token_id in self._hidden_ids:
            return ""
        self._pending.append(token_id)
        new = self._new_text()
        if new.endswith(_REPLACEMENT) and len(self._pending) < _MOST_PENDING_TOKENS:
            return ""
        return self._show(new)

    def flush(self) -> str:
        return self._show(self._new_text())

    def _new_text(self) -> str:
        text = self._decode(self._context + self._pending)
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        return self._decode(self._pending)

    def _show(self, new: str) -> str:
        if new:
            self._context, self._pending = self._pending, []
            self._context_text = self._decode(self._context)
        return new

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=bool(self._hidden_ids))


def _whole_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _missing_bytes(tail: bytes) -> int:
    """How many bytes the last character of ``tail`` still needs, 0 when it is whole or invalid."""
    for back in range(1, min(3, len(tail)) + 1):
        byte = tail[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte & 0xF8 == 0xF0 else 3 if byte & 0xF0 == 0xE0 else 2 if byte & 0xE0 == 0xC0 else 1
        return max(0, length - back)
    return 0


def byte_table(tokenizer: Tokenizer, added: Collection[int]) -> ByteTable:
    """The bytes of every id of a byte-level vocabulary; ``added`` tokens are written as plain text."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        table[token_id] = token.encode() if token_id in added else _token_bytes(token)
    return ByteTable.of(table)


def without(table: ByteTable, hidden_ids: Collection[int]) -> ByteTable:
    """The table, with no bytes for the ids of ``hidden_ids``."""
    return ByteTable.of(b"" if token_id in hidden_ids else data for token_id, data in enumerate(table.data))


def _token_bytes(token: str) -> bytes:
    """The bytes that a byte-level token writes as characters; a token that is not written so is text."""
    try:
        return bytes(_BYTE_OF_CHAR[char] for char in token)
    except KeyError:
        return token.encode()


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()
