"""A log is read back as it was written, or it is said where it is damaged."""

from __future__ import annotations

import zlib

import msgpack
import pytest

from admission.record.framing import MAGIC, LogCut, LogDamaged, check_frames, read_frames
from tests.admission.record.recorded import as_bytes, busy_recording


@pytest.fixture(scope="module")
def log() -> bytes:
    return busy_recording().end()[1]


def test_what_was_written_is_read() -> None:
    """Every kind of event and plan has to survive the trip."""
    recording = busy_recording()
    recording.end()
    for segment in recording.segments:
        assert list(read_frames(as_bytes(segment))) == segment


def test_every_flipped_bit_is_damage_and_no_early_end(log: bytes) -> None:
    """A log that is not what happened must never be replayed as if it were, not even as far as the flip."""
    for place in range(0, len(log), 7):
        damaged = bytearray(log)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(LogDamaged):
            check_frames(bytes(damaged))
        with pytest.raises(LogDamaged):
            list(read_frames(bytes(damaged)))


def test_a_flip_in_a_length_is_damage(log: bytes) -> None:
    """A length that points past the end would look as if the writer had been killed."""
    place = len(MAGIC) + 1
    damaged = log[:place] + bytes([log[place] ^ 1]) + log[place + 1 :]
    with pytest.raises(LogDamaged, match="checksum of its length"):
        list(read_frames(damaged))


def test_a_record_that_was_taken_out_is_missed(log: bytes) -> None:
    """Each record alone is whole; the chain of checksums tells that one is gone."""
    frames = frames_of(log)
    assert len(frames) > 3
    with pytest.raises(LogDamaged, match="record 2 at byte"):
        list(read_frames(b"".join([log[: log.index(frames[0])], *frames[:2], *frames[3:]])))


@pytest.mark.parametrize("missing", [1, 5, 9])
def test_a_log_that_was_cut_gives_what_is_whole(log: bytes, missing: int) -> None:
    """A gateway that was killed leaves such a log, and it is worth reading."""
    frames = frames_of(log)
    whole = read_frames(log[:-missing])
    read = [next(whole) for _ in range(len(frames) - 1)]
    assert len(read) == len(frames) - 1
    with pytest.raises(LogCut):
        next(whole)


def test_a_log_that_was_cut_between_two_records_is_cut(log: bytes) -> None:
    """All that is there is whole, but it is not all."""
    missing = len(frames_of(log)[-1])
    with pytest.raises(LogCut):
        list(read_frames(log[:-missing]))
    with pytest.raises(LogCut):
        check_frames(log[:-missing])


@pytest.mark.parametrize("size", [0, 5, len(MAGIC), len(MAGIC) + 20])
def test_a_log_that_was_cut_in_its_first_record_is_cut_and_empty(log: bytes, size: int) -> None:
    """A gateway can be killed in the moment in which it opens a file: that is no damage."""
    with pytest.raises(LogCut):
        list(read_frames(log[:size]))


def test_another_file_is_no_log() -> None:
    """Somebody will pass the wrong file."""
    with pytest.raises(LogDamaged, match="no log of this version"):
        list(read_frames(b"iteration,arrived\n0,1\n"))


def test_a_record_of_another_version_is_refused_with_its_place() -> None:
    """The bytes are whole, but what they say has no meaning here."""
    body = msgpack.packb((99, 1, 2))
    length = len(body).to_bytes(4, "big")
    of_length = zlib.crc32(length, zlib.crc32(MAGIC))
    checksums = of_length.to_bytes(4, "big") + zlib.crc32(body, of_length).to_bytes(4, "big")
    with pytest.raises(LogDamaged, match="record 0 at byte 17: it was written by another version"):
        list(read_frames(MAGIC + length + checksums + body))


def frames_of(log: bytes) -> list[bytes]:
    frames, offset = [], log.index(b"\n") + 1
    while offset < len(log):
        length = 12 + int.from_bytes(log[offset : offset + 4], "big")
        frames.append(log[offset : offset + length])
        offset += length
    return frames
