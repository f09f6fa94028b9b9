"""Requests that the store no longer knows: it lost its data, or their keys, or their driver fell silent.

Nobody will ever claim them, so their clients would wait for ever. Only the origin can tell: its stream is open and its
offer was answered, the store has no entry, no driver here runs it, and nothing comes. Each condition alone is ordinary
(a claim is on its way, output is delayed by a lost link, a driver elsewhere runs on although the store is empty), so
all of them must hold for some beats in a row; for many where a driver of another gateway may be busy with a long
prompt. Of a driver that fell silent the store remembers what it held: it is dead, or cut off from the store alone, and
then output comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gateway.stream import Stream

WAITING_BEATS = 5
"""Of which nothing has come, while all workers are driven here: an offer or a claim on its way arrives within these."""

ELSEWHERE_BEATS = 35
"""Which a driver of another gateway may still run: that driver is lost itself when its worker stalls for 30 s."""


class Forgotten:
    """``observe`` once a beat."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[int, int]] = {}  # by sequence: the next position, and beats seen at it

    def observe(
        self,
        streams: Iterable[Stream],
        unknown: Collection[str],
        lost: Collection[str] = (),
        *,
        waiting_beats: int = ELSEWHERE_BEATS,
    ) -> tuple[Stream, ...]:
        """Those to give up of the open ``streams`` that no driver here runs, when the store does not know ``unknown``.

        ``lost`` of them were held by a driver that fell silent. ``waiting_beats`` is the patience with those of which
        nothing has come.
        """
        before, self._beats = self._beats, {}
        given_up: list[Stream] = []
        for stream in streams:
            if stream.sequence_id not in unknown:
                continue
            position, beats = before.get(stream.sequence_id, (stream.next_position, 0))
            beats = beats + 1 if position == stream.next_position else 1
            self._beats[stream.sequence_id] = (stream.next_position, beats)
            if stream.sequence_id in lost:
                patience = WAITING_BEATS
            else:
                patience = waiting_beats if stream.driver_id is None else ELSEWHERE_BEATS
            if beats >= patience:
                given_up.append(stream)
        return tuple(given_up)
