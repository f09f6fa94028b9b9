"""Records as bytes. A log is read back whole, or it is said where it is damaged.

::

    magic | frame | frame | ...
    frame: length (4 bytes) | checksum of the length (4) | checksum of the record (4) | record (msgpack)

Each checksum (CRC-32) goes on from the one before, the first from the magic. So no flipped bit, no record that was cut
out, repeated or put elsewhere goes unseen. (It guards against accidents, not against somebody who makes the checksums
anew.) The length has a checksum of its own, as a wrong length would make damage look like an early end.

The last record of a log is ``Closed``. A log that ends without it was cut off, and what was read of it holds.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgpack

from admission.record.entries import Closed, LogEntry
from admission.record.plain import PlainError, from_plain, to_plain

MAGIC = b"sluicegate log 1\n"
MAX_RECORD_BYTES = 256 * 1024 * 1024
"""A snapshot takes some 20 bytes for each KV block, and some 500 for each sequence: far below."""

_HEAD = struct.Struct(">III")


class LogDamaged(Exception):
    """The bytes are not those that were written. ``index``: the record, counted from 0, that cannot be read."""

    def __init__(self, problem: str, *, index: int, offset: int) -> None:
        super().__init__(f"record {index} at byte {offset}: {problem}")
        self.index = index


class LogCut(Exception):
    """The log ends in the middle of a record, or without its end. What came before is whole."""


class FrameWriter:
    """Makes the bytes of one log, in order."""

    def __init__(self) -> None:
        self._checksum = zlib.crc32(MAGIC)
        self._pack = msgpack.Packer(use_bin_type=True).pack

    def start(self) -> bytes:
        return MAGIC

    def frame(self, entry: LogEntry) -> bytes:
        """The next record. Raises ``ValueError`` when it is larger than ``MAX_RECORD_BYTES``."""
        body = self._pack(to_plain(LogEntry, entry))
        if len(body) > MAX_RECORD_BYTES:
            raise ValueError(f"a record of {len(body)} bytes does not belong in a log")
        of_length = _of_length(len(body), self._checksum)
        self._checksum = zlib.crc32(body, of_length)
        framed: bytes = _HEAD.pack(len(body), of_length, self._checksum) + body
        return framed


def read_frames(data: bytes) -> Iterator[LogEntry]:
    """The records of a log. Raises ``LogDamaged`` or ``LogCut`` where it cannot go on."""
    entry: LogEntry | None = None
    for index, (offset, body) in enumerate(_bodies(data)):
        entry = _entry(body, index=index, offset=offset)
        yield entry
    if not isinstance(entry, Closed):
        raise LogCut


def check_frames(data: bytes) -> Closed:
    """The last record. Raises what ``read_frames`` would, but reads no other record: it is much faster."""
    index, offset, body = -1, 0, memoryview(b"")
    for index, (offset, body) in enumerate(_bodies(data)):  # noqa: B007 - the last ones are used
        pass
    closed = _entry(body, index=index, offset=offset) if index >= 0 else None
    if not isinstance(closed, Closed):
        raise LogCut
    return closed


def _bodies(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Where each record's frame begins, and the record."""
    if len(data) < len(MAGIC) and MAGIC.startswith(data):
        raise LogCut
    if not data.startswith(MAGIC):
        raise LogDamaged("this is no log of this version", index=0, offset=0)
    checksum, offset, index = zlib.crc32(MAGIC), len(MAGIC), 0
    view = memoryview(data)
    while offset < len(data):
        if len(data) - offset < _HEAD.size:
            raise LogCut
        length, of_length, of_record = _HEAD.unpack_from(data, offset)
        checksum = _of_length(length, checksum)
        if checksum != of_length or length > MAX_RECORD_BYTES:
            raise LogDamaged("the checksum of its length does not match", index=index, offset=offset)
        body = view[offset + _HEAD.size : offset + _HEAD.size + length]
        if len(body) < length:
            raise LogCut
        checksum = zlib.crc32(body, checksum)
        if checksum != of_record:
            raise LogDamaged("its checksum does not match", index=index, offset=offset)
        yield offset, body
        offset += _HEAD.size + length
        index += 1


def _of_length(length: int, before: int) -> int:
    return zlib.crc32(length.to_bytes(4, "big"), before)


def _entry(body: memoryview, *, index: int, offset: int) -> LogEntry:
    try:
        entry: LogEntry = from_plain(LogEntry, msgpack.unpackb(body, use_list=False, raw=False))
    except (ValueError, TypeError, PlainError) as error:
        raise LogDamaged(f"it was written by another version ({error})", index=index, offset=offset) from None
    return entry
