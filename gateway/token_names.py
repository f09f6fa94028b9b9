r"""What single tokens are called, where log-probabilities name them: by their bytes, and by a text.

A token of half a character has no text. It is called ``bytes:\xe4\xbb``, as OpenAI's completions endpoint does: a
replacement character would be the same for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenNames:
    """Of one vocabulary. Ids that it does not have are called by no bytes, and the empty text."""

    def __init__(self, tokenizer: Tokenizer, table: Sequence[bytes] | None, added: Mapping[int, str]) -> None:
        """``table``: the bytes of each id, where the vocabulary is byte-level. ``added``: its added tokens."""
        self._tokenizer = tokenizer
        self._table = table
        self._added = added
        self._found: dict[int, bytes] = {}  # at most the vocabulary

    def bytes_of(self, token_id: int) -> bytes:
        if self._table is not None:
            return self._table[token_id] if token_id < len(self._table) else b""
        found = self._found.get(token_id)
        if found is None:
            found = self._found[token_id] = self._find(token_id)
        return found

    def text_of(self, token_id: int) -> str:
        data = self.bytes_of(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def piece_of(self, token_id: int) -> str:
        """The token as the vocabulary writes it."""
        return self._tokenizer.id_to_token(token_id) or ""

    def _find(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        byte = _BYTE_TOKEN.fullmatch(piece)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        # Some decoders drop the space before a text's first word, so the token is read behind itself.
        once, twice = (self._tokenizer.decode([token_id] * times, skip_special_tokens=False) for times in (1, 2))
        return twice[len(once) :].encode() if twice.startswith(once) else once.encode()
