"""Early headers: a stream that answers 200 as soon as its request is in the queue, and tells in comments how it waits.

A client asks for it with ``x-sluicegate-early: true``. What is refused at the door keeps its status, whoever asks;
after that whatever goes wrong is an error event, as it is in any stream that has begun. Comments are lines that begin
with a colon: whoever reads server-sent events passes over them, and proxies see that the connection lives.

The place in the queue costs the store nothing: it is what the offer answered, lowered with the samples of the queue
that every gateway takes anyway. It may be too great, as who left the line before the request is not told apart from
who came after it; and a better class, or one that has aged less far, may still go before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from gateway.dispatch import Place, TokenStream
from gateway.errors import Reason, Refused
from gateway.sse import ClientGone, ClientTooSlow, SseResponse

EARLY_HEADER = "x-sluicegate-early"

_ALIVE = b": alive\n\n"


def wants_early(values: Iterable[str], *, stream: bool) -> bool:
    """Whether the header's ``values`` ask for early headers. Raises ``Refused`` when they cannot be had."""
    values = tuple(values)
    text = ", ".join(values)
    if values and text not in {"false", "true"}:
        raise _refused("should be 'true' or 'false'")
    if text == "true" and not stream:
        raise _refused("is only allowed when 'stream' is true")
    return text == "true"


@asynccontextmanager
async def kept_alive(sse: SseResponse, streams: Sequence[TokenStream], *, every_s: float) -> AsyncIterator[None]:
    """Begin the answer now, and send a comment ``every_s`` until the end of the block, be it only that it goes on."""
    await sse.write(comment_on(streams))
    talker = asyncio.create_task(_talk(sse, streams, every_s), name="early comments")
    try:
        yield
    finally:
        talker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await talker


def comment_on(streams: Sequence[TokenStream]) -> bytes:
    """How the streams of a request wait: as the first of them that does."""
    places = [place for stream in streams if (place := stream.place) is not None]
    return _comment(min(places, key=lambda place: place.num_ahead)) if len(places) == len(streams) else _ALIVE


async def _talk(sse: SseResponse, streams: Sequence[TokenStream], every_s: float) -> None:
    with contextlib.suppress(ClientGone, ClientTooSlow):  # whoever writes the answer finds that out as well
        while True:
            await asyncio.sleep(every_s)
            if not sse.is_congested:
                await sse.write(comment_on(streams))


def _comment(place: Place) -> bytes:
    left = "" if place.left_s is None else f", about {max(1, round(place.left_s))} s"
    return f": queue position {place.num_ahead + 1}{left}\n\n".encode()


def _refused(problem: str) -> Refused:
    return Refused(Reason.INVALID_VALUE, f"The header '{EARLY_HEADER}' {problem}.", param=EARLY_HEADER)
