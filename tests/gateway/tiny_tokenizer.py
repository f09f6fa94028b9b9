"""A byte-level tokenizer of a few hundred tokens, built on the spot, with a ChatML template."""

from __future__ import annotations

import hashlib
import json
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from workers.wire import TokenizerFiles

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = (
    "The quick brown fox jumps over the lazy dog. Hello world, hello there.",
    "A queue has a bound, and what does not fit is refused at once.",
)


@cache
def tiny_tokenizer() -> Tokenizer:
    """256 bytes, some merges, three special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return tokenizer


def tokenizer_files(
    tokenizer: Tokenizer | None = None, *, template: str | None = CHATML, config: dict[str, object] | None = None
) -> TokenizerFiles:
    """The files as a worker announces them."""
    definition = (tokenizer or tiny_tokenizer()).to_str().encode()
    settings = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|endoftext|>"}} if config is None else config
    files = [("tokenizer.json", definition), ("tokenizer_config.json", json.dumps(settings).encode())]
    if template is not None:
        files.append(("chat_template.jinja", template.encode()))
    digest = hashlib.sha256(b"".join(data for _, data in files)).hexdigest()
    return TokenizerFiles(digest=digest, files=tuple(files))


def ids_of_text(text: str) -> tuple[int, ...]:
    """Token ids of plain text."""
    return tuple(tiny_tokenizer().encode(text, add_special_tokens=False).ids)


def ids_of_bytes(data: bytes) -> tuple[int, ...]:
    """One token per byte: how a model may cut characters."""
    vocabulary = tiny_tokenizer().get_vocab()
    alphabet = byte_alphabet()
    return tuple(vocabulary[alphabet[byte]] for byte in data)


@cache
def byte_alphabet() -> dict[int, str]:
    """How byte-level tokens write each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


FIRST_BYTE_ID = 5
"""Of the tokenizer below: the id of byte 0."""


def sentencepiece_like() -> Tokenizer:
    """Words with a leading mark for the space, and byte tokens for all else, as in Llama 2."""
    words = ["<s>", "▁Hello", "▁world", "!", "▁"]
    vocabulary = {token: index for index, token in enumerate(words + [f"<0x{byte:02X}>" for byte in range(256)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer
