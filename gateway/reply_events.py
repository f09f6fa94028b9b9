"""Answers that are streamed: what each item adds to the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

import orjson

from gateway.chunks import DONE, ChunkWriter, usage_chunk
from gateway.dispatch import Tokens
from gateway.endpoint import Body
from gateway.reply import Reply
from gateway.token_scores import Score


class ReplyEvents(Generic[Body]):
    """The events of one reply."""

    def __init__(self, reply: Reply[Body]) -> None:
        self._reply = reply
        options = reply.body.stream_options
        self._tells_usage = options is not None and bool(options.include_usage)
        usage_json = None
        if self._tells_usage:
            runs = options is not None and options.continuous_usage_stats
            usage_json = self._usage_so_far if runs else _no_usage_yet
        self.writers = [
            ChunkWriter(reply.head, reply.endpoint.choice, index, usage_json) for index in range(len(reply.choices))
        ]

    async def of(self, arrived: Sequence[tuple[int, Tokens]]) -> bytes:
        """The events of items that came together."""
        self._reply.record.items_arrived(arrived)
        return b"".join([await self._of_one(index, item) for index, item in arrived])

    def closing(self) -> bytes:
        """The events behind the last choice's end."""
        if not self._tells_usage:
            return DONE
        return usage_chunk(self._reply.head, self._reply.endpoint.choice, self._reply.usage) + DONE

    async def _of_one(self, index: int, item: Tokens) -> bytes:
        choice, writer = self._reply.choices[index], self.writers[index]
        had_begun = choice.has_begun
        delta = self._reply.take(index, item)
        events = writer.text(delta.text, await self._logprobs(delta.scores) if delta.scores else None)
        if choice.has_begun and not had_begun:
            events = writer.opening() + events
        if choice.output.finish is not None:
            events += writer.finish(choice.output.finish, choice.output.stop_reason)
        return events

    async def _logprobs(self, scores: Sequence[Score]) -> bytes:
        return orjson.dumps(await self._reply.logprobs(scores))

    def _usage_so_far(self) -> bytes:
        return orjson.dumps(self._reply.usage.as_json())


def _no_usage_yet() -> bytes:
    return b"null"
