"""What a stream says: the events of an answer, as JSON.

The JSON of a chunk is the same from token to token but for the text, so everything around the text is serialised once
per choice and a chunk is a few byte strings put together. Only log-probabilities are serialised as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
_GOES_ON = b',"finish_reason":null}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one answer. Of the prompt's tokens ``cached_tokens`` were not computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What all chunks of one answer, or the whole of it, say alike. ``service_tier`` is that of the class used.

    There is no fingerprint of the system: a request may move between workers while it runs.
    """

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
            "system_fingerprint": None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceJson:
    """How one endpoint writes a choice in a chunk, behind its index: JSON cut at the places that vary.

    ``opening`` comes before the first text (None: nothing does); ``text_before`` and ``text_after`` surround a text;
    ``last`` is a choice without text, up to its finish reason.
    """

    object_name: str
    opening: bytes | None
    text_before: bytes
    text_after: bytes
    last: bytes


class ChunkWriter:
    """Makes the events of one choice. ``usage_json``: the usage that an event tells, None where it tells of none."""

    def __init__(
        self, head: ReplyHead, choice: ChoiceJson, index: int, usage_json: Callable[[], bytes] | None = None
    ) -> None:
        self._choice = choice
        self._usage_json = usage_json
        self._before = _chunk_before(head, choice) + b'{"index":%d' % index
        self._text_before = self._before + choice.text_before
        self._text_after = choice.text_after + b"null" + _GOES_ON
        self._plain_after = self._text_after + self._end() if usage_json is None else None

    def opening(self) -> bytes:
        """The event before the first text, empty when the endpoint has none."""
        if self._choice.opening is None:
            return b""
        return self._before + self._choice.opening + b',"logprobs":null' + _GOES_ON + self._end()

    def text(self, text: str, logprobs: bytes | None = None) -> bytes:
        """An event with more text and its log-probabilities, as JSON; no event when there is neither."""
        if self._plain_after is not None and logprobs is None:  # almost always, and the path of every token
            return b"".join((self._text_before, orjson.dumps(text), self._plain_after)) if text else b""
        if logprobs is not None:
            after = self._choice.text_after + logprobs + _GOES_ON
        elif text:
            after = self._text_after
        else:
            return b""
        return self._text_before + orjson.dumps(text) + after + self._end()

    def finish(self, reason: str, stop_reason: str | int | None) -> bytes:
        """The last event of the choice."""
        ending = orjson.dumps({"finish_reason": reason, "stop_reason": stop_reason})
        return self._before + self._choice.last + b',"logprobs":null,' + ending[1:] + self._end()

    def _end(self) -> bytes:
        return b"]}\n\n" if self._usage_json is None else b'],"usage":' + self._usage_json() + b"}\n\n"


def usage_chunk(head: ReplyHead, choice: ChoiceJson, usage: Usage) -> bytes:
    """The last event of a stream that tells its usage: it has no choice."""
    return _chunk_before(head, choice) + b'],"usage":' + orjson.dumps(usage.as_json()) + b"}\n\n"


def _chunk_before(head: ReplyHead, choice: ChoiceJson) -> bytes:
    return b"data: " + orjson.dumps(head.as_json(choice.object_name))[:-1] + b',"choices":['
