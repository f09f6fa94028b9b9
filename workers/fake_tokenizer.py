"""The tokenizer of the scripted worker: bytes, a few words as single tokens, and ChatML's special tokens.

Every text has tokens and comes back whole; ids are small and the same for ever, so tests may name them: 0
``<|endoftext|>``, 1 ``<|im_start|>``, 2 ``<|im_end|>``, then the 256 bytes, then the words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from workers.wire import TokenizerFiles

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (ENDOFTEXT, IM_START, IM_END)

WORDS = (
    "the", "water", "gate", "opens", "and", "a", "slow", "river", "runs", "down", "to", "mill", "where", "stones",
    "turn", "until", "morning", "light", "comes", "over", "quiet", "hills", "while", "boats", "wait",
    "for", "their", "lock",
)  # fmt: skip

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_FILE_NAMES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def built_in_files() -> TokenizerFiles:
    """The built-in tokenizer as the files that a model would bring."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": IM_START,
        "eos_token": IM_END,
        "unk_token": ENDOFTEXT,
        "pad_token": IM_END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    return _digested(
        {
            "tokenizer.json": _build().to_str().encode(),
            "tokenizer_config.json": json.dumps(config, indent=2).encode(),
        }
    )


def files_in(folder: Path) -> TokenizerFiles:
    """The tokenizer of a model's folder. Raises ``OSError`` when it has no ``tokenizer.json``."""
    present = {name: (folder / name).read_bytes() for name in _FILE_NAMES if (folder / name).is_file()}
    if "tokenizer.json" not in present:
        raise FileNotFoundError(f"{folder} has no tokenizer.json")
    return _digested(present)


def load(files: TokenizerFiles) -> Tokenizer:
    """The tokenizer itself, to encode scripted texts and to read prompts."""
    from tokenizers import Tokenizer  # noqa: PLC0415 -- only the scripted worker needs it

    return Tokenizer.from_str(dict(files.files)["tokenizer.json"].decode())


def eos_ids(files: TokenizerFiles, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token that the tokenizer's configuration calls the end of a turn, as ids; empty when it names none."""
    config = json.loads(dict(files.files).get("tokenizer_config.json", b"{}"))
    named = config.get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    found = tokenizer.token_to_id(text) if isinstance(text, str) else None
    return () if found is None else (found,)


def _build() -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415 -- see load

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *letters])}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        _add_word("Ġ" + word, vocabulary, merges)  # Ġ is a space in the byte alphabet
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL_TOKENS])
    return tokenizer


def _add_word(word: str, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Merge a word from the left, letter by letter."""
    for length in range(2, len(word) + 1):
        joined = word[:length]
        if joined not in vocabulary:
            vocabulary[joined] = len(vocabulary)
            merges.append((word[: length - 1], word[length - 1]))


def _digested(files: Mapping[str, bytes]) -> TokenizerFiles:
    ordered = tuple(sorted(files.items()))
    return TokenizerFiles(digest=_digest(ordered), files=ordered)


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    whole = hashlib.sha256()
    for name, content in files:
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()
