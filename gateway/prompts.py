"""A prompt of a request, as ids for the worker and, where it is to be echoed, as text for the client."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.tokens import ChatTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """``text``: what is shown of a prompt. ``offsets``: where in it the text of each token begins."""

    text: str
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """``echo`` is None when nothing of the prompt is shown."""

    ids: tuple[int, ...]
    echo: Echo | None = None


def echo_of(tokenizer: ChatTokenizer, prompt: str | tuple[int, ...], token_ids: tuple[int, ...]) -> Echo:
    """What to show of ``prompt``: a text as it was sent, ids as the text of all their tokens.

    Takes the time of a decoder over the whole prompt.
    """
    decoded, offsets = tokenizer.decode(token_ids)
    if not isinstance(prompt, str) or decoded == prompt:
        return Echo(text=decoded, offsets=offsets)
    # The tokenizer has put a token before the text, or has written the text in another way: places in what was sent.
    before = len(decoded) - len(prompt) if decoded.endswith(prompt) else 0
    return Echo(text=prompt, offsets=tuple(min(max(0, offset - before), len(prompt)) for offset in offsets))
