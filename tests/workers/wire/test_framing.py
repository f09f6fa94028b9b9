"""Frames come out of a stream whole, however it was cut, and in bounded memory and time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.wire.strategies import messages
from workers.wire import MAX_FRAME_BYTES, FrameDecoder, Message, Refusal, TokenizerFiles, WireError, decode, encode


@given(sent=st.lists(messages(), max_size=5), data=st.data())
def test_any_cut_of_the_stream_gives_the_same_messages(sent: list[Message], data: st.DataObject) -> None:
    """TCP keeps bytes in order, and nothing else together."""
    stream = b"".join(encode(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    received: list[Message] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[begin:end])
    assert received == sent
    assert not decoder.holds_partial_frame


def test_a_partial_frame_is_known_as_such() -> None:
    """A server gives a frame that was begun only so long to end."""
    decoder = FrameDecoder()
    decoder.feed(encode(Refusal(message="no"))[:-1])
    assert decoder.holds_partial_frame


def test_a_length_over_the_limit_is_refused_at_once() -> None:
    """Not after waiting for, and storing, four gigabytes."""
    with pytest.raises(WireError, match="4294967295 bytes is over the limit"):
        FrameDecoder().feed(b"\xff\xff\xff\xff")


def test_the_limit_may_be_small_and_be_raised() -> None:
    """Strangers get small frames only; a proved peer gets large ones on the same stream."""
    decoder = FrameDecoder(max_frame_bytes=10)
    frame = encode(Refusal(message="a" * 20))
    with pytest.raises(WireError, match="over the limit of 10"):
        decoder.feed(frame)
    decoder = FrameDecoder(max_frame_bytes=10)
    decoder.max_frame_bytes = 100
    assert decoder.feed(frame) == [Refusal(message="a" * 20)]


def test_what_comes_behind_the_last_message_that_is_let_through_waits() -> None:
    """Frames behind a peer's proof obey the limits that hold once it is known."""
    decoder = FrameDecoder(max_frame_bytes=10, most_messages=1)
    short, long = Refusal(message="a"), Refusal(message="a" * 20)
    assert decoder.feed(encode(short) + encode(long)) == [short]
    assert decoder.feed(encode(short)) == []
    decoder.max_frame_bytes, decoder.most_messages = 100, None
    assert decoder.feed(b"") == [long, short]


def test_after_an_error_the_stream_stays_broken() -> None:
    """Bytes behind a bad frame have no known meaning."""
    decoder = FrameDecoder()
    with pytest.raises(WireError):
        decoder.feed(b"\0\0\0\1\xc1")
    with pytest.raises(WireError):
        decoder.feed(encode(Refusal(message="no")))


def test_an_oversized_message_is_refused_by_its_sender() -> None:
    """Its peer would cut the link, and everything on it, for it."""
    with pytest.raises(WireError, match="a frame holds"):
        encode(TokenizerFiles(digest="d", files=(("tokenizer.json", bytes(MAX_FRAME_BYTES)),)))


@pytest.mark.parametrize("rest", [b"", b"\0"], ids=["nothing", "half"])
def test_a_stored_frame_must_be_one_whole_frame(rest: bytes) -> None:
    """A queue entry is one message; less or more is damage."""
    frame = encode(Refusal(message="no"))
    for bad in (rest, frame[:-1], frame + (rest or frame)):
        with pytest.raises(WireError):
            decode(bad)


def test_feeding_byte_by_byte_takes_time_in_proportion() -> None:
    """A peer that drips must not be able to burn the processor: each byte costs the same, however many came before."""

    def seconds(size: int) -> float:
        frame = encode(TokenizerFiles(digest="d", files=(("tokenizer.json", bytes(size)),)))
        decoder = FrameDecoder()
        began = time.process_time()
        for at in range(len(frame)):
            decoder.feed(frame[at : at + 1])
        return time.process_time() - began

    # Linear would be 8 times as much, quadratic 64.
    assert seconds(400_000) < 30 * max(seconds(50_000), 0.005)
