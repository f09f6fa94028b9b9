"""Requests that the store no longer knows: it lost its data, or their keys, while they waited in it.

Nobody will ever claim them, so their clients would wait for ever. Only the origin can tell: its stream is open, the
store has no entry, and nothing comes. Each condition alone is ordinary (an offer is on its way, output is delayed by a
lost link, a sequence runs on although the store is empty), so all of them must hold for some beats in a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gateway.streams import Stream

WAITING_BEATS = 5
"""Of which nothing has come yet: a driver that received it before the loss has so long for its first token."""

STARTED_BEATS = 35
"""Of which something has come: a driver may still run it, and is lost itself when its worker stalls for 30 s."""


class Forgotten:
    """``observe`` once a beat."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[int, int]] = {}  # by sequence: the next position, and beats seen at it

    def observe(self, streams: Iterable[Stream], unknown: Collection[str]) -> tuple[Stream, ...]:
        """Those of the open ``streams`` to give up, when the store does not know the entries ``unknown``."""
        before, self._beats = self._beats, {}
        given_up: list[Stream] = []
        for stream in streams:
            if stream.sequence_id not in unknown:
                continue
            position, beats = before.get(stream.sequence_id, (stream.next_position, 0))
            beats = beats + 1 if position == stream.next_position else 1
            self._beats[stream.sequence_id] = (stream.next_position, beats)
            if beats >= (WAITING_BEATS if stream.driver_id is None else STARTED_BEATS):
                given_up.append(stream)
        return tuple(given_up)
