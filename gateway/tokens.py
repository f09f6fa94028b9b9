"""One model's tokenizer, as the gateway uses it: prompts to ids, ids back to text. No transformers, no torch.

Built from the files that a worker announces (``TokenizerFiles``). Everything here is pure and thread-safe; it runs in
``tokenizer_pool``'s threads, except for detokenising, which is cheap and belongs to the stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from tokenizers import Tokenizer

from gateway.chat_template import SPECIAL_TOKEN_NAMES, ChatTemplate, Rendering, TemplateFailed
from gateway.control_tokens import ControlTokens, Piece, control_literals, unused_markers
from gateway.detokenize import ByteDetokenizer, ByteTable, Detokenizer, WindowDetokenizer, byte_table, without
from gateway.errors import Reason, Refused
from gateway.token_names import TokenNames
from workers.wire import TokenizerFiles

ChatMessages = Sequence[Mapping[str, str]]

AS_USUAL = Rendering()

MOST_CHARS_AT_ONCE = 4_096
"""Of a text that is encoded in one go, a millisecond or two: the library keeps the interpreter to itself meanwhile."""

_USER_FIELDS = ("content", "name", "tool_call_id")


class SpecialTokens(Enum):
    """What they are in a text that is made of tokens."""

    HIDDEN = auto()
    SHOWN = auto()


class ChatTokenizer:
    """Raises ``ValueError`` when the files are no tokenizer."""

    def __init__(self, files: TokenizerFiles) -> None:
        by_name = dict(files.files)
        definition = json.loads(by_name["tokenizer.json"])
        config = json.loads(by_name.get("tokenizer_config.json", b"{}"))
        added_tokens = definition.get("added_tokens") or []
        # Truncation and padding serve training; a prompt is encoded whole.
        definition |= {"truncation": None, "padding": None}
        self._tokenizer = Tokenizer.from_str(json.dumps(definition))
        self._plain = Tokenizer.from_str(json.dumps(definition | {"added_tokens": []}))
        self._special_ids = frozenset(token["id"] for token in added_tokens if token["special"])
        self._template = _template(by_name, config)
        literals = control_literals(added_tokens, "" if self._template is None else self._template.literals)
        self._control = ControlTokens(literals)
        self._control_ids = frozenset(token["id"] for token in added_tokens if token["content"] in literals)
        added = {token["id"]: token["content"] for token in added_tokens}
        self._byte_table = byte_table(self._tokenizer, added) if _is_byte_level(definition) else None
        self._plain_byte_table = None if self._byte_table is None else without(self._byte_table, self._special_ids)
        is_rewritten = definition.get("normalizer") is not None  # to what length, nobody knows
        self._longest_bytes = None if is_rewritten else _longest(self._byte_table)
        self.names = TokenNames(self._tokenizer, None if self._byte_table is None else self._byte_table.data, added)

    def most_chars(self, num_tokens: int) -> int | None:
        """No text of more characters is so few tokens; None: this vocabulary has no such bound."""
        return None if self._longest_bytes is None else num_tokens * self._longest_bytes

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of a raw prompt, with the tokens that the tokenizer itself adds (such as a BOS)."""
        return tuple(_ids_of(self._tokenizer, text, add_special_tokens=True))

    def encode_bare_text(self, text: str) -> tuple[int, ...]:
        """Ids of a raw prompt, and nothing added."""
        return tuple(self._encode(text))

    def encode_chat(self, messages: ChatMessages, rendering: Rendering = AS_USUAL) -> tuple[int, ...]:
        """Ids of a conversation through the chat template.

        Raises ``Refused`` (400, ``param`` is ``messages``) when there is no template or it fails on these messages.
        """
        if self._template is None:
            raise _refused("this model has no chat template; use /v1/completions")
        words = [message[field] for message in messages for field in _USER_FIELDS if field in message]
        try:
            if self._control.occur_in(words):
                return self._encode_guarded(self._template, messages, words, rendering)
            return tuple(self._encode(self._template.render(messages, rendering)))
        except TemplateFailed as failed:
            raise _refused(str(failed)) from failed

    def detokenizer(self, prompt_ids: Sequence[int], special: SpecialTokens = SpecialTokens.HIDDEN) -> Detokenizer:
        """A fresh detokenizer for the output that follows ``prompt_ids``."""
        if self._byte_table is None or self._plain_byte_table is None:
            hidden_ids = self._special_ids if special is SpecialTokens.HIDDEN else frozenset[int]()
            return WindowDetokenizer(self._tokenizer, hidden_ids, prompt_ids)
        table = self._plain_byte_table if special is SpecialTokens.HIDDEN else self._byte_table
        return ByteDetokenizer(table, prompt_ids)

    def decode(self, token_ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """The text of all tokens, special ones included, and where in it that of each one begins, in characters."""
        detokenizer = self.detokenizer((), SpecialTokens.SHOWN)
        pieces: list[str] = []
        offsets: list[int] = []
        length = 0
        for token_id in token_ids:
            offsets.append(length)
            pieces.append(detokenizer.feed(token_id))
            length += len(pieces[-1])
        pieces.append(detokenizer.flush())
        return "".join(pieces), tuple(offsets)

    def _encode(self, text: str) -> list[int]:
        return _ids_of(self._tokenizer, text)

    def _encode_guarded(
        self, template: ChatTemplate, messages: ChatMessages, words: Sequence[str], rendering: Rendering
    ) -> tuple[int, ...]:
        """Encode a conversation whose words contain control literals, so that these stay words."""
        markers = unused_markers(words)
        if markers is None:
            raise _refused("the conversation uses every private character")
        marked = [_map_words(message, lambda text: self._control.mark(text, markers)) for message in messages]
        pieces = self._control.pieces(template.render(marked, rendering), markers)
        token_ids = [token_id for index, piece in enumerate(pieces) for token_id in self._encode_piece(index, piece)]
        # A template may take content apart in ways that lose the marks. So count: the same conversation, with plain
        # words for the literals, has as many special tokens as this one may have.
        harmless = [_map_words(message, self._control.neutralise) for message in messages]
        if self._num_special(token_ids) != self._num_special(self._encode(template.render(harmless, rendering))):
            raise _refused("a message contains a control token of this model")
        return tuple(token_ids)

    def _encode_piece(self, index: int, piece: Piece) -> list[int]:
        tokenizer = self._plain if piece.literal else self._tokenizer
        if index == 0 or self._byte_table is not None:
            token_ids = _ids_of(tokenizer, piece.text)
        else:
            token_ids = _encode_behind_line(tokenizer, piece.text)
        if piece.literal and not self._control_ids.isdisjoint(token_ids):
            # The vocabulary's merges lead to the control token itself: character by character they cannot.
            return [id_ for char in piece.text for id_ in self._plain.encode(char, add_special_tokens=False).ids]
        return token_ids

    def _num_special(self, token_ids: Sequence[int]) -> int:
        return sum(token_id in self._special_ids for token_id in token_ids)


def _encode_behind_line(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode text from the middle of a prompt: sentencepiece vocabularies put a space before the first word only."""
    line = _ids_of(tokenizer, "\n")
    both = _ids_of(tokenizer, f"\n{text}")
    return both[len(line) :] if both[: len(line)] == line else _ids_of(tokenizer, text)


def _longest(table: ByteTable | None) -> int | None:
    """Of all tokens, in bytes. None where tokens are not bytes."""
    return None if table is None else max(map(len, table.data), default=1)


def _ids_of(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """The ids of ``text``. A long one goes as a batch of one: only for batches does the library let other threads run.

    Else one prompt of some megabytes would hold up the event loop, and with it the whole gateway, for seconds.
    """
    if len(text) <= MOST_CHARS_AT_ONCE:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return encoding.ids


def _map_words(message: Mapping[str, str], change: Any) -> dict[str, str]:
    return {field: change(text) if field in _USER_FIELDS else text for field, text in message.items()}


def _refused(problem: str) -> Refused:
    return Refused(Reason.INVALID_VALUE, f"These messages cannot be encoded: {problem}.", param="messages")


def _template(files: Mapping[str, bytes], config: Mapping[str, Any]) -> ChatTemplate | None:
    """The chat template: its own file, else the one in the config (or the ``default`` of several there)."""
    source = files["chat_template.jinja"].decode() if "chat_template.jinja" in files else config.get("chat_template")
    if isinstance(source, list):
        source = {named["name"]: named["template"] for named in source}.get("default")
    return None if source is None else ChatTemplate(source, _special_tokens(files, config))


def _special_tokens(files: Mapping[str, bytes], config: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens that templates use; each is a string, or an object with its ``content``."""
    named = json.loads(files.get("special_tokens_map.json", b"{}")) | config
    tokens = {name: named[name] for name in SPECIAL_TOKEN_NAMES if named.get(name) is not None}
    return {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}


def _is_byte_level(definition: Mapping[str, Any]) -> bool:
    return (definition.get("decoder") or {}).get("type") == "ByteLevel"
