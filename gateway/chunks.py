"""What a stream says: the events of an answer, as JSON.

The JSON of a chunk is the same from token to token but for the text, so everything around the text is serialised once
per stream and a chunk is three byte strings put together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int

    def as_json(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What all chunks of one answer, or the whole of it, say alike. ``service_tier`` is that of the class used."""

    reply_id: str
    created: int
    model: str
    service_tier: str

    def as_json(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.reply_id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "service_tier": self.service_tier,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceJson:
    """How one endpoint writes a choice in a chunk, as JSON cut at the places that vary.

    ``opening`` comes before the first text (None: nothing does); ``finish_before`` and ``finish_after`` surround the
    finish reason, in a choice without text.
    """

    object_name: str
    opening: bytes | None
    text_before: bytes
    text_after: bytes
    finish_before: bytes
    finish_after: bytes


class ChunkWriter:
    """Makes the events of one stream. With ``include_usage`` every chunk has ``usage``, null but in the last."""

    def __init__(self, head: ReplyHead, choice: ChoiceJson, *, include_usage: bool) -> None:
        self._choice = choice
        head_json = orjson.dumps(head.as_json(choice.object_name))[:-1]
        self._before = b"data: " + head_json + b',"choices":['
        self._after = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._text_before = self._before + choice.text_before
        self._text_after = choice.text_after + self._after

    def opening(self) -> bytes:
        """The event before the first text, empty when the endpoint has none."""
        return b"" if self._choice.opening is None else self._before + self._choice.opening + self._after

    def text(self, text: str) -> bytes:
        """An event with more text; no event when there is none."""
        return self._text_before + orjson.dumps(text) + self._text_after if text else b""

    def finish(self, reason: str) -> bytes:
        choice = self._choice.finish_before + orjson.dumps(reason) + self._choice.finish_after
        return self._before + choice + self._after

    def usage(self, usage: Usage) -> bytes:
        return self._before + b'],"usage":' + orjson.dumps(usage.as_json()) + b"}\n\n"
